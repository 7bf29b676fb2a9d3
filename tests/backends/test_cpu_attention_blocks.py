"""Attention of many queries by blocks: the compiled kernel, for this processor and for AVX2."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llvmlite.binding")

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32
from ggsched_cpu import native
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.kernels.attention_blocks import KEYS, fits, query_rows
from ggsched_cpu.kernels.compiler import host_target
from ggsched_cpu.kernels.library import Library
from ggsched_cpu.kernels.target import AVX2, AVX512
from ggsched_testing.eager import bound_nodes, run_direct
from ggsched_testing.generators.values import LeafRule
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.against_oracle import check, tame
from tests.backends.op_graphs import attention_graph
from tests.backends.test_cpu_other_targets import runs_here


@pytest.fixture(scope="module", params=["host", "avx2"])
def device(request, tmp_path_factory):
    native.walk_functions()  # kept for the process, so they must not be those of ``made``
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "avx2":
            if not runs_here(AVX2) or not host_target().has_avx512:
                pytest.skip("this processor's own code is that for AVX2")
            made = Library(AVX2, tmp_path_factory.mktemp("kernels"))
            patch.setattr("ggsched_cpu.native.library", lambda: made)
        found = CpuDevice(0, CpuSettings(threads=1))
    yield found
    found.close()


@given(
    case=st.tuples(
        st.sampled_from([9, 20, 33, 70]), st.sampled_from([(4, 2), (6, 1), (8, 8), (3, 3)]),
        st.sampled_from([(16, 24), (20, 7), (1, 33), (80, 64), (32, 100)]),
        st.sampled_from([1, KEYS - 1, KEYS, KEYS + 1, 130]),
        st.sampled_from([None, "mask", "heads"]), st.booleans(), st.booleans(),
        st.sampled_from([0.0, 0.0, 2.5]),
    ),
    kv=st.sampled_from([F32, F16]), seed=st.integers(0, 1 << 20),
)  # fmt: skip
@settings(max_examples=25)
def test_it_agrees_with_the_reference(device, case, kv, seed):
    tokens, (heads, groups), (width, across), rows, mask, sinks, bounds, cap = case
    shape = (tokens, heads, groups, width, across, rows, mask, sinks, bounds, cap)
    graph = attention_graph(shape, kv)
    check(device, graph, tame(graph, seed, bounds=LeafRule("bounds", bound=rows)))


def test_parts_do_not_depend_on_threads_and_tokens_that_see_nothing_get_zeros():
    shape = (70, 4, 2, 32, 32, 130, None, False, True, 0.0)
    graph = attention_graph(shape, F16)
    values = tame(graph)
    values["bounds"] = np.stack([np.zeros(70), np.arange(70) - 3], -1).astype(np.int32)
    found = []
    for threads in (1, 2):
        device = CpuDevice(0, CpuSettings(threads=threads))
        ((_, array),) = run_direct(device, graph, values).items()
        found.append(array)
        device.close()
    np.testing.assert_array_equal(*found)
    assert not found[0][:4].any()
    assert found[0][4:].any(-1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_in_the_rows_that_see_it(device, bad):
    """Others may have it, too: a share of zero times infinity is not a number."""
    graph = attention_graph((40, 2, 1, 16, 16, 60, None, False, True, 0.0), F32)
    values = tame(graph)
    values["bounds"] = np.stack([np.zeros(40), np.arange(40) + 1], -1).astype(np.int32)
    ((tid, wanted),) = run_oracle(graph, values).items()
    values["v"][0, 20, 3] = bad
    found = run_direct(device, graph, values)[tid]
    assert not np.isfinite(found[20:, :, 3]).any()
    np.testing.assert_allclose(np.delete(found, 3, -1), np.delete(wanted, 3, -1), 1e-4, 1e-5)


def test_when_it_is_used(monkeypatch):
    """From half a block of rows on, and as long as a block fits scratch memory."""
    asked = []
    device = CpuDevice(0, CpuSettings(threads=1))
    own = device.kernels_used
    block = query_rows(own.target)

    def address(family, name):
        asked.append(family)
        return own.address(family, name)

    monkeypatch.setattr(device, "kernels_used", replace(own, address=address))
    for tokens, width, wanted in (
        (block // 2, 16, "attention_blocks_f16"), (block // 2 - 1, 16, "attention_f16"),
        (block, 8192, "attention_f16"),
    ):  # fmt: skip
        g = GraphBuilder("attention")
        k = g.input("k", (3, 1, width), F16)
        graph = g.build(g.attention(g.input("q", (tokens, 1, width)), k, k))
        buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors}
        stream = device.create_stream()
        program = device.compile(bound_nodes(graph, buffers), stream)
        assert asked[-1] == wanted
        for thing in (program, stream, *buffers.values()):
            thing.close()
    device.close()
    assert fits(AVX512, 1024, 1024)
    assert not fits(AVX512, 2048, 2048)
