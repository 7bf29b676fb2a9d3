"""Short convolutions along the tokens of sequences: rows of results, then rows of states.

Which rows a token meets is found by going back through the tokens of its slot, and then through the
rows of its state; zeros are before a token at position 0.
"""

from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, i64, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import over_chunks, over_widths

SLOTS: Final = (
    "state", "x", "w", "slots", "positions", "out",
    "count", "kept", "channels", "tokens", "rows", "part_rows",
    "state_slot", "state_row", "x_row", "w_row", "w_tap",
)  # fmt: skip
"""Arguments; strides are in bytes. Slots and positions are adjacent, so are rows of the result."""

POINTERS: Final = 6


def short_conv(name: str, target: Target) -> Builder:
    """Return the kernel: a part is some rows of the result."""
    b = Builder(name, target)
    arg = {n: b.arg(i) for i, n in enumerate(SLOTS) if i >= POINTERS}
    first = b.mul(b.parameter("part"), arg["part_rows"])
    last = b.umin(b.add(first, arg["part_rows"]), arg["rows"])
    with b.loop(first, last) as row:
        _Row(b, arg, row).write()
    return b


class _Row:
    """Writes the code for one row: a token's result, or a row of a state afterwards."""

    def __init__(self, b: Builder, arg: dict[str, Value], row: Value) -> None:
        self.b, self.arg = b, arg
        self.at = {n: b.arg_pointer(i) for i, n in enumerate(SLOTS[:POINTERS])}
        self.out = b.offset(self.at["out"], b.mul(row, b.mul(arg["channels"], 4)))
        self.is_token = b.compare("slt", row, arg["tokens"])
        self.row = row
        behind = b.sub(row, arg["tokens"])
        self.ago = b.sub(b.sub(arg["kept"], 1), b.urem(behind, arg["kept"]))
        self.state = b.udiv(behind, arg["kept"])

    def _id(self, name: str, token: Value) -> Value:
        wide = self.b.load("i32", self.b.offset(self.at[name], self.b.mul(token, 4)), 4)
        return self.b.cast("zext", wide, "i64")

    def write(self) -> None:
        """Go back through what the slot holds."""
        b, arg = self.b, self.arg
        slot, start = b.var(self.state), b.var(b.sub(arg["tokens"], 1))
        with b.when(self.is_token):
            own = self._id("slots", self.row)
            with b.when(b.compare("uge", own, arg["count"])):
                b.leave(b.add(own, 1))
            b.set(slot, own)
            b.set(start, self.row)
        over_chunks(b, arg["channels"], lambda c: c.store(b.zero(c.load(self.out).type), self.out))
        seen = b.var(i64(0))
        with b.loop(0, b.add(b.get(start), 1)) as back:
            token = b.sub(b.get(start), back)
            is_wanted = b.compare("sle", b.get(seen), arg["kept"])
            is_own = b.compare("eq", self._id("slots", token), b.get(slot))
            with b.when(b.binary("and", is_wanted, is_own)):
                self._take(b.get(seen), b.offset(self.at["x"], b.mul(token, arg["x_row"])))
                b.set(seen, b.add(b.get(seen), 1))
                with b.when(b.compare("eq", self._id("positions", token), 0)):
                    b.set(seen, b.add(arg["kept"], 1))
        rows = b.offset(self.at["state"], b.mul(b.get(slot), arg["state_slot"]))
        with b.loop(b.get(seen), b.add(arg["kept"], 1)) as ago:
            place = b.sub(b.sub(arg["kept"], 1), b.sub(ago, b.get(seen)))
            with b.when(b.compare("sge", place, 0)):
                self._take(ago, b.offset(rows, b.mul(place, arg["state_row"])))

    def _take(self, ago: Value, source: Value) -> None:
        """Use the row that is this number of tokens back."""
        b = self.b
        with b.when(self.is_token):
            tap = b.offset(self.at["w"], b.mul(b.sub(self.arg["kept"], ago), self.arg["w_tap"]))
            self._add(source, tap)
        other = b.binary("xor", self.is_token, b.compare("eq", i64(0), i64(0)))
        with b.when(b.binary("and", other, b.compare("eq", ago, self.ago))):
            over_chunks(b, self.arg["channels"], lambda c: c.store(c.load(source), self.out))

    def _add(self, source: Value, tap: Value) -> None:
        """Add a row times the weights of a tap, which are not adjacent."""
        b = self.b

        def move(channel: Value, width: int) -> None:
            type_ = vector_of(width, "float")
            weights = b.zero(type_)
            for lane in range(width):
                place = b.offset(tap, b.mul(b.add(channel, lane), self.arg["w_row"]))
                one = b.load("float", place, 4)
                weights = b.insert(weights, one, lane) if width > 1 else one
            at = b.mul(channel, 4)
            given, out = b.load(type_, b.offset(source, at), 4), b.offset(self.out, at)
            b.store(b.fma(given, weights, b.load(type_, out, 4)), out, 4)

        over_widths(b, self.arg["channels"], move)
