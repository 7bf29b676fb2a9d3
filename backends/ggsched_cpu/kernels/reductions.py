"""Kernels that reduce rows: norms, softmax, sums, the largest elements."""

import math
from collections.abc import Callable
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, f32, i64, vector_of
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import (
    Chunk,
    Row,
    exp,
    operand_slot,
    over_chunks,
    over_rows,
    own_slot,
)


def _joined(
    b: Builder, columns: Value, join: Callable[[Chunk, Value], Value], start: float = 0.0
) -> Value:
    """Return a vector: what a function makes of each chunk and of what it made before."""
    found = b.var(b.same(Value("", vector_of(b.target.lanes, "float")), start))
    over_chunks(b, columns, lambda c: b.set(found, join(c, b.get(found))))
    return b.get(found)


def _length(b: Builder, columns: Value) -> Value:
    return b.cast("uitofp", columns, "float")


def rms_norm(name: str, target: Target, *, weighted: bool) -> Builder:
    """Operands x and, if ``weighted``, a factor for each element; result; eps."""
    b = Builder(name, target)
    operands = 3 if weighted else 2
    eps = b.arg_f32(own_slot(operands))
    lanes = target.lanes

    def row(row: Row) -> None:
        x, out = row.pointers[0], row.pointers[-1]

        def square(c: Chunk, total: Value) -> Value:
            v = c.load(x)
            return b.fma(v, v, total)

        mean = b.fdiv(b.sum(_joined(b, row.columns, square)), _length(b, row.columns))
        root = b.intrinsic("sqrt", b.fadd(mean, eps))
        factor = b.splat(b.fdiv(f32(1.0), root), lanes)

        def scale(c: Chunk) -> None:
            v = b.fmul(c.load(x), factor)
            c.store(b.fmul(v, c.load(row.pointers[1])) if weighted else v, out)

        over_chunks(b, row.columns, scale)

    over_rows(b, operands, row)
    return b


def norm(name: str, target: Target) -> Builder:
    """Operand x; result; eps."""
    b = Builder(name, target)
    eps = b.arg_f32(own_slot(2))
    lanes = target.lanes

    def row(row: Row) -> None:
        x, out = row.pointers
        length = _length(b, row.columns)
        total = _joined(b, row.columns, lambda c, total: b.fadd(total, c.load(x)))
        mean = b.splat(b.fdiv(b.sum(total), length), lanes)

        def square(c: Chunk, squares: Value) -> Value:
            v = c.keep(b.fsub(c.load(x), mean), 0.0)
            return b.fma(v, v, squares)

        variance = b.fdiv(b.sum(_joined(b, row.columns, square)), length)
        root = b.intrinsic("sqrt", b.fadd(variance, eps))
        factor = b.splat(b.fdiv(f32(1.0), root), lanes)

        def scale(c: Chunk) -> None:
            c.store(b.fmul(b.fsub(c.load(x), mean), factor), out)

        over_chunks(b, row.columns, scale)

    over_rows(b, 2, row)
    return b


def soft_max(name: str, target: Target, *, masked: bool, sinks: bool) -> Builder:
    """Operands x, mask if there is one, sinks if there are (a row is one number); result; scale.

    A row is NaN where one of it is, where the largest is infinite, and where all are -inf.
    """
    b = Builder(name, target)
    operands = 2 + masked + sinks
    lanes = target.lanes
    factor = b.splat(b.arg_f32(own_slot(operands)), lanes)

    def row(row: Row) -> None:
        x, out = row.pointers[0], row.pointers[-1]

        def scores(c: Chunk) -> Value:
            v = b.fmul(c.load(x), factor)
            return b.fadd(v, c.load(row.pointers[1])) if masked else v

        def look(c: Chunk, top: Value) -> Value:
            v = scores(c)
            c.store(v, out)
            return b.fmax(top, c.keep(v, -math.inf))

        most = b.largest(_joined(b, row.columns, look, -math.inf))
        if sinks:
            sink = b.load("float", row.pointers[1 + masked], 4)
            most = b.fmax(most, sink)
        wide = b.splat(most, lanes)

        def power(c: Chunk, total: Value) -> Value:
            v = exp(b, b.fsub(c.load(out), wide))
            c.store(v, out)
            return b.fadd(total, c.keep(v, 0.0))

        whole = b.sum(_joined(b, row.columns, power))
        if sinks:
            gone = exp(b, b.splat(b.fsub(sink, most), lanes))
            whole = b.fadd(whole, b.extract(gone, 0))
        share = b.splat(b.fdiv(f32(1.0), whole), lanes)

        def divide(c: Chunk) -> None:
            c.store(b.fmul(c.load(out), share), out)

        over_chunks(b, row.columns, divide)

    over_rows(b, operands, row)
    return b


def log_soft_max(name: str, target: Target) -> Builder:
    """Operand x; result; address of ``logf``. The logarithm of a softmax."""
    b = Builder(name, target)
    log = b.arg_pointer(own_slot(2))

    def row(row: Row) -> None:
        x, out = row.pointers

        def look(c: Chunk, top: Value) -> Value:
            return b.fmax(top, c.keep(c.load(x), -math.inf))

        most = b.splat(b.largest(_joined(b, row.columns, look, -math.inf)), target.lanes)

        def add(c: Chunk, total: Value) -> Value:
            return b.fadd(total, c.keep(exp(b, b.fsub(c.load(x), most)), 0.0))

        total = b.sum(_joined(b, row.columns, add))
        size = b.splat(b.call("float", log, total), target.lanes)
        over_chunks(b, row.columns, lambda c: c.store(b.fsub(b.fsub(c.load(x), most), size), out))

    over_rows(b, 2, row)
    return b


def soft_max_across(name: str, target: Target) -> Builder:
    """Operands x and result; elements of a softmax, and bytes from one to the next in both.

    Each element of a row is the first of one. As numpy's, it is NaN where one is, and where the
    largest is infinite.
    """
    b = Builder(name, target)
    count, x_step, out_step = (b.arg(own_slot(2) + i) for i in range(3))
    type_ = vector_of(target.lanes, "float")

    def row(row: Row) -> None:
        x, out = row.pointers

        def chunk(c: Chunk) -> None:
            top, total = b.var(c.load(x)), b.var(b.zero(type_))
            with b.loop(1, count) as k:
                seen = c.load(b.offset(x, b.mul(k, x_step)))
                b.set(top, b.intrinsic("maximum", b.get(top), seen))
            with b.loop(0, count) as k:
                seen = c.load(b.offset(x, b.mul(k, x_step)))
                power = exp(b, b.fsub(seen, b.get(top)))
                c.store(power, b.offset(out, b.mul(k, out_step)))
                b.set(total, b.fadd(b.get(total), power))
            with b.loop(0, count) as k:
                place = b.offset(out, b.mul(k, out_step))
                c.store(b.fdiv(c.load(place), b.get(total)), place)

        over_chunks(b, row.columns, chunk)

    over_rows(b, 2, row)
    return b


def _to_one(
    name: str,
    target: Target,
    join: Callable[[Builder, Value, Chunk, Value], Value],
    finish: Callable[[Builder, Value, Value], Value],
    start: float = 0.0,
) -> Builder:
    """Operand x; result, a row of which is one number.

    ``join`` takes what was found, a chunk and x; ``finish`` what was found in a row, and columns.
    """
    b = Builder(name, target)

    def row(row: Row) -> None:
        x, out = row.pointers
        found = _joined(b, row.columns, lambda c, found: join(b, found, c, x), start)
        b.store(finish(b, found, row.columns), out, 4)

    over_rows(b, 2, row)
    return b


def _add(b: Builder, total: Value, c: Chunk, x: Value) -> Value:
    return b.fadd(total, c.load(x))


def sum_rows(name: str, target: Target) -> Builder:
    """Operand x; result, a row of which is one number."""
    return _to_one(name, target, _add, lambda b, total, _: b.sum(total))


def mean_rows(name: str, target: Target) -> Builder:
    """Operand x; result, a row of which is one number."""
    return _to_one(name, target, _add, lambda b, v, n: b.fdiv(b.sum(v), _length(b, n)))


def product_of_rows(name: str, target: Target) -> Builder:
    """Operand x; result, a row of which is one number."""

    def join(b: Builder, total: Value, c: Chunk, x: Value) -> Value:
        return b.fmul(total, c.keep(c.load(x), 1.0))

    return _to_one(name, target, join, lambda b, total, _: b.product(total), 1.0)


def extreme_of_rows(name: str, target: Target, *, how: str) -> Builder:
    """Operand x; result, a row of which is the largest element, or NaN where there is one.

    Args:
        name: Of the kernel.
        target: The processor.
        how: ``maximum``, or ``minimum`` for the smallest element.
    """
    start = -math.inf if how == "maximum" else math.inf

    def join(b: Builder, most: Value, c: Chunk, x: Value) -> Value:
        return b.intrinsic(how, most, c.keep(c.load(x), start))

    def finish(b: Builder, most: Value, _: Value) -> Value:
        return b.intrinsic(f"vector.reduce.f{how}", most, type_="float")

    return _to_one(name, target, join, finish, start)


def scan(name: str, target: Target, how: str, element: str) -> Builder:
    """Operand and result, of rows of elements any distance apart: totals of those so far.

    Args:
        name: Of the kernel.
        target: The processor.
        how: ``add`` or ``mul``.
        element: ``float``, ``i32`` or ``i64``.
    """
    b = Builder(name, target)
    steps = [b.arg(operand_slot(i) + 1) for i in range(2)]
    start = int(how == "mul") or (-0.0 if element == "float" else 0)
    total = b.var(b.same(b.zero(element) if element == "float" else Value("0", element), start))
    join = getattr(b, "f" * (element == "float") + how)

    def row(row: Row) -> None:
        b.set(total, b.same(b.get(total), start))
        with b.loop(0, row.columns) as column:
            x, out = (
                b.offset(p, b.mul(column, s)) for p, s in zip(row.pointers, steps, strict=True)
            )
            b.set(total, join(b.get(total), b.load(element, x)))
            b.store(b.get(total), out)

    over_rows(b, 2, row)
    return b


def sum_rows_strided(name: str, target: Target) -> Builder:
    """The same for rows whose elements are not adjacent."""
    b = Builder(name, target)
    stride = b.arg(operand_slot(0) + 1)

    def row(row: Row) -> None:
        x, out = row.pointers
        total = b.var(f32(0.0))
        with b.loop(0, row.columns) as column:
            value = b.load("float", b.offset(x, b.mul(column, stride)), 4)
            b.set(total, b.fadd(b.get(total), value))
        b.store(b.get(total), out, 4)

    over_rows(b, 2, row)
    return b


ORDERS: Final = {
    "largest": (0, 2**31 - 1),
    "smallest": (-1, -(2**31)),
    "largest, NaN last": (0, -(2**31)),
}
"""What is xored to keys of ``top_k``, and the key of NaN."""


def top_k(name: str, target: Target, *, wide: bool) -> Builder:
    """Operand x; result (i32, or i64 if wide); k; what orders numbers: see ``ORDERS``.

    The best so far are kept in order, in scratch memory; a vector of numbers that are all worse
    than the last of them takes one comparison. Numbers are compared as integers in the same order;
    equal ones keep theirs.
    """
    b = Builder(name, target)
    k, flip, of_nan = (b.arg(own_slot(2) + i) for i in range(3))
    flip, of_nan = (b.cast("trunc", v, "i32") for v in (flip, of_nan))
    keys, nbytes = b.parameter("scratch"), 8 if wide else 4

    def key(x: Value, column: Value, lanes: int) -> Value:
        v = b.load(vector_of(lanes, "float"), b.offset(x, b.mul(column, 4)), 4)
        bits = b.cast("bitcast", b.fadd(v, 0.0), "i32")
        flipped = b.binary("xor", bits, 0x7FFFFFFF)
        ordered = b.select(b.compare("slt", bits, 0), flipped, bits)
        ordered = b.binary("xor", ordered, b.splat(flip, lanes))
        return b.select(b.compare("uno", v, v), b.splat(of_nan, lanes), ordered)

    def insert(now: Value, column: Value, out: Value, last: Value) -> None:
        """Put a key where those before are not worse; ``last`` is the place that is free."""
        at = b.var(last)
        look, move, end = (b.fresh(n) for n in ("look", "move", "end"))
        b.label(look)
        is_first = b.compare("eq", b.get(at), 0)
        # Beside place 0 nothing is read: the place before it is itself then.
        before = b.sub(b.get(at), b.select(is_first, i64(0), i64(1)))
        other = b.load("i32", b.offset(keys, b.mul(before, 4)), 4)
        stays = b.binary("or", is_first, b.compare("sge", other, now))
        b.line(f"br {stays}, label %{end}, label %{move}")
        b.begin(move)
        b.store(other, b.offset(keys, b.mul(b.get(at), 4)), 4)
        index = b.load(f"i{8 * nbytes}", b.offset(out, b.mul(before, nbytes)), nbytes)
        b.store(index, b.offset(out, b.mul(b.get(at), nbytes)), nbytes)
        b.set(at, before)
        b.line(f"br label %{look}")
        b.begin(end)
        b.store(now, b.offset(keys, b.mul(b.get(at), 4)), 4)
        number = column if wide else b.cast("trunc", column, "i32")
        b.store(number, b.offset(out, b.mul(b.get(at), nbytes)), nbytes)

    def row(row: Row) -> None:
        x, out = row.pointers
        last = b.sub(k, 1)
        lowest = b.offset(keys, b.mul(last, 4))

        def insert_better(column: Value) -> None:
            now = key(x, column, 1)
            with b.when(b.compare("sgt", now, b.load("i32", lowest, 4))):
                insert(now, column, out, last)

        with b.loop(0, k) as column:
            insert(key(x, column, 1), column, out, column)
        lanes = target.lanes
        whole = b.add(k, b.binary("and", b.sub(row.columns, k), -lanes))
        with b.loop(k, whole, lanes) as column:
            least = b.splat(b.load("i32", lowest, 4), lanes)
            better = b.bitcast(b.compare("sgt", key(x, column, lanes), least), f"i{lanes}")
            with b.when(b.compare("ne", better, 0)), b.loop(0, i64(lanes)) as lane:
                insert_better(b.add(column, lane))
        with b.loop(whole, row.columns) as column:
            insert_better(column)

    over_rows(b, 2, row)
    return b
