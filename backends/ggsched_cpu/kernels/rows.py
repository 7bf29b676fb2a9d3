"""Rows: chosen by ids, stored by ids, converted, copied, rotated."""

from ggsched.ir.dtype import F16, F32, Q8_0, DType
from ggsched_cpu.kernels.elements import block_values, load_f32, store_f32
from ggsched_cpu.kernels.emit import Builder, Value, f32, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Row, over_chunks, over_rows, over_widths, own_slot


def convert_row(
    b: Builder, dtype: DType, to: DType, src: Value, dst: Value, columns: Value
) -> None:
    """Write one row of a type as another one; quantised only from f32, or as f32 or f16."""
    if dtype.layout is not None:
        assert to is F32 or to is F16
        _decode(b, dtype, to, src, dst, columns)
        return
    if to is Q8_0:
        assert dtype is F32
        _encode(b, src, dst, columns)
        return

    def move(column: Value, width: int) -> None:
        source = b.offset(src, b.mul(column, dtype.block_nbytes))
        target = b.offset(dst, b.mul(column, to.block_nbytes))
        if dtype.block_nbytes == to.block_nbytes and (dtype is to or dtype.name == "i32"):
            element = "i32" if dtype.block_nbytes == 4 else "i16"
            size = dtype.block_nbytes
            b.store(b.load(vector_of(width, element), source, size), target, size)
        else:
            store_f32(b, to, load_f32(b, dtype, source, width), target)

    over_widths(b, columns, move)


def _decode(b: Builder, dtype: DType, to: DType, src: Value, dst: Value, columns: Value) -> None:
    layout = dtype.layout
    assert layout is not None
    lanes = b.target.lanes
    with b.loop(0, b.udiv(columns, dtype.block)) as block:
        place = b.offset(src, b.mul(block, dtype.block_nbytes))
        out = b.offset(dst, b.mul(block, to.block_nbytes * dtype.block))
        for i, value in enumerate(block_values(b, place, layout, lanes)):
            store_f32(b, to, value, b.offset(out, i * lanes * to.block_nbytes))


def _encode(b: Builder, src: Value, dst: Value, columns: Value) -> None:
    """Write a row of f32 as blocks of q8_0, as the reference of ``set_rows`` says."""
    lanes = b.target.lanes
    vector = vector_of(lanes, "float")
    with b.loop(0, b.udiv(columns, Q8_0.block)) as block:
        source = b.offset(src, b.mul(block, 4 * Q8_0.block))
        out = b.offset(dst, b.mul(block, Q8_0.block_nbytes))
        x = [b.load(vector, b.offset(source, 4 * i), 4) for i in range(0, Q8_0.block, lanes)]
        sizes = [b.intrinsic("fabs", v) for v in x]
        tops, strange = sizes[0], b.fsub(x[0], x[0])
        for v, size in zip(x[1:], sizes[1:], strict=True):
            tops, strange = b.fmax(tops, size), b.fadd(strange, b.fsub(v, v))
        total = b.sum(strange)
        is_bad = b.compare("uno", total, total)  # a number that is not finite less itself is NaN
        scale = b.fdiv(b.largest(tops), 127.0)
        stored = b.cast("fptrunc", scale, "half")
        is_zero = b.compare("oeq", b.cast("fpext", stored, "float"), 0.0)
        inverse = b.select(is_zero, f32(0.0), b.fdiv(f32(1.0), scale))
        b.store(b.select(is_bad, Value("0xH7E00", "half"), stored), out)
        inverse = b.splat(b.select(is_bad, f32(0.0), inverse), lanes)
        for i, (v, size) in enumerate(zip(x, sizes, strict=True)):
            exact = b.fmul(size, inverse)
            whole = b.intrinsic("floor", exact)
            is_up = b.compare("oge", b.fsub(exact, whole), 0.5)
            code = b.fadd(whole, b.select(is_up, b.same(whole, 1.0), b.zero(vector)))
            # Of a block that is not finite: a product with 0 may be NaN, which has no integer.
            code = b.select(b.compare("ole", code, 127.0), code, b.zero(vector))
            signed = b.intrinsic("copysign", code, v)
            codes = b.cast("trunc", b.cast("fptosi", signed, "i32"), "i8")
            b.store(codes, b.offset(out, 2 + i * lanes))


def convert(name: str, target: Target, dtype: DType, to: DType) -> Builder:
    """Operand; result: rows of adjacent elements."""
    b = Builder(name, target)
    over_rows(
        b, 2, lambda row: convert_row(b, dtype, to, row.pointers[0], row.pointers[1], row.columns)
    )
    return b


def _id(b: Builder, pointer: Value, count: Value) -> Value:
    """Read an id; leave the kernel where there is no such row."""
    wide = b.cast("zext", b.load("i32", pointer, 4), "i64")
    with b.when(b.compare("uge", wide, count)):
        b.leave(b.add(wide, 1))
    return wide


def row_here(b: Builder, pointer: Value, first: Value, of: Value) -> Value:
    """Return the number of a row in a table that has those from ``first`` on; others are too large.

    Leave the kernel where there is no such row among ``of``.
    """
    return b.sub(_id(b, pointer, of), first)


def get_rows(name: str, target: Target, dtype: DType, to: DType) -> Builder:
    """Operands ids (a row is one) and result; table, its stride, its rows, stride of tables.

    The axis before the last one numbers tables.
    """
    b = Builder(name, target)
    table = b.arg_pointer(own_slot(2))
    stride, count, batch = (b.arg(own_slot(2) + i) for i in (1, 2, 3))

    def row(row: Row) -> None:
        id_ = _id(b, row.pointers[0], count)
        source = b.offset(b.offset(table, b.mul(row.at[1], batch)), b.mul(id_, stride))
        convert_row(b, dtype, to, source, row.pointers[1], row.columns)

    over_rows(b, 2, row)
    return b


def set_rows(name: str, target: Target, to: DType) -> Builder:
    """Operands source and ids (a row is one); result, its stride and the number of its rows."""
    b = Builder(name, target)
    table, stride, count = b.arg_pointer(own_slot(2)), *(b.arg(own_slot(2) + i) for i in (1, 2))

    def row(row: Row) -> None:
        id_ = _id(b, row.pointers[1], count)
        dst = b.offset(table, b.mul(id_, stride))
        convert_row(b, F32, to, row.pointers[0], dst, row.columns)

    over_rows(b, 2, row)
    return b


def add_id(name: str, target: Target) -> Builder:
    """Operands x, ids (a row is one) and result; bias, its stride, rows, the first, of how many."""
    b = Builder(name, target)
    bias, (stride, count, first, of) = (
        b.arg_pointer(own_slot(3)),
        (b.arg(own_slot(3) + i) for i in (1, 2, 3, 4)),
    )

    def row(row: Row) -> None:
        x, id_at, out = row.pointers
        number = row_here(b, id_at, first, of)
        chosen = b.offset(bias, b.mul(number, stride))
        with b.when(b.compare("ult", number, count)):
            over_chunks(b, row.columns, lambda c: c.store(b.fadd(c.load(x), c.load(chosen)), out))
        with b.when(b.compare("uge", number, count)):
            over_chunks(b, row.columns, lambda c: c.store(c.load(x), out))

    over_rows(b, 3, row)
    return b


def clear_absent(name: str, target: Target) -> Builder:
    """Operands ids (a row is one) and result; rows of a table, the first of them, of how many.

    Rows of the result are set to 0 of which the row of the table is elsewhere.
    """
    b = Builder(name, target)
    count, first, of = (b.arg(own_slot(2) + i) for i in range(3))

    def row(row: Row) -> None:
        number = row_here(b, row.pointers[0], first, of)
        with b.when(b.compare("uge", number, count)):
            over_chunks(
                b,
                row.columns,
                lambda c: c.store(b.zero(vector_of(c.lanes, "float")), row.pointers[1]),
            )

    over_rows(b, 2, row)
    return b


def rope_table(name: str, target: Target) -> Builder:
    """Operands positions (a row is one) and result; then five arguments.

    They are frequencies (f64), factors or 0, magnitude (f64), addresses of cos and sin. A row of
    the result holds ``columns`` cosines and as many sines, computed in f64: at far positions an f32
    angle is off by whole degrees.
    """
    b = Builder(name, target)
    own = own_slot(2)
    inverse, factors, cos, sin = (b.arg_pointer(own + i) for i in (0, 1, 3, 4))
    magnitude = b.load("double", b.offset(b.parameter("args"), 8 * (own + 2)), 8)
    has_factors = b.compare("ne", factors, Value("null", "ptr"))

    def row(row: Row) -> None:
        position = b.cast("sitofp", b.load("i32", row.pointers[0], 4), "double")
        with b.loop(0, row.columns) as pair:
            divisor = b.var(Value("1.0", "double"))
            b.set(divisor, Value("1.0", "double"))
            with b.when(has_factors):
                factor = b.load("float", b.offset(factors, b.mul(pair, 4)), 4)
                b.set(divisor, b.cast("fpext", factor, "double"))
            frequency = b.load("double", b.offset(inverse, b.mul(pair, 8)), 8)
            angle = b.value("double", f"fdiv {frequency}, {b.get(divisor).text}")
            angle = b.value("double", f"fmul {position}, {angle.text}")
            for i, function in enumerate((cos, sin)):
                turned = b.call("double", function, angle)
                scaled = b.value("double", f"fmul {turned}, {magnitude.text}")
                place = b.add(b.mul(row.columns, i), pair)
                out = b.offset(row.pointers[1], b.mul(place, 4))
                b.store(b.cast("fptrunc", scaled, "float"), out, 4)

    over_rows(b, 2, row)
    return b


def rope(name: str, target: Target, *, halves: bool) -> Builder:
    """Operands x, table and result; elements of a row. Columns are pairs.

    ``halves`` pairs element i with i + pairs, otherwise 2i with 2i + 1.
    """
    b = Builder(name, target)
    total = b.arg(own_slot(3))

    def row(row: Row) -> None:
        x, table, out = row.pointers
        pairs = row.columns
        sines = b.offset(table, b.mul(pairs, 4))

        def turn(pair: Value, width: int) -> None:
            at = b.mul(pair, 4)
            vector = vector_of(width, "float")
            c, s = (b.load(vector, b.offset(p, at), 4) for p in (table, sines))
            if halves:
                far = b.add(b.mul(pairs, 4), at)
                a, d = (b.load(vector, b.offset(x, place), 4) for place in (at, far))
            elif width == 1:
                a, d = (b.load(vector, b.offset(x, b.add(b.mul(at, 2), i)), 4) for i in (0, 4))
            else:
                both = b.load(vector_of(2 * width, "float"), b.offset(x, b.mul(at, 2)), 4)
                a, d = (b.shuffle(both, None, range(i, 2 * width, 2)) for i in (0, 1))
            first = b.fsub(b.fmul(a, c), b.fmul(d, s))
            second = b.fadd(b.fmul(d, c), b.fmul(a, s))
            if halves:
                b.store(first, b.offset(out, at), 4)
                b.store(second, b.offset(out, far), 4)
            elif width == 1:
                b.store(first, b.offset(out, b.mul(at, 2)), 4)
                b.store(second, b.offset(out, b.add(b.mul(at, 2), 4)), 4)
            else:
                mixed = [k for i in range(width) for k in (i, width + i)]
                b.store(b.shuffle(first, second, mixed), b.offset(out, b.mul(at, 2)), 4)

        over_widths(b, pairs, turn)
        with b.loop(b.mul(pairs, 2), total) as column:
            by = b.mul(column, 4)
            b.store(b.load("float", b.offset(x, by), 4), b.offset(out, by), 4)

    over_rows(b, 3, row)
    return b
