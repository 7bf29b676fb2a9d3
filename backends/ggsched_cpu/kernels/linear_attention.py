"""Linear attention: a matrix for each slot and head that every token of the slot updates.

A part is one matrix, which stays in the cache of a core while the part goes through the tokens.
Each token takes two passes over some columns at a time: what its key reads, then the update and
what its query reads. A pass multiplies by the decay as it goes.
"""

from collections.abc import Sequence
from typing import Final

from ggsched_cpu.kernels.emit import Builder, Value, f32
from ggsched_cpu.kernels.target import Target
from ggsched_cpu.kernels.vectors import Chunk, exp, over_chunks

SLOTS: Final = (
    "state", "q", "k", "v", "decay", "beta", "slots", "positions", "out", "after",
    "count", "heads", "width", "across", "tokens", "share", "groups", "tiled",
    "state_slot", "state_head", "state_row", "qk_token", "qk_group", "v_token", "v_head",
    "decay_token", "decay_head", "beta_token", "beta_head", "scale",
)  # fmt: skip
"""Arguments; strides are in bytes, those of q are those of k. Slots and positions are adjacent."""

POINTERS: Final = 10
WIDE: Final = 4
"""Vectors of columns at a time, so that a sum does not wait for the previous product."""


def linear_attention(name: str, target: Target, *, beta: bool) -> Builder:
    """Return the kernel, with the delta rule or without it."""
    b = Builder(name, target)
    at = {n: b.arg_pointer(i) for i, n in enumerate(SLOTS[:POINTERS])}
    arg = {n: b.arg(i) for i, n in enumerate(SLOTS[:-1]) if i >= POINTERS}
    scale = b.arg_f32(SLOTS.index("scale"))
    part = b.parameter("part")
    slot, head = b.udiv(part, arg["heads"]), b.urem(part, arg["heads"])
    is_tiled = b.compare("ne", arg["tiled"], 0)
    group = b.select(is_tiled, b.urem(head, arg["groups"]), b.udiv(head, arg["share"]))
    row_nbytes = b.mul(arg["across"], 4)
    matrix = b.offset(at["after"], b.mul(part, b.mul(arg["width"], row_nbytes)))
    before = b.offset(at["state"], b.mul(slot, arg["state_slot"]))
    before = b.offset(before, b.mul(head, arg["state_head"]))

    def row(start: Value, n: Value, step: Value) -> Value:
        return b.offset(start, b.mul(n, step))

    with b.loop(0, arg["width"]) as n:
        source, copy = row(before, n, arg["state_row"]), row(matrix, n, row_nbytes)

        def keep(c: Chunk, source: Value = source, copy: Value = copy) -> None:
            c.store(c.load(source), copy)

        over_chunks(b, arg["across"], keep)
    with b.loop(0, arg["tokens"]) as t:
        id_ = b.cast("zext", b.load("i32", row(at["slots"], t, b.same(t, 4)), 4), "i64")
        with b.when(b.compare("uge", id_, arg["count"])):
            b.leave(b.add(id_, 1))
        with b.when(b.compare("eq", id_, slot)):
            position = b.load("i32", row(at["positions"], t, b.same(t, 4)), 4)
            with b.when(b.compare("eq", position, 0)), b.loop(0, arg["width"]) as n:
                cleared = row(matrix, n, row_nbytes)

                def clear(c: Chunk, cleared: Value = cleared) -> None:
                    c.store(b.zero(c.load(cleared).type), cleared)

                over_chunks(b, arg["across"], clear)

            def number(name: str, t: Value = t) -> Value:
                place = row(at[name], t, arg[f"{name}_token"])
                return b.load("float", row(place, head, arg[f"{name}_head"]), 4)

            def vectors(name: str, t: Value = t) -> Value:
                return row(row(at[name], t, arg["qk_token"]), group, arg["qk_group"])

            fade = b.extract(exp(b, b.splat(number("decay"), target.lanes)), 0)
            strength = number("beta") if beta else None
            values = row(row(at["v"], t, arg["v_token"]), head, arg["v_head"])
            out = row(at["out"], b.add(b.mul(t, arg["heads"]), head), row_nbytes)
            token = _Token(b, arg, row_nbytes, vectors("q"), vectors("k"), fade, strength, scale)
            step = WIDE * target.lanes
            whole = b.binary("and", arg["across"], -step)
            with b.loop(0, whole, step) as column:
                chunks = [
                    Chunk(b, b.add(column, i * target.lanes), target.lanes, None)
                    for i in range(WIDE)
                ]
                token.update(chunks, matrix, values, out)
            behind = [b.offset(p, b.mul(whole, 4)) for p in (matrix, values, out)]
            over_chunks(b, b.sub(arg["across"], whole), lambda c: token.update([c], *behind))
    return b


class _Token:
    """Writes what one token does to columns of a matrix."""

    def __init__(
        self,
        b: Builder,
        arg: dict[str, Value],
        row_nbytes: Value,
        q: Value,
        k: Value,
        fade: Value,
        strength: Value | None,
        scale: Value,
    ) -> None:
        self.b, self.arg, self.row_nbytes = b, arg, row_nbytes
        self.q, self.k, self.fade, self.strength, self.scale = q, k, fade, strength, scale

    def update(self, chunks: Sequence[Chunk], matrix: Value, values: Value, out: Value) -> None:
        """Update some columns, and write what the query reads from them."""
        b = self.b
        lanes = chunks[0].lanes
        fade = b.splat(self.fade, lanes)
        nothing = b.splat(f32(0.0), lanes)
        updates = [c.load(values) for c in chunks]
        if self.strength is not None:
            found = [b.var(nothing) for _ in chunks]
            with b.loop(0, self.arg["width"]) as n:
                place, key = self._row(matrix, n), self._number(self.k, n, lanes)
                for c, sum_ in zip(chunks, found, strict=True):
                    b.set(sum_, b.fma(b.fmul(c.load(place), fade), key, b.get(sum_)))
            strength = b.splat(self.strength, lanes)
            updates = [
                b.fmul(b.fsub(v, b.get(sum_)), strength)
                for v, sum_ in zip(updates, found, strict=True)
            ]
        read = [b.var(nothing) for _ in chunks]
        with b.loop(0, self.arg["width"]) as n:
            place, key = self._row(matrix, n), self._number(self.k, n, lanes)
            query = self._number(self.q, n, lanes)
            for c, update, sum_ in zip(chunks, updates, read, strict=True):
                new = b.fma(key, update, b.fmul(c.load(place), fade))
                c.store(new, place)
                b.set(sum_, b.fma(query, new, b.get(sum_)))
        scale = b.splat(self.scale, lanes)
        for c, sum_ in zip(chunks, read, strict=True):
            c.store(b.fmul(b.get(sum_), scale), out)

    def _row(self, matrix: Value, n: Value) -> Value:
        return self.b.offset(matrix, self.b.mul(n, self.row_nbytes))

    def _number(self, vector: Value, n: Value, lanes: int) -> Value:
        place = self.b.offset(vector, self.b.mul(n, 4))
        return self.b.splat(self.b.load("float", place, 4), lanes)
