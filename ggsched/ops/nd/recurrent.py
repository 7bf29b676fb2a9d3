"""LSTM, GRU and simple recurrent networks over a sequence, in one or both directions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from ggsched.ops.elementwise import sigmoid, softplus
from ggsched.ops.nd.declare import FLOATS, Array, nd_op, wide
from ggsched.ops.record import Operand, Param, Shape

_GATES: Final = {"lstm": 4, "gru": 3, "rnn": 1}

Activation = Callable[[Array], Array]

ACTIVATIONS: Final[dict[str, Activation]] = {
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "softplus": softplus,
    "softsign": lambda x: np.asarray(x / (1 + abs(x))),
    "affine": lambda x: x,
    "hardsigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "leakyrelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "thresholdedrelu": lambda x: np.where(x > 1, x, 0),
    "scaledtanh": np.tanh,
}


def _rule(kind: str) -> Callable[..., tuple[str, Shape]]:
    gates = _GATES[kind]

    def rule(
        x: Sequence[Operand],
        directions: str,
        activations: str,
        bias: bool,
        lengths: bool,
        h0: bool,
        **more: Param,
    ) -> tuple[str, Shape]:
        data, w, r = (t.shape for t in x[:3])
        count = {"forward": 1, "reverse": 1, "bidirectional": 2}.get(directions)
        if count is None or len(data) != 3 or len(w) != 3 or len(r) != 3:
            raise ValueError("needs a direction, x (T, B, I), w (D, G, I), r (D, G, H)")
        hidden, batch = r[2], data[1]
        if w != (count, gates * hidden, data[2]) or r != (count, gates * hidden, hidden):
            raise ValueError(f"weights do not have {gates} gates for {count} directions")
        rest = list(x[3:])
        wanted: list[tuple[object, Shape]] = [
            (bias, (count, 2 * gates * hidden)),
            (lengths, (batch,)),
            (h0, (count, batch, hidden)),
            (more.get("c0"), (count, batch, hidden)),
            (more.get("peepholes"), (count, 3 * hidden)),
        ]
        for is_given, shape in wanted:
            if is_given and rest.pop(0).shape != shape:
                raise ValueError(f"an operand does not have shape {shape}")
        names = activations.split(",") if activations else []
        if any(n not in ACTIVATIONS for n in names) or len(names) not in (0, count * _USED[kind]):
            raise ValueError(f"unknown activations {activations!r}")
        states = 2 if kind == "lstm" else 1
        return x[0].dtype.name, (data[0] + states, count, batch, hidden)

    return rule


_USED: Final = {"lstm": 3, "gru": 2, "rnn": 1}
_DEFAULT: Final = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}


def _work(x: Shape, w: Shape, r: Shape, *_: Shape, **__: Param) -> float:
    return 2.0 * x[0] * x[1] * w[0] * w[1] * (w[2] + r[2])


def _sequential(x: Shape, w: Shape, *_: Shape, **__: Param) -> float:
    return float(x[0] * w[0])


def _run(kind: str, x: Array, w: Array, r: Array, *rest: Array, **p: Any) -> Array:
    """Return the outputs (T, D, B, H), then the last hidden state, then an LSTM's cell."""
    kind_of = x.dtype
    x, w, r = wide(x), wide(w), wide(r)
    given = iter(rest)
    steps, batch, _ = x.shape
    count, hidden = w.shape[0], r.shape[2]
    gates = _GATES[kind]
    b = wide(next(given)) if p["bias"] else np.zeros((count, 2 * gates * hidden), x.dtype)
    lengths = next(given) if p["lengths"] else np.full(batch, steps)
    zero = np.zeros((count, batch, hidden), x.dtype)
    h0 = wide(next(given)) if p["h0"] else zero
    c0 = wide(next(given)) if p.get("c0") else zero
    peepholes = wide(next(given)) if p.get("peepholes") else np.zeros((count, 3 * hidden), x.dtype)
    names = p["activations"].split(",") if p["activations"] else _DEFAULT[kind] * count
    used = _USED[kind]
    out = np.zeros((steps + (2 if kind == "lstm" else 1), count, batch, hidden), x.dtype)
    for d in range(count):
        fs = [ACTIVATIONS[n] for n in names[d * used : (d + 1) * used]]
        half = gates * hidden
        first = x @ w[d].T + b[d, :half]
        second = b[d, half:]
        h, c = h0[d], c0[d]
        backward = p["directions"] == "reverse" or d == 1
        for t in range(steps - 1, -1, -1) if backward else range(steps):
            alive = (t < lengths)[:, None]
            if kind == "lstm":
                now, cell = _lstm(first[t] + second, h, c, r[d], peepholes[d], fs, p)
                c = np.where(alive, cell, c)
            elif kind == "gru":
                now = _gru(first[t], second, h, r[d], fs, p)
            else:
                now = fs[0](_cut(first[t] + second + h @ r[d].T, p))
            h = np.where(alive, now, h)
            out[t, d] = np.where(alive, now, 0)
        out[steps, d] = h
        if kind == "lstm":
            out[steps + 1, d] = c
    return out.astype(kind_of)


def _cut(x: Array, p: dict[str, Any]) -> Array:
    limit = p["clip"]
    return np.clip(x, -limit, limit) if limit else x


def _lstm(
    x: Array,
    h: Array,
    c: Array,
    r: Array,
    peepholes: Array,
    fs: Sequence[Activation],
    p: dict[str, Any],
) -> tuple[Array, Array]:
    i, o, f, g = np.split(x + h @ r.T, 4, axis=-1)
    pi, po, pf = np.split(peepholes, 3)
    i = fs[0](_cut(i + pi * c, p))
    f = 1 - i if p["input_forget"] else fs[0](_cut(f + pf * c, p))
    cell = f * c + i * fs[1](_cut(g, p))
    o = fs[0](_cut(o + po * cell, p))
    return o * fs[2](cell), cell


def _gru(
    x: Array, b: Array, h: Array, r: Array, fs: Sequence[Activation], p: dict[str, Any]
) -> Array:
    n = h.shape[-1]
    gates = fs[0](_cut(x[:, : 2 * n] + h @ r[: 2 * n].T + b[: 2 * n], p))
    z, reset = gates[:, :n], gates[:, n:]
    if p["reset_after"]:
        new = x[:, 2 * n :] + reset * (h @ r[2 * n :].T + b[2 * n :])
    else:
        new = x[:, 2 * n :] + (reset * h) @ r[2 * n :].T + b[2 * n :]
    return np.asarray((1 - z) * fs[1](_cut(new, p)) + z * h)


_SHARED: Final[dict[str, Param]] = {
    "directions": "forward",
    "activations": "",
    "clip": 0.0,
    "bias": False,
    "lengths": False,
    "h0": False,
}


_OPERANDS: Final = ("x", "w", "r", "bias?", "lengths?", "h0?")
_recurrent = partial(
    nd_op, types=FLOATS, family="recurrent", flops=_work, sequential=_sequential, shared=_SHARED
)


@_recurrent(
    "lstm",
    *_OPERANDS,
    "c0?",
    "peepholes?",
    rule=_rule("lstm"),
    c0=False,
    peepholes=False,
    input_forget=False,
)
def lstm(*x: Array, **p: Any) -> Array:
    """Run an LSTM; gates in ONNX's order (i, o, f, c)."""
    return _run("lstm", *x, **p)


@_recurrent("gru", *_OPERANDS, rule=_rule("gru"), reset_after=False)
def gru(*x: Array, **p: Any) -> Array:
    """Run a GRU; gates in ONNX's order (z, r, h)."""
    return _run("gru", *x, **p)


@_recurrent("rnn", *_OPERANDS, rule=_rule("rnn"))
def rnn(*x: Array, **p: Any) -> Array:
    """Run a simple recurrent network."""
    return _run("rnn", *x, **p)
