"""Steps of drawing that make chains of nodes which a device may compile as one.

A chain is drawn with everything that a pattern leaves open: types, broadcasting, which operand it
is, other shapes in between, caches in f16, batches, and nodes of other chains in the middle. What
stays inside a chain is mostly not offered to later steps, so most chains can be fused.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ggsched.ir.dtype import BOOL, F32
from ggsched.ir.ops import broadcasts_to
from ggsched.ir.tensor import Tensor
from ggsched_testing.generators.graph_gen import GraphGenerator
from ggsched_testing.generators.graph_gen_ops import STEPS, part_of_rows
from ggsched_testing.generators.values import LeafRule

Chain = Callable[[GraphGenerator], tuple[int, ...]]
"""Adds the nodes of a pattern; returns their ids in the order of the pattern, or nothing."""

OAI_LIMIT: Final = 7.0
"""Default of ``swiglu_oai``."""

_BETWEEN: Final = ("scale", "add", "mul_mat", "set_rows", "silu", "cpy")


def _hide(d: GraphGenerator, t: Tensor) -> None:
    """Keep a result from later steps, four times out of five."""
    if d.number(0, 4) < 4:
        d.floats[:] = [f for f in d.floats if f is not t]


def _between(d: GraphGenerator) -> None:
    """Add a node in the middle of a chain, every third time."""
    if d.number(0, 2) == 2:
        d.pick(STEPS[d.pick(_BETWEEN)])(d)


def _ids(d: GraphGenerator, *made: Tensor | None) -> tuple[int, ...]:
    numbers = {t.id: i for i, t in enumerate(d.results)}
    return tuple(numbers[t.id] for t in made if t is not None) if all(made) else ()


def _norm_and_weight(d: GraphGenerator, op: str = "rms_norm") -> tuple[int, ...]:
    x, eps, steps = d.f32(), d.pick((1.0, 0.25)), 1 + (op == "norm")
    mag = min(x.shape[-1] ** 0.5, steps * d.mag(x) / eps**0.5 * 2)
    err = steps * (2 * d.err(x) / eps**0.5 + 4 * d.mag(x)) + 4 * mag
    normed = d.emit(op, x, mag=mag, err=err, eps=eps)
    if normed is None:
        return ()
    _hide(d, normed)
    _between(d)
    return _ids(d, normed, _joined(d, "mul", normed))


def _norm_weight_and_bias(d: GraphGenerator) -> tuple[int, ...]:
    nodes = _norm_and_weight(d, "norm")
    if not nodes:
        return ()
    _hide(d, scaled := d.results[nodes[-1]])
    _between(d)
    return (*nodes, *last) if (last := _ids(d, _joined(d, "add", scaled))) else ()


def _gated_norm(d: GraphGenerator) -> tuple[int, ...]:
    """A norm with its weight, times SiLU of a gate."""
    nodes = _norm_and_weight(d)
    if not nodes:
        return ()
    normed = d.results[nodes[-1]]
    _hide(d, normed)
    gate = d.f32(
        lambda t: t.shape == normed.shape and t.storage != normed.storage, lambda: normed.shape
    )
    _between(d)
    return (*nodes, *last) if (last := _swiglu(d, gate, normed)) else ()


def _joined(d: GraphGenerator, op: str, t: Tensor, *shapes: tuple[int, ...]) -> Tensor | None:
    """Add or multiply by something that broadcasts, or the other way round."""
    other = d.f32(
        lambda o: o.storage != t.storage and broadcasts_to(o.shape, t.shape),
        lambda: d.pick((*shapes, t.shape[-1:], t.shape)),
    )
    operands = (other, t) if other.shape == t.shape and d.flip() else (t, other)
    a, b = d.mag(t), d.mag(other)
    mag = a * b if op == "mul" else a + b
    err = (d.err(t) * b + d.err(other) * a) if op == "mul" else d.err(t) + d.err(other)
    return d.emit(op, *operands, mag=mag, err=err + mag)


def _product(
    d: GraphGenerator, op: str, w: Tensor, x: Tensor, *ids: Tensor, **part: int
) -> Tensor | None:
    k, size = x.shape[-1], d.mag(w) * d.mag(x)
    slope = d.err(w) * d.mag(x) + d.err(x) * d.mag(w) + size
    return d.emit(op, w, x, *ids, mag=k * size, err=k**0.5 * slope + k * size, **part)


def _vectors(d: GraphGenerator) -> Tensor:
    """Return what is multiplied: mostly a row or two, as when decoding, sometimes in batches."""
    return d.f32(
        lambda t: len(t.shape) >= 2 and t.shape[-1] >= 1,
        lambda: (*d.pick(((), (), (2,), (2, 2))), d.pick((1, 2, 1, 5)), d.pick((4, 32, 64, 3))),
    )


def _weight(d: GraphGenerator, x: Tensor, columns: int) -> Tensor:
    return d.matrix((columns, x.shape[-1]))


def _product_and_sum(d: GraphGenerator) -> tuple[int, ...]:
    x = _vectors(d)
    made = _product(d, "mul_mat", _weight(d, x, d.pick((4, 8, 33, 1, 3))), x)
    if made is None:
        return ()
    _hide(d, made)
    _between(d)
    return _ids(d, made, _joined(d, "add", made))


def _product_and_sums(d: GraphGenerator) -> tuple[int, ...]:
    nodes = _product_and_sum(d)
    if not nodes:
        return ()
    made = d.results[nodes[-1]]
    _hide(d, made)
    _between(d)
    return (*nodes, *last) if (last := _ids(d, _joined(d, "add", made, made.shape))) else ()


def _gate(d: GraphGenerator, gate: Tensor | None, up: Tensor | None) -> tuple[int, ...]:
    if gate is None or up is None:
        return ()
    _hide(d, gate)
    _hide(d, up)
    _between(d)
    last = _swiglu(d, gate, up)
    return (*_ids(d, gate, up), *last) if last else ()


def _swiglu(d: GraphGenerator, gate: Tensor, up: Tensor) -> tuple[int, ...]:
    mg, mu = d.mag(gate), d.mag(up)
    mag = mg * (mu + 1)
    err = 1.5 * d.err(gate) * (mu + 1) + d.err(up) * mg + 8 * mag
    return _ids(d, d.emit("swiglu", gate, up, mag=mag, err=err))


def _gated(d: GraphGenerator) -> tuple[int, ...]:
    x, columns = _vectors(d), d.pick((4, 8, 33, 1, 3))
    first = _product(d, "mul_mat", _weight(d, x, columns), x)
    _between(d)
    second = _product(d, "mul_mat", _weight(d, x, columns), x)
    return _gate(d, *((first, second) if d.flip() else (second, first)))


def _expert_rows(d: GraphGenerator) -> tuple[Tensor, Tensor, int, dict[str, int]]:
    """Return x (T, 1 or U, k), ids (T, U), the number of experts, and which of all these are."""
    tokens, used, experts = d.number(1, 3), d.number(1, 2), d.number(1, 4)
    x = d.leaf((tokens, d.pick((1, used)), d.pick((4, 32, 64))))
    part = part_of_rows(d, experts)
    return x, d.ids_for((tokens, used), part.get("of", experts)), experts, part


def _experts_and_sum(d: GraphGenerator) -> tuple[int, ...]:
    x, ids, experts, part = _expert_rows(d)
    return _ids(d, *_biased(d, x, ids, part, d.leaf((experts, d.pick((4, 8, 5))))))


def _biased(
    d: GraphGenerator, x: Tensor, ids: Tensor, part: dict[str, int], bias: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Add a product with experts and its sum with a bias."""
    made = _product(d, "mul_mat_id", d.matrix((*bias.shape, x.shape[-1])), x, ids, **part)
    if made is None:
        return None, None
    _hide(d, made)
    _between(d)
    mag = d.mag(made) + d.mag(bias)
    err = d.err(made) + d.err(bias) + mag
    return made, d.emit("add_id", made, bias, ids, mag=mag, err=err, **part)


def _experts_and_weights(d: GraphGenerator) -> tuple[int, ...]:
    x, ids, experts, part = _expert_rows(d)
    weight = d.matrix((experts, d.pick((4, 8, 5)), x.shape[-1]))
    made = _product(d, "mul_mat_id", weight, x, ids, **part)
    if made is None:
        return ()
    _hide(d, made)
    _between(d)
    return _ids(d, made, _joined(d, "mul", made, (*ids.shape, 1)))


def _weighted_experts(d: GraphGenerator) -> tuple[int, ...]:
    x, ids, experts, part = _expert_rows(d)
    made, summed = _biased(d, x, ids, part, d.leaf((experts, d.pick((4, 8, 5)))))
    if summed is None:
        return ()
    _hide(d, summed)
    _between(d)
    return _ids(d, made, summed, _joined(d, "mul", summed, (*ids.shape, 1)))


def _gated_experts_with_biases(d: GraphGenerator) -> tuple[int, ...]:
    x, ids, experts, part = _expert_rows(d)
    shape = experts, d.pick((4, 8, 5))
    # Exact ones: what two sides make of states would be too wild for most gates.
    sides = [_biased(d, x, ids, part, d.special_leaf("ranked", shape)) for _ in range(2)]
    (a, gate), (b, up) = reversed(sides) if d.flip() else sides
    if gate is None or up is None:
        return ()
    _hide(d, gate)
    _hide(d, up)
    _between(d)
    mg, mu = min(d.mag(gate), OAI_LIMIT), min(d.mag(up), OAI_LIMIT)
    mag = mg * (mu + 1)
    err = 1.5 * d.err(gate) * (mu + 1) + d.err(up) * mg + 8 * mag
    return _ids(d, a, gate, b, up, d.emit("swiglu_oai", gate, up, mag=mag, err=err))


def _sum_and_rest(d: GraphGenerator) -> tuple[int, ...]:
    """Rows added up, mostly of experts, as these lie, and what was there before."""
    rows, n, count = d.pick((1, 2, 5)), d.pick((4, 33, 64, 1)), d.pick((4, 2, 8, 1, 33))
    if d.number(0, 3) < 3:
        x = d.g.permute(d.leaf((rows, count, n)), 0, 2, 1)
    else:
        x = d.leaf(d.pick(((rows, n, count), (2, rows, n, count), (n, count))))
    mag = count * d.mag(x)
    made = d.emit("sum_rows", x, mag=mag, err=count**0.5 * d.err(x) + mag)
    if made is None:
        return ()
    _hide(d, made)
    _between(d)
    shape = d.pick((x.shape[:-1], x.shape[:-1], made.shape))
    flat = d.g.reshape(made, *shape)
    return _ids(d, made, _joined(d, "add", flat, shape))


def _two_sums(d: GraphGenerator) -> tuple[int, ...]:
    """Two addends and a third one, as of two devices and what was there before."""
    shape = (d.pick((1, 2, 5)), d.pick((4, 64, 132, 33)))
    t = d.f32(lambda t: len(t.shape) >= 2 and t.shape[-1] >= 1, lambda: shape)
    made = _joined(d, "add", t, t.shape)
    if made is None:
        return ()
    _hide(d, made)
    _between(d)
    return _ids(d, made, _joined(d, "add", made, made.shape))


def _gated_experts(d: GraphGenerator) -> tuple[int, ...]:
    x, ids, experts, part = _expert_rows(d)
    shape = (experts, d.pick((4, 8, 5)), x.shape[-1])
    gate = _product(d, "mul_mat_id", d.matrix(shape), x, ids, **part)
    up = _product(d, "mul_mat_id", d.matrix(shape), x, ids, **part)
    return _gate(d, gate, up)


def _rope_into_cache(d: GraphGenerator) -> tuple[int, ...]:
    tokens, heads, width = d.pick((1, 2, 3)), d.number(1, 3), d.pick((4, 8))
    x = d.f32(lambda t: t.shape == (tokens, heads, width), lambda: (tokens, heads, width))
    operands = [x, d.ids_for((tokens,), 32)]
    params: dict[str, Any] = {"pairing": d.pick(("adjacent", "halves"))}
    params["n_dims"] = 2 * d.number(1, width // 2)
    if d.flip():
        operands.append(d.special_leaf("positive", (int(params["n_dims"]) // 2,)))
        params["freq_factors"] = True
    mag, err = 1.5 * d.mag(x), 1.5 * d.err(x) + 160 * d.mag(x)
    turned = d.emit("rope", *operands, mag=mag, err=err, **params)
    if turned is None:
        return ()
    _hide(d, turned)
    _between(d)
    rows = tokens + d.number(0, 3)
    # Only exact numbers are rounded to f16 in drawn graphs, and rotated ones are not exact.
    cache = d.leaf((rows, heads * width), F32)
    flat = d.g.reshape(turned, tokens, heads * width)
    ids = d.ids_for((tokens,), rows, distinct=True)
    return _ids(d, turned, d.emit("set_rows", cache, flat, ids, mag=mag, err=err))


def _attention_in_batches(*behind: str) -> Chain:
    """Two products around a softmax, and what chooses rows of the result or joins heads."""

    def chain(d: GraphGenerator) -> tuple[int, ...]:
        lead = d.pick(((2,), (1,), (2, 3), (1, 2))[2 * ("cont" in behind) :])
        tokens, rows = d.pick((5, 1, 33)), d.pick((9, 1, 40))
        width, across = d.pick((8, 4, 32, 5)), d.pick((8, 3, 16))
        q = d.f32(lambda t: t.shape == (*lead, tokens, width), lambda: (*lead, tokens, width))
        scores = _product(d, "mul_mat", d.matrix((*lead, rows, width)), q)
        scale = d.pick((0.25, 1.0))
        if scores is None or scale * d.mag(scores) > 64:
            return ()
        _hide(d, scores)
        shapes = (tokens, rows), (*lead[:-1], 1, tokens, rows), (rows,)
        masks = [d.special_leaf("mask", d.pick(shapes))] if d.flip() else []
        err = d.err(scores) + 4 * d.mag(scores) + 8
        params = {"scale": scale, "mask": bool(masks)}
        shares = d.emit("soft_max", scores, *masks, mag=1.0, err=err, **params)
        v = d.leaf((*lead, rows, across))
        if shares is None:
            return ()
        _hide(d, shares)
        columns = d.g.transpose(v)
        # Shares add up to one at most, so the errors of a sum do not grow with the number of rows.
        mag, err = d.mag(v), d.err(v) + d.mag(v) * (err + 8)
        made: list[Tensor | None] = [d.emit("mul_mat", columns, shares, mag=mag, err=err)]
        for op in behind:
            if (last := made[-1]) is None:
                return ()
            _hide(d, last)
            if op == "cont":
                made.append(d.emit(op, d.g.permute(last, 0, 2, 1, 3), mag=mag, err=err))
                continue
            other, seen = d.leaf((1,)), f"seen{len(d.rules)}"
            d.rules[seen] = LeafRule()
            condition = d.g.input(seen, (*lead[:-1], 1, tokens, 1), BOOL)
            mag, err = max(mag, d.mag(other)), max(err, d.err(other))
            made.append(d.emit(op, condition, last, other, mag=mag, err=err))
        return _ids(d, scores, shares, *made)

    return chain


CHAINS: Final[Mapping[str, Chain]] = {
    "rms_norm+mul": _norm_and_weight,
    "rms_norm+mul+swiglu": _gated_norm,
    "norm+mul+add": _norm_weight_and_bias,
    "mul_mat+add": _product_and_sum,
    "mul_mat+add+add": _product_and_sums,
    "mul_mat_id+mul": _experts_and_weights,
    "mul_mat_id+add_id": _experts_and_sum,
    "mul_mat_id+add_id+mul": _weighted_experts,
    "mul_mat*2+swiglu": _gated,
    "mul_mat_id*2+swiglu": _gated_experts,
    "(mul_mat_id+add_id)*2+swiglu_oai": _gated_experts_with_biases,
    "sum_rows+add": _sum_and_rest,
    "add+add": _two_sums,
    "rope+set_rows": _rope_into_cache,
    "mul_mat+soft_max+mul_mat": _attention_in_batches(),
    "mul_mat+soft_max+mul_mat+cont": _attention_in_batches("cont"),
    "mul_mat+soft_max+mul_mat+nd.where": _attention_in_batches("nd.where"),
    "mul_mat+soft_max+mul_mat+nd.where+cont": _attention_in_batches("nd.where", "cont"),
}
"""By pattern."""

__all__ = ["CHAINS", "Chain"]
