"""Which kernels there are: families, compiled together when the first of each is needed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ggsched.ir.dtype import BF16, F16, F32, I32, DType
from ggsched_cpu_kernels import (
    attention,
    gemm,
    gemm_int8,
    gemv,
    packed_rows,
    panels,
    reductions,
    rows,
    walk,
)
from ggsched_cpu_kernels.elements import COMPILED
from ggsched_cpu_kernels.elementwise import FORMULAS, SPREAD, elementwise
from ggsched_cpu_kernels.emit import Builder
from ggsched_cpu_kernels.gemm_f32 import F32Method
from ggsched_cpu_kernels.target import Target

Family = Callable[[Target], Sequence[Builder]]


def _walk(target: Target) -> Sequence[Builder]:
    return [
        walk.run_alone("run_alone", target),
        walk.lead("lead", target),
        walk.member("member", target),
        walk.stop("stop", target),
    ]


def _products(dtype: DType, activations: gemv.Activations) -> Family:
    def build(target: Target) -> Sequence[Builder]:
        names = [(choice, v) for choice in ("batch", "ids") for v in gemv.VECTORS]
        return [
            gemv.gemv(f"{choice}{v}", target, dtype, activations, v, choice)  # type: ignore[arg-type]
            for choice, v in names
            if choice == "batch" or v == 1
        ]

    return build


def _columns(dtype: DType) -> Family:
    return lambda target: [gemv.gemv_columns(f"columns{v}", target, dtype, v) for v in gemv.VECTORS]


def _many(dtype: DType) -> Family:
    return lambda target: _gemms(target, lambda b: F32Method(b, dtype))


def _many_rounded(dtype: DType) -> Family:
    layout = dtype.layout
    assert layout is not None
    return lambda target: _gemms(target, lambda b: gemm_int8.Int8Method(b, dtype, layout))


def _gemms(target: Target, method: gemm.MethodOf) -> Sequence[Builder]:
    return [
        gemm.gemm("gemm", target, method),
        gemm.gemm_routed("gemm_routed", target, method),
    ]


def _panels(target: Target) -> Sequence[Builder]:
    return [
        panels.pack("pack", target),
        panels.route("route", target),
        panels.pack_routed("pack_routed", target),
    ]


def _rounded_panels(target: Target) -> Sequence[Builder]:
    return [
        *(gemm_int8.pack(f"pack{n}", target, n) for n in gemm_int8.GROUPS),
        *(gemm_int8.pack_routed(f"pack_routed{n}", target, n) for n in gemm_int8.GROUPS),
    ]


def _attention(dtype: DType) -> Family:
    return lambda target: [attention.attention("attention", target, dtype)]


def _elementwise(target: Target) -> Sequence[Builder]:
    plain = [elementwise(op, target, op, spread=False) for op in FORMULAS]
    return [*plain, *(elementwise(f"{op}_spread", target, op, spread=True) for op in SPREAD)]


def _reductions(target: Target) -> Sequence[Builder]:
    return [
        reductions.rms_norm("rms_norm", target, weighted=False),
        reductions.rms_norm("rms_norm_mul", target, weighted=True),
        reductions.norm("norm", target),
        reductions.sum_rows("sum_rows", target),
        reductions.sum_rows_strided("sum_rows_strided", target),
        reductions.top_k("top_k", target),
        *(
            reductions.soft_max(
                f"soft_max{int(masked)}{int(sinks)}", target, masked=masked, sinks=sinks
            )
            for masked in (False, True)
            for sinks in (False, True)
        ),
    ]


def _rows(target: Target) -> Sequence[Builder]:
    return [
        rows.add_id("add_id", target),
        rows.rope_table("rope_table", target),
        rows.rope("rope_adjacent", target, halves=False),
        rows.rope("rope_halves", target, halves=True),
        packed_rows.round_rows("round_rows", target),
        *(rows.set_rows(f"set_rows_{to}", target, to) for to in (F32, F16)),
    ]


def _conversions(dtype: DType) -> Family:
    to = (dtype,) if dtype is I32 else (F32, F16)

    def build(target: Target) -> Sequence[Builder]:
        converted = [rows.convert(f"to_{t}", target, dtype, t) for t in to]
        return [*converted, rows.get_rows("get_rows", target, dtype, to[0])]

    return build


def _bits(target: Target) -> Sequence[Builder]:
    return [rows.convert("to_bf16", target, BF16, BF16)]


FAMILIES: Final[Mapping[str, Family]] = {
    "walk": _walk,
    "elementwise": _elementwise,
    "reductions": _reductions,
    "rows": _rows,
    "bits": _bits,
    "panels": _panels,
    "rounded_panels": _rounded_panels,
    **{f"gemm_{t}_f32": _many(t) for t in COMPILED},
    **{f"gemm_{t}_int8": _many_rounded(t) for t in COMPILED if t.is_quantized},
    **{f"gemv_{t}_f32": _products(t, "f32") for t in COMPILED},
    **{f"gemv_{t}_int8": _products(t, "int8") for t in COMPILED if t.is_quantized},
    **{f"columns_{t}": _columns(t) for t in (F32, F16, BF16)},
    **{f"attention_{t}": _attention(t) for t in (F32, F16, BF16)},
    **{f"convert_{t}": _conversions(t) for t in (*COMPILED, I32)},
}
"""By name. Functions are called by the names that their builders have."""

__all__ = ["FAMILIES", "Family"]
