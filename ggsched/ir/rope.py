"""Rotary position embedding: the angles that every backend must use.

``rope`` rotates pair i of the first ``n_dims`` elements of each head by ``position *
inverse_frequency[i]`` and multiplies by ``magnitude``. Pairs are (2i, 2i+1) with pairing
``adjacent`` (ggml's mode 0) and (i, i + n_dims/2) with ``halves`` (GPT-NeoX). Elements beyond
``n_dims`` are copied. Method: Su et al. 2021 (arXiv 2104.09864); the ``ext_factor`` blend is YaRN,
Peng et al. 2023 (arXiv 2309.00071), with the parameters that llama.cpp uses.
"""

import math
from collections.abc import Mapping

from ggsched.ops.record import Param
from ggsched.ops.rope import ROPE_DEFAULTS


def rope_table(params: Mapping[str, Param]) -> tuple[list[float], float]:
    """Return (inverse_frequency per pair in radians per position, magnitude).

    Frequency factors, if the node has that operand, divide the inverse frequencies *before*
    scaling; with ``ext_factor`` 0 that is the same as dividing these numbers.
    """
    value = {**ROPE_DEFAULTS, **params}
    n_dims = int(_number(value["n_dims"]))
    base, scale = _number(value["base"]), _number(value["freq_scale"])
    ext, magnitude = _number(value["ext_factor"]), _number(value["attn_factor"])
    plain = [base ** (-2.0 * i / n_dims) for i in range(n_dims // 2)]
    if not ext:
        return [f * scale for f in plain], magnitude
    low, high = _correction_range(value, n_dims, base)
    blended = []
    for i, f in enumerate(plain):
        ramp = (i - low) / max(0.001, high - low)
        keep = (1.0 - min(1.0, max(0.0, ramp))) * ext
        blended.append(f * scale * (1.0 - keep) + f * keep)
    return blended, magnitude * (1.0 + 0.1 * math.log(1.0 / scale))


def _correction_range(value: Mapping[str, Param], n_dims: int, base: float) -> tuple[float, float]:
    context = _number(value["n_ctx_orig"])

    def pair_with(rotations: float) -> float:
        return n_dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = math.floor(pair_with(_number(value["beta_fast"])))
    high = math.ceil(pair_with(_number(value["beta_slow"])))
    return max(0.0, low), min(n_dims - 1.0, high)


def _number(value: Param) -> float:
    if isinstance(value, (str, tuple)):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)
