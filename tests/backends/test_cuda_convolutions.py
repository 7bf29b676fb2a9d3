"""Convolutions on tensor cores, on a GPU in software: the cut, and what results are off by."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.backend.precision import Rounds
from ggsched.ir.dtype import F16, F32
from ggsched.scheduler import Scheduler
from ggsched_cuda_kernels import kernel_selection
from ggsched_cuda_kernels.conv_mma import SOURCE, conv_tiles
from ggsched_kernels import convolution as gpu
from ggsched_testing.allowance import far_off
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.software_kernels import in_software
from tests.backends.test_gpu_convolutions import CLAMP, RELU, conv_graph, values_of
from tests.kernels.test_fibers import H200, NEEDS, Runner
from tests.support.profile import NIGHTLY

pytestmark = NEEDS

FINER = {"tf32": "f32", "bf16": "tf32"}


def tiles_of(precision):
    """Return the cuts on tensor cores."""
    found = conv_tiles(replace(H200, precision=precision), F32)
    return [tile for tile in found if tile.source == SOURCE]


@pytest.fixture(scope="module", params=FINER)
def precision(request):
    """Each precision in turn, and GPUs that compute with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGSCHED_PRECISION", request.param)
        yield request.param


@pytest.fixture(scope="module")
def software(compiled_kernels, precision):
    with in_software(Runner(compiled_kernels), arch=80):
        yield


def run(graph, values, tile=None, shares=1):
    """Return the results by the chosen cut, or by a given one, and the kernels that made them."""
    kernels = []

    def lowered(nodes, profile):
        calls, memory = kernel_selection.lower(nodes, profile)
        kernels.extend(call.kernel for call in calls)
        return calls, memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggsched_cuda.program.lower", lowered)
        if tile:
            patch.setattr(gpu, "choose_tile", lambda *_: (tile, shares))
        with Scheduler(["cuda:0"], weights=values) as scheduler:
            given = {name: value for name, value in values.items() if name in "xr"}
            return scheduler.run(graph, given), kernels


CASES = {
    "3 x 3, pads, columns that fill no vector": (
        0, 1, {"x": (2, 5, 7, 9), "w": (70, 5, 3, 3), "pads": [1, 1, 1, 1]}
    ),
    "3 x 3 with a residual and relu, shared sums": (
        1, 3, {"x": (1, 24, 8, 8), "w": (40, 24, 3, 3), "pads": [1, 1, 1, 1], "residual": True,
               "behind": RELU},
    ),
    "1 x 1 inside, whole vectors, a residual": (
        2, 1, {"x": (1, 32, 4, 40), "w": (130, 32, 1, 1), "bias": False, "residual": True,
               "behind": CLAMP}
    ),
    "groups, strides and dilations": (
        3, 2, {"x": (2, 36, 13, 11), "w": (30, 12, 2, 3), "group": 3, "strides": [2, 1],
               "dilations": [1, 2], "pads": [0, 1, 1, 2]},
    ),
    "many elements in a window": (
        4, 1, {"x": (1, 3, 9, 9), "w": (8, 3, 7, 7), "strides": [2, 2], "pads": [3] * 4}
    ),
    "in space": (
        4, 1, {"x": (1, 3, 5, 6, 7), "w": (16, 3, 2, 3, 2), "strides": [1, 2, 1],
               "pads": [1, 0, 1, 0, 1, 0]},
    ),
}  # fmt: skip
"""Each cut at least once, with what else makes another program."""


@pytest.mark.parametrize("name", CASES)
def test_results_are_off_by_what_the_precision_allows(software, precision, name):
    """And by more than a finer one does; ops behind are part of the last kernel.

    What trials show for other ops behind a convolution has a margin.
    """
    at, shares, how = CASES[name]
    graph = conv_graph(**how)
    values = values_of(graph)
    found, kernels = run(graph, values, tiles_of(precision)[at], shares)
    assert kernels == ["conv_mma", "conv_sums"][: 1 + (shares > 1)]
    wanted = run_oracle(graph, values)
    assert not far_off(found, graph, values, wanted, how=Rounds(precision=precision))
    finer = FINER[precision] if len(graph.nodes) == 1 else "f32"
    assert far_off(found, graph, values, wanted, how=Rounds(precision=finer))


def test_the_cases_have_every_cut(precision):
    assert {at for at, *_ in CASES.values()} == set(range(len(tiles_of(precision))))


@st.composite
def drawn(draw):
    """Return a convolution in up to three dimensions, with windows that leave x or do not."""
    n = draw(st.integers(1, 3))
    each = {name: st.tuples(*[st.integers(*ends)] * n) for name, ends in {
        "kernel": (1, 3), "strides": (1, 2), "dilations": (1, 2), "spare": (0, 5), "pads": (0, 2),
    }.items()}  # fmt: skip
    kernel, strides, dilations, spare, pads = (draw(values) for values in each.values())
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    group, per, rows = draw(st.integers(1, 2)), draw(st.integers(1, 20)), draw(st.integers(8, 40))
    x = (draw(st.integers(1, 2)), group * per, *map(sum, zip(spans, spare, strict=True)))
    return conv_graph(
        x, (group * rows, per, *kernel), bias=draw(st.booleans()), group=group,
        strides=list(strides), dilations=list(dilations), pads=[*pads, *draw(each["pads"])],
    )  # fmt: skip


@given(graph=drawn(), at=st.integers(0, 4), shares=st.sampled_from([1, 2, 4]))
@settings(max_examples=200 if NIGHTLY else 12, deadline=None)
def test_any_convolution_by_any_cut(software, precision, graph, at, shares):
    """Some of the groups that share a sum may have nothing to add."""
    values = values_of(graph)
    found, kernels = run(graph, values, tiles_of(precision)[at], shares)
    assert kernels[0] == "conv_mma"
    wanted = run_oracle(graph, values)
    assert not far_off(found, graph, values, wanted, how=Rounds(precision=precision))


EDGES = {
    "no images": {"x": (0, 4, 5, 5), "w": (8, 4, 3, 3)},
    "no channels": {"x": (1, 0, 5, 5), "w": (8, 0, 3, 3), "pads": [1] * 4},
    "no elements, only pads": {"x": (1, 4, 0, 5), "w": (8, 4, 3, 3), "pads": [2, 1, 2, 1]},
    "pads that cut": {"x": (1, 4, 7, 7), "w": (8, 4, 3, 3), "pads": [-1, 1, 0, -2]},
    "as many elements as a word has": {"x": (1, 4, 40), "w": (8, 4, 31), "pads": [15, 15]},
    "more elements than a word has": {"x": (1, 4, 40), "w": (8, 4, 32), "pads": [15, 15]},
    "taps as far as ten bits": {
        "x": (1, 4, 6, 1), "w": (8, 4, 3, 2), "dilations": [511, 1023], "pads": [511, 1023] * 2,
    },
    "taps farther than ten bits": {
        "x": (1, 4, 6), "w": (8, 4, 3), "dilations": [1024], "pads": [1024, 1024],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_shapes_at_limits(software, precision, name):
    graph = conv_graph(**EDGES[name])
    values = values_of(graph)
    found, _ = run(graph, values)
    wanted = run_oracle(graph, values)
    assert not far_off(found, graph, values, wanted, how=Rounds(precision=precision))


def test_factors_of_f16_are_not_rounded(software, precision):
    """TF32 has all of them; their sums are rounded to f16 once."""
    graph = conv_graph((2, 20, 9, 9), (24, 20, 3, 3), dtype=F16, pads=[1] * 4, behind=RELU)
    values = {name: value.astype(np.float16) for name, value in values_of(graph).items()}
    found, kernels = run(graph, values)
    assert kernels[3:5] == ["conv_mma", "conv_sums"]
    ((tid, wanted),) = run_oracle(graph, values).items()
    np.testing.assert_array_max_ulp(found[tid], wanted, 1)


def test_nan_and_infinity_stay_in_their_rows_and_columns(software, precision):
    """Also in tiles that are mostly empty."""
    graph = conv_graph((1, 5, 6, 6), (9, 5, 3, 3))
    values = values_of(graph)
    values["x"][0, 1, 5, 5], values["x"][0, 2, 0, 0] = np.nan, np.inf
    values["w"][8, 4, 2, 2], values["w"][3, 0, 0, 0] = -np.inf, np.float32(2.0**127)
    found, _ = run(graph, values)
    wanted = run_oracle(graph, values)
    assert not all(np.isfinite(a).all() for a in wanted.values())
    assert not far_off(found, graph, values, wanted, how=Rounds(precision=precision))


CUT_OFF = "rounded(const float *v) {\n#undef TF32_OF\n#define TF32_OF BITS_OF_FLOAT"
MUTANTS = {
    "factors are cut off": ("rounded(const float *v) {", CUT_OFF),
    "columns are stored elsewhere": (
        " xt[half ^ 1][PIECE_AT(column, ",
        " xt[half ^ 1][PIECE_AT(column ^ 2, ",
    ),
    "a step is stored over the last": ("wt[half ^ 1]", "wt[half]"),
    "windows begin elsewhere": ("c.x + (tap & 1023)", "c.x + (tap & 1)"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(compiled_kernels, monkeypatch, name):
    from ggsched_cuda_kernels import sources

    before, after = MUTANTS[name]
    own = sources._own
    assert own("conv_mma.cu").count(before) == 1
    monkeypatch.setattr(sources, "_own", lambda file: own(file).replace(before, after))
    monkeypatch.setenv("GGSCHED_PRECISION", "tf32")
    graph = conv_graph((1, 8, 5, 5), (9, 8, 3, 3), bias=False, pads=[1] * 4)
    rng, least = np.random.default_rng(0), np.float32(1 + 2.0**-10 - 2.0**-20)
    values = {
        name: least * 2.0 ** rng.integers(-2, 2, v.shape) for name, v in values_of(graph).items()
    }
    values = {name: value.astype(np.float32) for name, value in values.items()}
    with in_software(Runner(compiled_kernels), arch=80):
        found, _ = run(graph, values, tiles_of("tf32")[4])
    assert far_off(found, graph, values, run_oracle(graph, values), how=Rounds(precision="tf32"))


KERNELS = {
    "conv_mma": ((1, 16, 9, 9), (32, 16, 3, 3), 1),
    "conv_each": ((1, 16, 9, 9), (16, 1, 3, 3), 16),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_chosen_kernel(software, kernel):
    """Depthwise convolutions and those of few rows in a group stay in f32."""
    x, w, group = KERNELS[kernel]
    graph = conv_graph(x, w, group=group, pads=[1] * 4)
    _, kernels = run(graph, values_of(graph))
    assert kernels[0] == kernel
    assert len(set(kernels)) == len(kernels)
