"""Cuts of products of few rows by clusters (``tiles.FEW``), next to the other ways to compute them.

The products of a layer of 8B as in ``rows``, in microseconds: as without clusters, then by each
cut, for as many rows as one of them is for, and for the rows that matrix-vector kernels take. The
share is that of the bandwidth of a copy on the same GPU, over the bytes of the weights.
"""

import sys
import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu.decode import copy_bandwidth
from benchmarks.gpu.rows import COPIES, LAYER, SMALL, _graph, _point
from ggsched.ir.dtype import Q4_0, Q4_K, Q6_K, Q8_0, DType
from ggsched_cuda import open_backend
from ggsched_cuda_kernels import tiles
from ggsched_cuda_kernels.tiles import Cut

DTYPES = (Q8_0, Q4_0, Q4_K, Q6_K)
_LONG = (
    Cut(4, 2, 4, 2, 4), Cut(2, 2, 4, 1, 4), Cut(4, 2, 4, 1, 4), Cut(2, 2, 4, 2, 2),
    Cut(4, 2, 8, 1, 2), Cut(2, 2, 8, 1, 2), Cut(8, 2, 8, 1, 1),
)  # fmt: skip
ROWS = (8, 16, 32, 64)
_PACKED = (
    Cut(4, 3, 4, 1, 4), Cut(6, 2, 8, 1, 2), Cut(4, 2, 4, 1, 4), Cut(4, 2, 4, 2, 2),
    Cut(8, 2, 8, 1, 1), Cut(4, 3, 8, 1, 2), Cut(4, 2, 8, 1, 2), Cut(8, 3, 4, 2, 2),
)  # fmt: skip
CUTS = {
    "q8_0": _PACKED,
    "q4_0": _PACKED,
    "q4_k": _LONG,
    "q6_k": _LONG,
}  # fmt: skip
BUDGET_S = 110.0


def run(*, quick: bool) -> dict[str, Any]:
    """Measure; ok if all points were."""
    began, device = time.perf_counter(), open_backend().open_device(0)
    found: dict[str, Any] = {"copy_bytes_per_s": copy_bandwidth(), "left_out": []}
    try:
        for dtype in DTYPES:
            for name, us in _points(device, dtype, SMALL if quick else LAYER, began):
                found[f"{dtype} {name}"] = us
            if time.perf_counter() - began > BUDGET_S:
                found["left_out"].append(str(dtype))
    finally:
        device.close()
    return {"ok": not found["left_out"], **found}


def _points(device: Any, dtype: DType, layer: dict[str, tuple[int, int]], began: float) -> Any:
    stream, rng = device.create_stream(), np.random.default_rng(0)
    sizes = {f"{name}{i}": n * dtype.row_nbytes(k)
             for i in range(COPIES) for name, (n, k) in layer.items()}  # fmt: skip
    weights = {name: device.allocate(nbytes) for name, nbytes in sizes.items()}
    raw = rng.integers(0, 64, max(sizes.values()), dtype=np.uint8)
    for name, nbytes in sizes.items():
        stream.upload(raw[:nbytes].data, weights[name], 0)
    stream.sync(60.0)
    nbytes = sum(sizes.values()) / COPIES
    profile = replace(device.profile, activations="auto")
    for rows in ROWS:
        graph, shown = _graph(layer, dtype, rows), []
        device.profile = profile
        with patch.object(tiles, "MAX_ROWS", {1: {}, 2: {}}):
            shown.append(("as before", _point(device, stream, graph, weights)["us"]))
        device.profile = replace(profile, few_rows=1)
        for cut in CUTS[dtype.name]:
            if time.perf_counter() - began > BUDGET_S:
                break
            few = {rows: {dtype.name: (cut, cut)}}
            most = {planes: {dtype.name: rows} for planes in (1, 2)}
            name = f"{cut.blocks} {cut.stages} {cut.warps} {cut.tiles} {cut.resident} {cut.turns}"
            with patch.multiple(tiles, FEW=few, MAX_ROWS=most, MIN_SHARE=0):
                point = _point(device, stream, graph, weights)
            if "tile_product" in point["kernels"]:
                shown.append((name, point["us"]))
        rates = ", ".join(f"{n}: {us:.0f} us {nbytes / us / 1e6:.2f} TB/s" for n, us in shown)
        sys.stdout.write(f"   {dtype}, {rows} rows: {rates}\n")
        sys.stdout.flush()
        yield f"{rows} rows", dict(shown)
    for thing in (*weights.values(), stream):
        thing.close()
    device.profile = profile
