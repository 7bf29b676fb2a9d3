"""Which ops of the library have no kernel on GPUs, by types: a table that may only shrink."""

from ggsched.ops.nd import library
from ggsched.topology.caps import offers
from ggsched_kernels import supported_ops

MISSING = {
    "f64":
        "abs acos acosh add asin asinh atan atan2 atanh average_pool cast ceil clip conv cos cosh "
        "div elu equal erf exp expm1 floor gelu gelu_tanh greater greater_equal hard_sigmoid "
        "hard_swish is_inf is_nan leaky_relu less less_equal log log1p max min mish mod mul neg "
        "prelu reciprocal relu round rsqrt sigmoid sign silu sin sinh softplus softsign sqrt sub "
        "tan tanh threshold",
    "f32 f16 f64":
        "along conv_transpose det grid_sample gru hardmax log_softmax lp_pool lrn lstm "
        "normalize rnn round_to softmax",
    "f32 f16 f64 i64 i32":
        "einsum",
    "f32 f16 f64 i64 i32 i16 i8 u64 u32 u16 u8 bool":
        "matmul one_hot reverse_sequence tile trilu",
    "i8 u8":
        "matmul_i32",
    "f32 f16 f64 i64 i32 i16 i8 u64 u32 u16 u8":
        "max_pool_indices reduce_log_sum reduce_log_sum_exp",
    "f64 i64 i32 i16 i8 u64 u32 u16 u8":
        "max_pool pow reduce_l1 reduce_l2 reduce_mean reduce_prod reduce_sum reduce_sum_square",
    "f64 i64 i32 i16 i8 u64 u32 u16 u8 bool":
        "reduce_max reduce_min",
    "i64 i32 i16 i8 u64 u32 u16 u8":
        "shift",
}  # fmt: skip
"""Ops by the types in which they have no kernel."""


def missing(backend):
    """Return ops by the types without a kernel, on a device that computes with f64."""
    ops = supported_ops(backend, has_f64=True)
    found: dict[str, list[str]] = {}
    for name in sorted(library()):
        types = " ".join(t for t in library()[name].types[0] if not offers(ops, name, t))
        if types:
            found.setdefault(types, []).append(name.removeprefix("nd."))
    return {types: " ".join(names) for types, names in found.items()}


def test_ops_without_kernels_only_become_fewer():
    for backend in ("opencl", "cuda"):
        found = missing(backend)
        assert found == MISSING, "take out of MISSING what has a kernel now, and add nothing"
