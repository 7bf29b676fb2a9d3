"""Which kernels there are: families, compiled together when the first of each is needed.

A family is small, since most programs need few kernels: the first one compiles for half a second.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final

from ggsched.ir.dtype import BF16, F16, F32, I32, Q8_0, DType
from ggsched_cpu.kernels import (
    attention,
    attention_blocks,
    bf16_rows,
    block_fours,
    block_halves,
    block_lanes,
    casts,
    convolution,
    gemm,
    gemm_bf16,
    gemm_int8,
    gemv,
    linear_attention,
    moves,
    packed_rows,
    panels,
    reductions,
    rows,
    sampling,
    short_conv,
    walk,
    windows,
)
from ggsched_cpu.kernels.elements import COMPILED
from ggsched_cpu.kernels.elementwise import FORMULAS, elementwise
from ggsched_cpu.kernels.emit import Builder
from ggsched_cpu.kernels.gemm_f32 import F32Method
from ggsched_cpu.kernels.target import Target

KV_DTYPES: Final = (F32, F16, BF16, Q8_0)
"""Types of rows that are stored by ids, and that attention reads."""

Family = Callable[[Target], Sequence[Builder]]


def _walk(target: Target) -> Sequence[Builder]:
    return [
        walk.run_alone("run_alone", target),
        walk.lead("lead", target),
        walk.member("member", target),
        walk.stop("stop", target),
    ]


def _products(dtype: DType, activations: gemv.Activations) -> Family:
    return lambda target: [
        gemv.gemv(f"batch{v}", target, dtype, activations, v, "batch") for v in gemv.VECTORS
    ]


def _chosen(dtype: DType, activations: gemv.Activations) -> Family:
    return lambda target: [gemv.gemv("ids1", target, dtype, activations, 1, "ids")]


def _columns(dtype: DType) -> Family:
    return lambda target: [gemv.gemv_columns(f"columns{v}", target, dtype, v) for v in gemv.VECTORS]


def _method_of(dtype: DType, activations: gemv.Activations) -> gemm.MethodOf:
    layout = dtype.layout
    if activations == "f32" or layout is None:
        return lambda b: F32Method(b, dtype)
    return lambda b: gemm_int8.Int8Method(b, dtype, layout)


def _many(dtype: DType, activations: gemv.Activations) -> Family:
    return lambda target: [gemm.gemm("gemm", target, _method_of(dtype, activations))]


def _many_chosen(dtype: DType, activations: gemv.Activations) -> Family:
    method = _method_of(dtype, activations)
    return lambda target: [gemm.gemm_routed("gemm_routed", target, method)]


def _panels(target: Target) -> Sequence[Builder]:
    return [panels.pack("pack", target)]


def _routes(target: Target) -> Sequence[Builder]:
    return [panels.route("route", target), panels.pack_routed("pack_routed", target)]


def _rounded_panels(group: int) -> Family:
    return lambda target: [gemm_int8.pack("pack", target, group)]


def _rounded_routes(group: int) -> Family:
    return lambda target: [gemm_int8.pack_routed("pack_routed", target, group)]


def _bf16(target: Target) -> Sequence[Builder]:
    return [bf16_rows.round_bf16("round_rows", target)]


def _bf16_panels(target: Target) -> Sequence[Builder]:
    return [gemm_bf16.pack("pack", target)]


def _bf16_routes(target: Target) -> Sequence[Builder]:
    return [gemm_bf16.pack_routed("pack_routed", target)]


def _many_bf16(target: Target) -> Sequence[Builder]:
    return [gemm.gemm("gemm", target, gemm_bf16.BF16Method)]


def _many_chosen_bf16(target: Target) -> Sequence[Builder]:
    return [gemm.gemm_routed("gemm_routed", target, gemm_bf16.BF16Method)]


def _attention(dtype: DType) -> Family:
    return lambda target: [attention.attention("attention", target, dtype)]


def _attention_blocks(dtype: DType) -> Family:
    return lambda target: [attention_blocks.attention_blocks("attention", target, dtype)]


def _linear_attention(*, beta: bool) -> Family:
    return lambda target: [linear_attention.linear_attention("linear_attention", target, beta=beta)]


def _short_conv(target: Target) -> Sequence[Builder]:
    return [short_conv.short_conv("short_conv", target)]


def _elementwise(op: str, element: str = "float") -> Family:
    return lambda target: [elementwise("plain", target, op, element)]


def _soft_max(*, masked: bool) -> Family:
    return lambda target: [
        reductions.soft_max(f"sinks{int(sinks)}", target, masked=masked, sinks=sinks)
        for sinks in (False, True)
    ]


_REDUCTIONS: Final[Mapping[str, Callable[[str, Target], Builder]]] = {
    "rms_norm": lambda name, target: reductions.rms_norm(name, target, weighted=False),
    "rms_norm_mul": lambda name, target: reductions.rms_norm(name, target, weighted=True),
    "norm": reductions.norm,
    "soft_max_across": reductions.soft_max_across,
    "log_soft_max": reductions.log_soft_max,
    "sum_rows": reductions.sum_rows,
    "mean_rows": reductions.mean_rows,
    "max_of_rows": partial(reductions.extreme_of_rows, how="maximum"),
    "min_of_rows": partial(reductions.extreme_of_rows, how="minimum"),
    "product_of_rows": reductions.product_of_rows,
    "sum_rows_strided": reductions.sum_rows_strided,
    "top_k": partial(reductions.top_k, wide=False),
    "nd.top_k": partial(reductions.top_k, wide=True),
}


def _reduction(name: str) -> Family:
    return lambda target: [_REDUCTIONS[name](name, target)]


def _scan(target: Target) -> Sequence[Builder]:
    ways = product(("add", "mul"), ("float", "i32", "i64"))
    return [reductions.scan(f"{how}_{kind}", target, how, kind) for how, kind in ways]


def _rows(target: Target) -> Sequence[Builder]:
    return [
        packed_rows.round_rows("round_rows", target),
        *(rows.set_rows(f"set_rows_{to}", target, to) for to in KV_DTYPES),
    ]


def _lanes(target: Target) -> Sequence[Builder]:
    return [block_lanes.round_lanes("round_rows", target)]


def _halves(target: Target) -> Sequence[Builder]:
    return [block_halves.round_halves("round_rows", target)]


def _fours(target: Target) -> Sequence[Builder]:
    return [block_fours.round_fours("round_rows", target)]


def _rope(target: Target) -> Sequence[Builder]:
    return [
        rows.rope_table("rope_table", target),
        rows.rope("rope_adjacent", target, halves=False),
        rows.rope("rope_halves", target, halves=True),
    ]


def _add_id(target: Target) -> Sequence[Builder]:
    return [rows.add_id("add_id", target), rows.clear_absent("clear_absent", target)]


def _converted(dtype: DType) -> tuple[DType, ...]:
    return (dtype,) if dtype is I32 else (F32, F16)


def _conversions(dtype: DType) -> Family:
    return lambda target: [rows.convert(f"to_{t}", target, dtype, t) for t in _converted(dtype)]


def _casts(kind: str) -> Family:
    return lambda target: [
        casts.cast(f"to_{to}", target, kind, to)
        for to in casts.ELEMENTS
        if casts.is_converted(kind, to)
    ]


def _grid_sample(target: Target) -> Sequence[Builder]:
    return [
        sampling.grid_sample(f"padded{int(padded)}", target, padded=padded)
        for padded in (False, True)
    ]


def _get_rows(dtype: DType) -> Family:
    return lambda target: [rows.get_rows("get_rows", target, dtype, _converted(dtype)[0])]


def _conv_rows(ops: Sequence[str]) -> Family:
    return lambda target: [windows.conv_rows(f"stride{n}", target, ops, stride=n) for n in (1, 2)]


def _conv_planes(ops: Sequence[str]) -> Family:
    return lambda target: [windows.conv_planes(f"stride{n}", target, ops, stride=n) for n in (1, 2)]


def _conv_tiles(ops: Sequence[str]) -> Family:
    return lambda target: [convolution.conv("conv", target, ops)]


def _max_rows(target: Target) -> Sequence[Builder]:
    return [windows.max_rows(f"stride{n}", target, stride=n) for n in (1, 2)]


def _average_rows(target: Target) -> Sequence[Builder]:
    return [windows.average_rows(f"stride{n}", target, stride=n) for n in (1, 2)]


def _zip_rows(target: Target) -> Sequence[Builder]:
    return [moves.zip_rows("zip_rows", target)]


def _repeat(times: int) -> Family:
    return lambda target: [moves.repeat("repeat", target, times)]


def _moves(target: Target) -> Sequence[Builder]:
    return [moves.move(f"move{n}", target, n) for n in (1, 2, 4, 8)]


def _indexed(indexed: int) -> Family:
    """Return kernels that take (1) or put (2) elements by indices."""

    def build(target: Target) -> Sequence[Builder]:
        made = []
        for n in (1, 2, 4, 8):
            made.append(moves.slices(f"slices{n}", target, n, indexed=indexed))
            made.append(moves.each(f"each{n}", target, f"i{8 * n}", indexed=indexed))
        if indexed == 2:
            made.append(moves.slices("add_slices", target, 4, indexed=2, adds=True))
            made += (
                moves.each(f"add_{kind}", target, kind, indexed=2, adds=True)
                for kind in ("float", "i32", "i64")
            )
        return made

    return build


def _pad(target: Target) -> Sequence[Builder]:
    return [convolution.pad("pad", target)]


def _bits(target: Target) -> Sequence[Builder]:
    return [rows.convert("to_bf16", target, BF16, BF16)]


def _for_weights(
    name: str, build: Callable[[DType, gemv.Activations], Family]
) -> dict[str, Family]:
    """Return a family for each type of weights and kind of activations."""
    rounded = {f"{name}_{t}_int8": build(t, "int8") for t in COMPILED if t.is_quantized}
    return {f"{name}_{t}_f32": build(t, "f32") for t in COMPILED} | rounded


FAMILIES: Final[Mapping[str, Family]] = {
    "walk": _walk,
    "rows": _rows,
    "lanes": _lanes,
    "halves": _halves,
    "fours": _fours,
    "rope": _rope,
    "add_id": _add_id,
    "bits": _bits,
    "panels_f32": _panels,
    "routes_f32": _routes,
    "conv_rows": _conv_rows(()),
    "conv_planes": _conv_planes(()),
    "pad": _pad,
    "grid_sample": _grid_sample,
    "moves": _moves,
    "take": _indexed(1),
    "put": _indexed(2),
    "max_rows": _max_rows,
    "average_rows": _average_rows,
    "zip_rows": _zip_rows,
    **{f"repeat{n}": _repeat(n) for n in moves.REPEATS},
    "conv": _conv_tiles(()),
    "linear_attention0": _linear_attention(beta=False),
    "linear_attention1": _linear_attention(beta=True),
    "scan": _scan,
    "short_conv": _short_conv,
    "soft_max0": _soft_max(masked=False),
    "soft_max1": _soft_max(masked=True),
    **{name: _reduction(name) for name in _REDUCTIONS},
    **{f"elementwise_{op}": _elementwise(op) for op in FORMULAS},
    **{f"halves_{op}": _elementwise(op, "half") for op in FORMULAS},
    **{f"panels_int8_{n}": _rounded_panels(n) for n in gemm_int8.GROUPS},
    **{f"routes_int8_{n}": _rounded_routes(n) for n in gemm_int8.GROUPS},
    "bf16": _bf16,
    "gemv_bf16_bf16": _products(BF16, "bf16"),
    "gemv_chosen_bf16_bf16": _chosen(BF16, "bf16"),
    "panels_bf16": _bf16_panels,
    "routes_bf16": _bf16_routes,
    "gemm_bf16_bf16": _many_bf16,
    "gemm_chosen_bf16_bf16": _many_chosen_bf16,
    **_for_weights("gemv", _products),
    **_for_weights("gemv_chosen", _chosen),
    **_for_weights("gemm", _many),
    **_for_weights("gemm_chosen", _many_chosen),
    **{f"columns_{t}": _columns(t) for t in (F32, F16, BF16)},
    **{f"attention_{t}": _attention(t) for t in KV_DTYPES},
    **{f"attention_blocks_{t}": _attention_blocks(t) for t in KV_DTYPES},
    **{f"convert_{t}": _conversions(t) for t in (*COMPILED, I32)},
    **{f"cast_{kind}": _casts(kind) for kind in casts.ELEMENTS},
    **{f"get_rows_{t}": _get_rows(t) for t in (*COMPILED, I32)},
}
"""By name. Functions are called by the names that their builders have."""


def family(name: str) -> Family:
    """Return a family; ``conv+a+b`` and the like apply ops to results of a convolution.

    Raises:
        KeyError: there is none.
    """
    first, *ops = name.split("+")
    match first:
        case "conv":
            return _conv_tiles(ops)
        case "conv_planes":
            return _conv_planes(ops)
        case "conv_rows":
            return _conv_rows(ops)
        case _:
            return FAMILIES[name]


__all__ = ["FAMILIES", "Family", "family"]
