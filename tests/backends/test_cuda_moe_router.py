"""Which neighbours become one kernel that chooses experts; no GPU is needed."""

from dataclasses import replace

import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched_kernels import warp_profile
from ggsched_testing.eager import bound_nodes

H200 = warp_profile(132, 232448, True)
ALL = ["soft_max", "sort_blocks", "get_rows", "sum_short_rows", "binary"]


class Memory:
    """A buffer for lowering."""

    device = BaseDevice(host_facts("nowhere", ()), {})

    def __init__(self, nbytes):
        self.nbytes = nbytes


def bound(graph):
    return bound_nodes(graph, {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view})


def by_logits(tokens=1, experts=32, used=4, **changes):
    """Return the nodes of a route as in gpt-oss, bound; ``changes`` make it something else."""
    g = GraphBuilder("route")
    logits = g.input("logits", (tokens, experts))
    ids = g.top_k(logits, used)
    table = g.input("other", logits.shape) if changes.get("table") else logits
    picked = g.get_rows(g.reshape(table, tokens, experts, 1), ids)
    flat = g.reshape(picked, tokens, used)
    if changes.get("turned"):
        flat = g.reshape(picked, used, tokens)
    mask = g.input("mask", flat.shape) if changes.get("mask") else None
    return bound(g.build(ids, picked, g.soft_max(flat, mask)))


def by_probabilities(tokens=1, experts=128, used=8, **changes):
    """Return the nodes of a route as in qwen3moe, bound."""
    g = GraphBuilder("route")
    logits = g.input("logits", (tokens, experts))
    probs = g.soft_max(logits)
    ids = g.top_k(logits if changes.get("by_logits") else probs, used)
    picked = g.get_rows(g.reshape(probs, tokens, experts, 1), ids)
    flat = g.reshape(picked, tokens, used)
    total = g.sum_rows(flat)
    other = g.input("ones", (tokens, used))
    sides = (other, total) if changes.get("other") else (flat, total)
    return bound(g.build(ids, picked, g.div(*sides)))


def kernels(nodes):
    from ggsched_cuda_kernels.kernel_selection import lower

    return [call.kernel for call in lower(nodes, H200)[0]]


@pytest.mark.parametrize("tokens", [1, 2, 8, 32])
def test_three_become_one(tokens):
    from ggsched_cuda_kernels.kernel_selection import lower

    (call,), _ = lower(by_logits(tokens), H200)
    assert (call.source, call.kernel, call.groups) == ("moe_router", "route_chosen", (1, 1, 1))
    assert call.lanes == 32 * tokens


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_five_become_one(tokens):
    from ggsched_cuda_kernels.kernel_selection import lower

    (call,), _ = lower(by_probabilities(tokens), H200)
    assert (call.source, call.kernel, call.groups) == ("moe_router", "route_all", (1, 1, 1))
    assert call.lanes == 128 << (tokens - 1).bit_length()


@pytest.mark.parametrize(
    "changes",
    [{"tokens": 33}, {"experts": 513}, {"used": 33, "experts": 64}, {"table": True}, {"mask": True},
     {"turned": True, "tokens": 2}],
    ids=str,
)  # fmt: skip
def test_other_three_stay_apart(changes):
    found = kernels(by_logits(**changes))
    assert "route_chosen" not in found
    assert len(found) >= 3


@pytest.mark.parametrize("changes", [{"tokens": 9}, {"by_logits": True}, {"other": True}], ids=str)
def test_other_five_stay_apart(changes):
    assert kernels(by_probabilities(**changes)) == ALL


def test_what_is_not_all_there_stays_apart():
    assert kernels(by_logits()[:2]) == ["sort_blocks", "get_rows"]
    assert kernels(by_logits()[1:]) == ["get_rows", "soft_max"]
    assert kernels(by_probabilities()[:4]) == ALL[:4]


def test_nodes_of_a_group_are_left_to_it():
    nodes = by_logits()
    group = Group("no such pattern", tuple(n.node for n in nodes[1:]))
    nodes[1:] = [replace(n, group=group) for n in nodes[1:]]
    assert kernels(nodes) == ["sort_blocks", "get_rows", "soft_max"]
