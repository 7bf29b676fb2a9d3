"""What is merged in imported graphs: results are the same, and nodes fewer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GraphBuilder
from ggsched_import.common.emit import Emitter, reshaped_strides
from ggsched_import.common.simplify import simplified
from ggsched_testing.oracle.interpreter import run_oracle


def attention(g, *, scales_queries=False, scales_scores=False, mask=None, is_second=False):
    k, q = g.input("k", (2, 3, 7, 8)), g.input("q", (2, 3, 5, 8))
    scores = g.mul_mat(k, g.scale(q, 0.5) if scales_queries else q)
    scores = g.scale(scores, 0.25) if scales_scores else scores
    if mask is not None:
        terms = scores, g.input("mask", mask)
        scores = g.add(*(terms[::-1] if is_second else terms))
    return g.soft_max(scores)


def results(graph, seed=0):
    rng = np.random.default_rng(seed)
    inputs = {t.name: t.shape for t in graph.tensors if t.role.value == "input" and not t.is_view}
    values = {n: rng.standard_normal(inputs[n]).astype("f") for n in sorted(inputs)}
    return [run_oracle(graph, values)[tid] for tid in graph.outputs]


@pytest.mark.parametrize("mask", [None, (2, 1, 5, 7), (7,), (2, 3, 5, 7)])
@pytest.mark.parametrize("scales", [(False, True), (True, False), (True, True)])
def test_scales_and_masks_go_into_the_softmax(mask, scales):
    g = GraphBuilder()
    queries, scores = scales
    how = {"scales_queries": queries, "scales_scores": scores, "mask": mask}
    graph = g.build(attention(g, **how, is_second=mask == (2, 3, 5, 7)))
    found, _ = simplified(graph, {})
    assert [n.op for n in found.nodes] == ["mul_mat", "soft_max"]
    np.testing.assert_allclose(results(found)[0], results(graph)[0], rtol=1e-5, atol=1e-6)


def test_scores_that_are_read_again_stay():
    g = GraphBuilder()
    x = g.scale(g.input("x", (2, 6)), 3.0)
    graph = g.build(g.soft_max(x), x)
    found, _ = simplified(graph, {})
    assert [n.op for n in found.nodes] == ["scale", "soft_max"]


def test_what_is_computed_twice_is_computed_once():
    g = GraphBuilder()
    mask, x = g.input("mask", (4, 6)), g.input("x", (4, 6))
    layers = [g.add(x, g.op("nd.relu", g.scale(mask, 2.0))) for _ in range(3)]
    graph = g.build(g.mul(g.mul(layers[0], layers[1]), layers[2]))
    found, _ = simplified(graph, {})
    assert sorted(n.op for n in found.nodes) == ["add", "mul", "mul", "nd.relu", "scale"]
    np.testing.assert_allclose(results(found)[0], results(graph)[0], rtol=1e-6)


def test_outputs_have_nodes_of_their_own():
    g = GraphBuilder()
    x = g.input("x", (4, 6))
    graph = g.build(g.silu(x), g.silu(x), g.silu(g.transpose(x)))
    found, _ = simplified(graph, {})
    assert len(found.nodes) == 3


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_another_shape_of_a_view_is_a_view_where_numpy_has_one(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    perm = data.draw(st.permutations(range(len(shape))))
    g = Emitter("views").g
    x = g.permute(g.input("x", shape), *perm)
    array = np.arange(np.prod(shape), dtype="f").reshape(shape).transpose(perm)
    steps = data.draw(st.lists(st.sampled_from([1, 2]), min_size=len(shape), max_size=len(shape)))
    if data.draw(st.booleans()):
        array = array[tuple(slice(None, None, s) for s in steps)]
        strides = [a * s for a, s in zip(x.strides, steps, strict=True)]
        x = g.view(x, array.shape, strides)
    left, wanted = array.size, []
    while left > 1:
        wanted.append(data.draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0])))
        left //= wanted[-1]
    found = reshaped_strides(x, wanted)
    view = array.view()
    try:
        view.shape = tuple(wanted)
    except AttributeError:
        assert found is None
    else:
        assert found is not None
        made = np.lib.stride_tricks.as_strided(array, wanted, found)
        np.testing.assert_array_equal(made, view)
