"""Simulated devices read constants whenever the contract allows it (LCH-7)."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ggsched.backend.probe import probe
from ggsched.backend.program import BoundNode, Group, Operand, full_params
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32
from ggsched.passes import make_plan
from ggsched.sanitize import check_plan
from ggsched_testing.explore import PlanProgram, explore
from ggsched_testing.schedule_policy import EagerPolicy, LaziestPolicy
from ggsched_testing.sim import SimConfig, SimWorld
from tests.testing.sims import (
    A,
    B,
    N,
    content,
    device_of,
    filled,
    on_sim,
    program,
    raw,
    seen,
    unary,
)


def doubled(source, target, *, is_constant=True):
    """Return a node that doubles a buffer, which is constant."""
    node = unary("scale", source, target, scale=2.0)
    (x,) = node.inputs
    return replace(node, inputs=(replace(x, is_constant=is_constant),))


@pytest.mark.parametrize("is_constant", [False, True])
def test_before_what_the_stream_was_given(is_constant):
    """The caller breaks the promise: an upload in front of the launch rewrites the constant."""

    def body(world, d):
        q = d.create_stream()
        c, y = filled(q, A), d.allocate(4 * N)
        work = program(q, doubled(c, y, is_constant=is_constant))
        q.upload(raw(B), c, 0)
        q.launch(work)
        q.sync(1)
        return {"y": str(content(y).tolist())}

    found = explore(on_sim(body))
    assert found.is_complete
    right, early = str((2 * B).tolist()), str((2 * A).tolist())
    values = seen(found, "y")
    if is_constant:
        assert {right, early} < values
        assert any("nan" in value for value in values)  # half of the upload
    else:
        assert values == {right}


@pytest.mark.parametrize("is_constant", [False, True])
def test_before_the_event_that_the_stream_waits_for(is_constant):
    def body(world, d):
        q, r = d.create_stream(), d.create_stream()
        c, y, event = filled(q, A), d.allocate(4 * N), d.create_event()
        work = program(q, doubled(c, y, is_constant=is_constant))
        r.upload(raw(B), c, 0)
        r.record(event)
        q.wait(event)
        q.launch(work)
        q.sync(1)
        return {"y": str(content(y).tolist())}

    values = seen(explore(on_sim(body)), "y")
    assert (str((2 * A).tolist()) in values) == is_constant


def test_not_before_the_launch_is_enqueued_nor_after_it():
    """Rewritten while idle, and again behind the launch: both are the caller's right or not."""

    def body(world, d):
        q = d.create_stream()
        c, y = filled(q, A), d.allocate(4 * N)
        work = program(q, doubled(c, y))
        q.upload(raw(B), c, 0)
        q.sync(1)
        q.launch(work)
        q.upload(raw(A), c, 0)
        q.sync(1)
        return {"y": str(content(y).tolist())}

    found = explore(on_sim(body))
    assert found.is_complete
    assert seen(found, "y") == {str((2 * B).tolist())}


def test_early_or_late():
    """A held stream: what an eager device has read by then, a lazy one has not."""
    for policy, expected in ((EagerPolicy(), 2 * A), (LaziestPolicy(), 2 * B)):
        d = device_of(policy)
        q = d.create_stream()
        c, y = filled(q, A), d.allocate(4 * N)
        latch = q.hold()
        q.launch(program(q, doubled(c, y)))
        c.array.view(np.float32)[:] = B
        latch.release()
        q.sync(1)
        assert (content(y) == expected).all()


def test_each_launch_reads_anew():
    d = device_of(EagerPolicy())
    q = d.create_stream()
    c, y, z = filled(q, A), d.allocate(4 * N), d.allocate(4 * N)
    first, second = program(q, doubled(c, y)), program(q, doubled(c, z))
    latch = q.hold()
    q.launch(first)
    c.array.view(np.float32)[:] = B
    q.launch(second)
    latch.release()
    q.sync(1)
    assert (content(y) == 2 * A).all()
    assert (content(z) == 2 * B).all()


def test_constants_of_groups():
    """Of a product and what is added to it both may be constant, and both are read early."""
    d = device_of(EagerPolicy())
    q = d.create_stream()
    w, bias, x, made, out = (filled(q, A) for _ in range(5))
    group = Group("mul_mat+add", (0, 1))

    def vector(buffer, *, is_constant=False):
        return Operand(buffer, 0, 4 * N, F32, (1, N), (4 * N, 4), is_constant=is_constant)

    def one(buffer, *, is_constant=False):
        return Operand(buffer, 0, 4, F32, (1, 1), (4, 4), is_constant=is_constant)

    params = full_params("mul_mat", {})
    operands = vector(w, is_constant=True), vector(x)
    product = BoundNode(0, "mul_mat", operands, one(made), params, "n0 mul_mat", group)
    operands = one(made), one(bias, is_constant=True)
    total = BoundNode(1, "add", operands, one(out), full_params("add", {}), "n1 add", group)
    latch = q.hold()
    q.launch(program(q, product, total))
    for buffer in (w, bias, x):
        buffer.array.view(np.float32)[:] = B
    latch.release()
    q.sync(1)
    assert content(out)[0] == A @ B + A[0]


def test_times_and_things_are_as_without():
    def timeline(is_constant):
        d = device_of(EagerPolicy())
        q = d.create_stream()
        q.launch(program(q, doubled(filled(q, A), d.allocate(4 * N), is_constant=is_constant)))
        q.sync(1)
        return [(s.kind, s.start_s, s.end_s) for s in d.world.timeline()]

    assert timeline(True) == timeline(False)


def test_a_plan_that_writes_a_weight_is_wrong():
    """It is a plan for a state, and sound, but for what its arena is called."""
    g = GraphBuilder("g")
    s = g.state("s", (N,))
    stored = g.op("cpy", g.input("x", (N,)), s)
    graph = g.build(g.scale(stored, 2.0))
    topology = probe(SimWorld([SimConfig()]).open_all())
    plan = make_plan(graph, topology)
    arenas = [
        msgspec.structs.replace(a, kind="weight") if a.kind == "state" else a
        for a in plan.memory.arenas
    ]
    memory = msgspec.structs.replace(plan.memory, arenas=tuple(arenas))
    broken = msgspec.structs.replace(plan, memory=memory)
    values = [{"x": A, "s": B}, {"x": B, "s": B}]
    sound, wrong = PlanProgram(graph, plan, values), PlanProgram(graph, broken, values)
    assert [o.observation for o in explore(sound).outcomes] == [sound.expected()]
    assert wrong.expected() not in [o.observation for o in explore(wrong).outcomes]
    assert any("weights are constant" in str(f) for f in check_plan(broken).findings)
