"""Rotary position embedding; ``ggsched.ir.rope`` has the angles that backends use."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from ggsched.ops.lazy import Array, np
from ggsched.ops.record import Method, Operand, Param, Shape, method, need, op


def _rotated(x: Sequence[Operand], n_dims: int, **params: Any) -> tuple[str, Shape]:
    shape = x[0].shape
    fits = len(shape) == 3 and x[1].shape == shape[:1]
    need(fits, "needs x (T, H, D) and positions (T,)")
    fits = n_dims % 2 == 0 and 0 < n_dims <= shape[2]
    need(fits, f"n_dims={n_dims} must be even and at most D")
    known = params["pairing"] in ("adjacent", "halves")
    need(known, "pairing must be 'adjacent' (2i, 2i+1) or 'halves' (i, i+n/2)")
    fits = min(params["base"], params["freq_scale"]) > 0
    need(fits, "base and freq_scale must be positive")
    known = min(params[p] for p in ("n_ctx_orig", "beta_fast", "beta_slow")) > 0
    fits = not params["ext_factor"] or (known and params["base"] != 1.0)
    need(fits, "ext_factor needs n_ctx_orig, beta_fast, beta_slow > 0, base != 1")
    fits = len(x) < 3 or x[2].shape == (n_dims // 2,)
    need(fits, "freq_factors must be f32 (n_dims/2,)")
    return "f32", shape


def _rope(x: Array, positions: Array, *factors: Array, **params: Any) -> Array:
    n = params["n_dims"]
    frequency, magnitude = _frequencies(params, n)
    if factors:
        frequency = frequency / factors[0]
    frequency = frequency.astype(x.dtype)
    angle = positions[:, None, None].astype(x.dtype) * frequency  # (T, 1, n/2), for all heads
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    pair = np.arange(n // 2)
    adjacent = params["pairing"] == "adjacent"
    first, second = (2 * pair, 2 * pair + 1) if adjacent else (pair, pair + n // 2)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def _frequencies(params: dict[str, Any], n: int) -> tuple[Array, float]:
    """Written apart from ``ggsched.ir.rope``, which the backends use."""
    pair = np.arange(n // 2)
    base, squeeze = params["base"], params["freq_scale"]
    ext, magnitude = params["ext_factor"], params["attn_factor"]
    extrapolated = base ** (-2.0 * pair / n)
    interpolated = extrapolated * squeeze
    if ext == 0.0:
        return interpolated, magnitude
    # A pair turns n_ctx_orig * base^(-2i/n) / 2pi times over the context; solve for i.
    turns = np.array([params["beta_fast"], params["beta_slow"]])
    bound = n * np.log(params["n_ctx_orig"] / (turns * 2 * np.pi)) / (2 * np.log(base))
    low, high = max(np.floor(bound[0]), 0.0), min(np.ceil(bound[1]), n - 1.0)
    ramp = np.clip((pair - low) / max(high - low, 0.001), 0.0, 1.0)
    share = (1.0 - ramp) * ext
    mixed = interpolated * (1.0 - share) + extrapolated * share
    return mixed, magnitude * (1.0 - 0.1 * float(np.log(squeeze)))


ROPE_DEFAULTS: dict[str, Param] = {
    "n_dims": 0, "pairing": "adjacent", "base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0,
    "attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "n_ctx_orig": 0, "freq_factors": False,
}  # fmt: skip


class Rope(Protocol):
    """The method of builders. Its example goes on from that of ``GraphBuilder``."""

    rope: ClassVar[Method] = method(
        op("rope", "x", "positions:i32", "freq_factors?", over=(0,), rule=_rotated, reference=_rope,
           defaults=ROPE_DEFAULTS,
           doc="""Rotate pairs of x (T, H, D) by its positions (T,); see ``ggsched.ir.rope``.

``freq_factors`` (D / 2,) divide frequencies. By default all of D is rotated."""),
        'heads, at = g.reshape(x, 4, 2, 32), g.input("positions", (4,), "i32")',
        "g.rope(heads, at, n_dims=32, base=10000.0).shape", "(4, 2, 32)",
        given=lambda x, *_: {"n_dims": x.shape[-1] if x.shape else 0},
    )  # fmt: skip
