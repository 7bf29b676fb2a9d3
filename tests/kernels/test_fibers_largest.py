"""The largest of a long row, by groups of lanes; see ``test_fibers``."""

import numpy as np
import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, Memory, laid_out

pytestmark = NEEDS


def run(runner, x):
    """Return the largest of each row, and the calls that found it."""
    from ggsched_cuda_kernels.kernel_selection import lower

    g = GraphBuilder("head")
    graph = g.build(g.top_k(g.input("x", x.shape), 1))
    nodes, memory = laid_out(graph, {"x": x})
    calls, needed = lower(nodes, H200)
    runner.memory = {place: Memory(nbytes) for place, nbytes in needed.items()}
    for call in calls:
        runner.run(call)
    (out,) = graph.outputs
    found = memory[graph.tensors[out].storage].view.view(np.int32).reshape(len(x), 1)
    np.testing.assert_array_equal(found, run_oracle(graph, {"x": x})[out])
    return found, calls


@pytest.mark.parametrize("n", [1, 5, 255, 8192, 8193, 40_000, 128_256])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_any_length(runner, n, rows):
    """The first of several that are the largest; spans from 4 times 2,048 elements on."""
    rng = np.random.default_rng(n)
    x = np.round(rng.standard_normal((rows, n)) * 4).astype(np.float32)  # so that many are equal
    _, calls = run(runner, x)
    spans = -(-n // 2048)
    assert [(c.kernel, c.groups) for c in calls] == (
        [("largest", (rows, 1, 1))]
        if n <= 8192
        else [("largest", (rows, spans, 1)), ("largest", (rows, 1, 1))]
    )


@pytest.mark.parametrize(
    ("fill", "places", "wanted"),
    [
        (0.0, {}, 0),  # all are equal
        (0.0, {7: np.nan, 9: 1.0}, 9),
        (0.0, {8000: np.inf, 9000: np.inf, 30: 5.0}, 8000),
        (np.nan, {}, 0),
        (-np.inf, {8999: np.nan, 8998: -3.4e38}, 8998),
        (-0.0, {5000: 0.0}, 0),  # zeros are equal
        (0.0, {8999: 1e-45}, 8999),
    ],
)
def test_numbers_that_are_special(runner, fill, places, wanted):
    x = np.full((1, 9001), fill, np.float32)
    for at, value in places.items():
        x[0, at] = value
    found, _ = run(runner, x)
    assert found[0, 0] == wanted


def test_many_rows_are_not_cut(runner):
    x = np.random.default_rng(1).standard_normal((65, 9000)).astype(np.float32)
    _, calls = run(runner, x)
    assert [call.groups for call in calls] == [(65, 1, 1)]
