"""The kernel that samples images between their elements."""

from ggsched_cpu.kernels.emit import Builder, Value, constant, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Row, over_rows, over_widths, own_slot


def grid_sample(name: str, target: Target, *, padded: bool) -> Builder:
    """Operands grid (pairs), x and result, whose rows are lines of its first channel.

    Arguments are the channels, how far these are apart in x and in the result, and for either axis,
    the last first: its highest index, and what makes a place of ``grid + 1``, a factor and a term.

    A place lies between four elements of each channel. Elements beside the image are 0, or with
    ``padded`` those at its border.
    """
    b = Builder(name, target)
    first = own_slot(3)
    channels, plane, out_plane = (b.arg(first + i) for i in range(3))

    def axis(grid: Value, number: int, lanes: int) -> list[tuple[Value, Value]]:
        """Return the two indices (i32) that a place is between, with their shares."""
        at = first + 3 + 3 * number
        last = b.splat(b.arg_f32(at), lanes)
        factor, more = (b.splat(b.arg_f32(at + 1 + i), lanes) for i in range(2))
        place = b.fadd(b.fmul(b.fadd(grid, 1.0), factor), more)
        low = b.intrinsic("floor", place)
        share = b.fsub(place, low)
        found = []
        for here, part in ((low, b.fsub(b.same(share, 1.0), share)), (b.fadd(low, 1.0), share)):
            if not padded:
                inside = b.binary("and", b.compare("oge", here, 0.0), b.compare("ole", here, last))
                part = b.select(inside, part, b.same(part, 0.0))
            clipped = b.fmin(b.fmax(here, 0.0), last)
            # Of NaN 0, where a plain conversion may give any index.
            found.append((b.saturated(clipped, "i32"), part))
        return found

    def places(grid: Value, x: Value, out: Value, column: Value, lanes: int) -> None:
        pairs = b.load(vector_of(2 * lanes, "float"), b.offset(grid, b.mul(column, 8)), 4)
        coordinates = [
            b.extract(pairs, i) if lanes == 1 else b.shuffle(pairs, None, range(i, 2 * lanes, 2))
            for i in range(2)
        ]
        columns, lines = (axis(v, i, lanes) for i, v in enumerate(coordinates))
        last = b.cast("fptosi", b.arg_f32(first + 3), "i32")
        width = b.splat(b.add(last, 1), lanes)
        corners = [
            (b.add(b.mul(row, width), k), b.fmul(share, other))
            for row, share in lines
            for k, other in columns
        ]
        with b.loop(0, channels) as channel:
            image, total = b.offset(x, b.mul(channel, plane)), None
            for index, share in corners:
                term = b.fmul(_gathered(b, image, index), share)
                total = term if total is None else b.fadd(total, term)
            assert total is not None
            place = b.offset(out, b.mul(channel, out_plane))
            b.store(total, b.offset(place, b.mul(column, 4)), 4)

    def row(row: Row) -> None:
        grid, x, out = row.pointers
        over_widths(b, row.columns, lambda column, lanes: places(grid, x, out, column, lanes))

    over_rows(b, 3, row)
    return b


def _gathered(b: Builder, image: Value, index: Value) -> Value:
    """Read f32 at indices, which are not negative."""
    lanes = index.lanes
    pointers = vector_of(lanes, "ptr")
    at = b.value(pointers, f"getelementptr float, {image}, {index}")
    if lanes == 1:
        return b.load("float", at, 4)
    type_, mask = vector_of(lanes, "float"), constant("i1", [1] * lanes)
    name = f"llvm.masked.gather.v{lanes}f32.v{lanes}p0"
    b.declared[name] = f"declare {type_} @{name}({pointers}, i32, {mask.type}, {type_})"
    return b.value(type_, f"call {type_} @{name}({at}, i32 4, {mask}, {type_} poison)")


__all__ = ["grid_sample"]
