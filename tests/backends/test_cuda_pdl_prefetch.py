"""Which attention reads while its predecessor runs, decided by what that one writes; no GPU."""

from dataclasses import replace

import pytest

from ggsched.backend.program import Operand
from ggsched.ir.dtype import F32
from ggsched.ir.tensor import contiguous_strides
from ggsched_kernels import KernelCall
from ggsched_kernels.calls import Launch
from tests.backends.test_cuda_rope_attention import H200, NAME, layer, step_of
from tests.backends.test_cuda_rope_kv_write import Memory
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B, LLAMA_8B

READS_EARLY = ("READS_EARLY", "1")
ATTENTION = KernelCall("heads_attention", (("A", "1"), ("Z", "1")), "heads_attention", (),
                       (1, 1, 1), 128, "attention")  # fmt: skip
WARP_SPECIALIZED = replace(ATTENTION, source="warp_specialized_rows",
                           kernel="warp_specialized_rows", label="product",
                           launch=Launch.WAITS_FIRST)  # fmt: skip
HERE, THERE = Memory(4096), Memory(4096)


def span(buffer, begin, end):
    shape = ((end - begin) // 4,)
    return Operand(buffer, begin, end - begin, F32, shape, contiguous_strides(F32, shape))


def reads(before, read, *written):
    from ggsched_cuda_kernels.pdl_prefetch import reading_early

    attention = replace(ATTENTION, early_reads=(read,))
    call = reading_early(attention, before, written)
    assert replace(call, defines=ATTENTION.defines) == attention
    assert call.defines == tuple(sorted(call.defines))
    return READS_EARLY in call.defines


def test_nothing_that_the_predecessor_writes():
    read = span(HERE, 512, 1024)
    assert reads(WARP_SPECIALIZED, read)
    assert reads(
        WARP_SPECIALIZED, read, span(THERE, 512, 1024), span(HERE, 0, 512), span(HERE, 1024, 2048)
    )
    for at in ((512, 1024), (0, 4096), (600, 604), (0, 516), (1020, 2048)):
        assert not reads(WARP_SPECIALIZED, read, span(THERE, 0, 4), span(HERE, *at)), at


def test_nor_a_line_of_which_it_writes_a_part():
    read = span(HERE, 520, 1020)
    assert not reads(WARP_SPECIALIZED, read, span(HERE, 1020, 1024))
    assert not reads(WARP_SPECIALIZED, read, span(HERE, 512, 516))
    assert reads(WARP_SPECIALIZED, read, span(HERE, 384, 512), span(HERE, 1024, 1028))


def test_the_predecessor_waits_before_it_lets_go():
    read = span(HERE, 0, 128)
    for launch in Launch:
        assert reads(replace(WARP_SPECIALIZED, launch=launch), read) == (
            launch is Launch.WAITS_FIRST
        )


def test_a_call_without_early_reads_is_as_it_was():
    from ggsched_cuda_kernels.pdl_prefetch import reading_early

    assert reading_early(ATTENTION, WARP_SPECIALIZED, ()) is ATTENTION


@pytest.mark.parametrize("hp", [LLAMA_1B, LLAMA_8B, GPT_OSS_20B], ids=NAME)
def test_every_layer_of_a_step(hp):
    """Products of a layer write nothing that its attention finds in memory already."""
    from ggsched_cuda_kernels.kernel_selection import lower

    calls = [c for c in lower(step_of(hp), H200)[0] if c.kernel == "heads_attention"]
    assert len(calls) == hp.n_layer
    assert all(READS_EARLY in call.defines for call in calls)


def in_the_way(nodes, take):
    """Let the product before the first attention write where attention reads."""
    at = next(i for i, n in enumerate(nodes) if n.op == "attention")
    k, v, _, bounds = nodes[at].inputs
    first = next(i for i, n in enumerate(nodes) if n.op == "rope")
    rope = nodes[first]
    place = {"bounds": bounds, "keys": k, "values": v, "positions": rope.inputs[1]}[take]
    # The last product before the rotations makes v, which nobody but the cache takes.
    last = max(i for i in range(first) if nodes[i].op == "mul_mat")
    made = nodes[last].output
    moved = replace(made, buffer=place.buffer, offset=place.offset)
    swap = lambda o: moved if (o.buffer, o.offset) == (made.buffer, made.offset) else o  # noqa: E731
    some = [
        replace(n, inputs=tuple(map(swap, n.inputs)), output=swap(n.output))
        for n in nodes[last : at + 1]
    ]
    return [*nodes[:last], *some, *nodes[at + 1 :]]


@pytest.mark.parametrize("take", ["bounds", "keys", "values", "positions"])
def test_a_product_that_writes_it(take):
    from ggsched_cuda_kernels.kernel_selection import lower

    calls = lower(in_the_way(step_of(LLAMA_1B), take), H200)[0]
    first = next(call for call in calls if call.kernel in ("heads_attention", "attention"))
    assert READS_EARLY not in first.defines


def test_the_first_call_of_a_program():
    """Nobody knows what was enqueued before it."""
    from ggsched_cuda_kernels.kernel_selection import lower

    (call,), _ = lower(layer(), H200)
    assert call.kernel == "heads_attention"
    assert READS_EARLY not in call.defines


@pytest.mark.parametrize("made", ["new_v", "mask", "keys"])
def test_what_is_run_on_gpus(made):
    """There the same comes out wrong if places are not compared."""
    from benchmarks.gpu.pdl_prefetch import bound, product_and_layer
    from ggsched_cuda_kernels.kernel_selection import lower

    graph = product_and_layer(made)
    nodes = bound(graph, {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view})
    calls, _ = lower(nodes, H200)
    assert [call.kernel for call in calls] == ["warp_specialized_rows", "heads_attention"]
    assert (READS_EARLY in calls[-1].defines) == (made == "new_v")
