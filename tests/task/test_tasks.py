"""Task graphs: results, order, failures, cancellation, and what is left of objects afterwards."""

import gc
import operator
import threading
import time
import weakref

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import GraphError, PlanError, UsageError
from ggsched.sanitize import check_plan
from ggsched_task import (
    TaskCancelled,
    TaskFailed,
    TaskGraph,
    TaskRunner,
    from_networkx,
    to_networkx,
)

WORKERS = ({"cpu": 1}, {"cpu": 3}, {"cpu": 2, "gpu": 1})


@pytest.fixture(params=WORKERS, ids=str)
def runner(request):
    with TaskRunner(request.param) as made:
        yield made


class Thing:
    """An object that can be watched."""


def test_objects_of_any_type_flow(runner):
    g = TaskGraph()
    text, n = g.input("text"), g.input("n")
    words = g.add(str.split, text)
    pairs = g.add(lambda w, k, sep: [sep.join(w)] * k, words, n, kwargs={"sep": "-"})
    counts = g.add(lambda w: {x: len(x) for x in w}, words, cost=1e-3)
    both = g.add(lambda *a: a, pairs, counts, pairs, 7)
    found = runner.run(g, {"text": "a bc", "n": 2}, [both, words, both])
    wanted = (["a-bc"] * 2, {"a": 1, "bc": 2}, ["a-bc"] * 2, 7)
    assert found == [wanted, ["a", "bc"], wanted]


def test_only_what_is_needed_runs(runner):
    g = TaskGraph()
    unused = g.input("unused")
    g.add(lambda _: pytest.fail("runs"), unused)
    assert runner.run(g, {}, [g.add(lambda: None)]) == [None]


@st.composite
def networks(draw):
    """Draw sums over earlier results, with costs that spread them over workers."""
    g = TaskGraph("drawn")
    values = [g.input("x"), g.input("y")]
    for i in range(draw(st.integers(1, 12))):
        args = draw(st.lists(st.sampled_from(values), max_size=3))
        kind = draw(st.sampled_from(("any", "any", "cpu", "gpu")))
        cost = draw(st.sampled_from((0.0, 1e-4, 1e-2)))
        values.append(g.add(lambda *a, i=i: (i, *a), *args, kind=kind, cost=cost, kwargs={}))
    outputs = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3))
    return g, outputs


def by_hand(g, inputs, outputs):
    made = {value.slot: inputs[name] for name, value in g.inputs.items()}
    for slot, task in g.tasks.items():
        made[slot] = task.function(*(made[a.slot] for a in task.args))
    return [made[value.slot] for value in outputs]


@settings(deadline=None, max_examples=30)
@given(drawn=networks())
def test_results_are_those_of_calls_in_order_and_plans_have_no_race(drawn):
    with TaskRunner({"cpu": 2, "gpu": 1}, speeds={"gpu": 4}) as pair:
        agree(pair, drawn)


def agree(pair, drawn):
    g, outputs = drawn
    plan = pair.plan(g, outputs)
    check_plan(plan, graph=g.lowered(outputs)).raise_if_findings()
    names = [d.name for d in plan.devices]
    for node, choice in zip(g.lowered(outputs).nodes, plan.placement.choices, strict=True):
        kind = node.op.removeprefix("task.")
        assert kind == "any" or names[choice.device].startswith(kind)
    inputs = {"x": "x", "y": "y"}
    for _ in range(2):
        given = {n: v for n, v in inputs.items() if n in g.lowered(outputs)}
        assert pair.run(g, given, outputs) == by_hand(g, inputs, outputs)
    network = to_networkx(g)
    again, made = from_networkx(network)
    same = [made[value.name] for value in outputs]
    assert pair.run(again, inputs, same) == by_hand(g, inputs, outputs)


def test_graphs_of_one_structure_share_a_plan_and_keep_their_functions(runner):
    for factor in (2, 3):
        g = TaskGraph()
        y = g.add(lambda x, factor=factor: x * factor, g.input("x"), name="y")
        assert runner.run(g, {"x": 5}, [y]) == [5 * factor]


def test_independent_tasks_run_beside_each_other():
    """Each waits for the other, so one after the other they would not end."""
    barrier = threading.Barrier(2, timeout=20)
    g = TaskGraph()
    ends = [g.add(barrier.wait, cost=1.0) for _ in range(2)]
    with TaskRunner({"cpu": 2}) as runner:
        assert sorted(runner.run(g, {}, ends)) == [0, 1]


class TestObjects:
    def test_are_released_after_their_last_reader(self, runner):
        g, seen, born = TaskGraph(), [], []

        def make():
            thing = Thing()
            born.append(weakref.ref(thing))
            return thing

        a = g.add(make)
        b = g.add(lambda thing: None, a)
        c = g.add(lambda _: seen.append([ref() is None for ref in born]), b)
        runner.run(g, {}, [c])
        assert seen == [[True]]

    def test_nothing_is_kept_after_a_run(self, runner):
        thing = Thing()
        ref = weakref.ref(thing)
        g = TaskGraph()
        same = g.add(lambda x: x, g.input("x"))
        assert runner.run(g, {"x": thing}, [same])[0] is thing
        del thing
        gc.collect()
        assert ref() is None

    def test_nothing_is_kept_after_a_failure(self, runner):
        thing = Thing()
        ref = weakref.ref(thing)
        g = TaskGraph()
        x = g.input("x")
        bad = g.add(lambda x: 1 / 0, x)
        with pytest.raises(TaskFailed):
            runner.run(g, {"x": thing}, [g.add(lambda a, b: a, x, bad)])
        del thing
        gc.collect()
        assert ref() is None


class TestFailures:
    def test_the_cause_is_what_was_raised(self, runner):
        g, ran = TaskGraph("sums"), []
        x = g.input("x")
        bad = g.add(lambda x: [][x], x, name="pick")
        later = g.add(lambda b: ran.append(1), bad)
        with pytest.raises(TaskFailed, match=r"task 'pick' failed.*IndexError") as caught:
            runner.run(g, {"x": 3}, [later])
        assert isinstance(caught.value.__cause__, IndexError)
        assert not ran
        fine = g.add(lambda x: x + 1, x)
        assert runner.run(g, {"x": 3}, [fine]) == [4]

    def test_what_is_no_exception_is_raised_as_it_is(self, runner):
        g = TaskGraph()

        def leave():
            raise SystemExit(7)

        with pytest.raises(SystemExit):
            runner.run(g, {}, [g.add(leave)])
        assert runner.run(g, {}, [g.add(int)]) == [0]

    def test_cancel_leaves_out_what_has_not_begun(self, runner):
        g, ran, begun = TaskGraph(), [], threading.Event()

        def first():
            begun.set()
            time.sleep(0.05)

        def cancel():
            begun.wait(20)
            runner.cancel()

        a = g.add(first)
        thread = threading.Thread(target=cancel)
        thread.start()
        x = a
        for _ in range(3):
            x = g.add(lambda _: time.sleep(0.05) or ran.append(1), x)
        with pytest.raises(TaskCancelled):
            runner.run(g, {}, [x])
        thread.join()
        assert len(ran) < 3
        runner.cancel()  # nothing runs: no effect
        assert runner.run(g, {}, [a]) == [None]

    def test_messages(self, runner):
        g = TaskGraph("t")
        x = g.input("x")
        y = g.add(abs, x)
        other = TaskGraph().input("x")
        with pytest.raises(UsageError, match="no object for input 'x'"):
            runner.run(g, {}, [y])
        with pytest.raises(UsageError, match="no input 'z'"):
            runner.run(g, {"x": 1, "z": 1}, [y])
        with pytest.raises(GraphError, match="belongs to another graph"):
            g.add(abs, other)
        with pytest.raises(GraphError, match="the name 'x' is taken"):
            g.input("x")
        with pytest.raises(GraphError, match="cannot be called"):
            g.add(3)
        with pytest.raises(GraphError, match="a cost of"):
            g.add(abs, x, cost=-1)
        with pytest.raises(GraphError, match="an input cannot be an output"):
            runner.run(g, {"x": 1}, [x])
        with pytest.raises(GraphError, match="at least one output"):
            runner.run(g, {}, [])
        with pytest.raises(PlanError, match=r"no device supports task\.tpu"):
            runner.run(g, {"x": 1}, [g.add(abs, x, kind="tpu")])
        with pytest.raises(UsageError, match="0 workers"):
            TaskRunner({"cpu": 0})
        with pytest.raises(UsageError, match="speed"):
            TaskRunner(speeds={"gpu": 1})


class TestNetworks:
    def test_a_network_of_calls(self, runner):
        network = nx.DiGraph(name="n")
        network.add_node("x")
        network.add_node("y")
        network.add_node("d", task=operator.sub, cost=1e-3)
        network.add_edge("y", "d", arg=0)
        network.add_edge("x", "d", arg=1)
        network.add_node("p", task=pow, constants={1: 2})
        network.add_edge("d", "p")
        graph, values = from_networkx(network)
        assert runner.run(graph, {"x": 1, "y": 4}, [values["p"]]) == [9]

    def test_what_makes_no_sense(self):
        ring = nx.DiGraph([(0, 1), (1, 0)])
        nx.set_node_attributes(ring, abs, "task")
        with pytest.raises(GraphError, match="has a cycle"):
            from_networkx(ring)
        with pytest.raises(GraphError, match="not directed"):
            from_networkx(nx.Graph())
        with pytest.raises(GraphError, match="cannot depend"):
            from_networkx(nx.DiGraph([(0, 1)]))
        twice = nx.MultiDiGraph([(0, 1), (0, 1)])
        twice.nodes[1]["task"] = pow
        for edge in twice.edges:
            twice.edges[edge]["arg"] = 0
        with pytest.raises(GraphError, match="given twice"):
            from_networkx(twice)
        for edge in nx.DiGraph([(0, 1)]).edges:
            hole = nx.DiGraph([edge])
            hole.nodes[1]["task"] = pow
            hole.edges[edge]["arg"] = 1
            with pytest.raises(GraphError, match="leave one open"):
                from_networkx(hole)
