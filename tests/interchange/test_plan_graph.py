"""Plans and graphs as networkx graphs and in DOT."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.cli.main import main
from ggsched.interchange.plan_graph import plan_to_networkx, splits_to_networkx
from ggsched.ir.builder import GraphBuilder
from ggsched.passes import make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.plan.command import Barrier, HostSync, Record, Wait
from ggsched_commands.dot import graph_to_dot, plan_to_dot, splits_to_dot
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import constraints, topologies
from tests.interchange.dot_reader import read
from tests.passes.machines import machine

SEVERAL = PlanOptions(StreamPolicy(2, True))


@st.composite
def plans(draw):
    graph = draw(graphs(max_nodes=8)).graph
    topology = draw(topologies(max_devices=3))
    return make_plan(graph, topology, draw(constraints(graph, topology)), SEVERAL)


def of_kind(flow, *kinds):
    return [(a, b, d) for a, b, d in flow.edges(data=True) if d["kind"] in kinds]


@given(plan=plans())
def test_order_edges_order_every_hazard_of_a_run(plan):
    flow = plan_to_networkx(plan)
    order = nx.DiGraph((a, b) for a, b, _ in of_kind(flow, "stream", "event", "host"))
    order.add_nodes_from(flow)
    assert nx.is_directed_acyclic_graph(order)
    for earlier, later, hazard in of_kind(flow, "hazard"):
        if "host" not in (earlier, later) and not hazard["next_run"]:
            assert nx.has_path(order, earlier, later), (earlier, later, hazard)


@given(plan=plans())
def test_everything_in_a_plan_is_in_its_graph(plan):
    flow = plan_to_networkx(plan)
    assert set(flow) - {"host"} == {f"c{c.id}" for c in plan.commands}
    waits = [c for c in plan.commands if isinstance(c, Wait | Barrier | HostSync)]
    assert len(of_kind(flow, "hazard")) == len(waits)
    assert {d["by"] for _, _, d in of_kind(flow, "hazard")} == {f"c{c.id}" for c in waits}
    events = [c for c in plan.commands if isinstance(c, Wait | HostSync) and c.event is not None]
    assert len(of_kind(flow, "event")) == len(events)
    records = {f"c{c.id}" for c in plan.commands if isinstance(c, Record)}
    assert {a for a, _, _ in of_kind(flow, "event")} <= records
    used = {c.stream for c in plan.commands}
    assert len(of_kind(flow, "stream")) == len(plan.commands) - len(used)


@given(drawn=graphs(max_nodes=8, views=False), topology=topologies(max_devices=3), data=st.data())
def test_splits_flow_where_the_graph_flows(drawn, topology, data):
    graph = drawn.graph
    wanted = data.draw(constraints(graph, topology, pin_all=True))
    plan, reads_peers = make_plan(graph, topology, wanted), wanted.reads_peers
    flow, nodes = splits_to_networkx(plan), graph.to_networkx()
    assert nx.is_directed_acyclic_graph(nx.DiGraph(flow))
    split_of = {f"n{i}": f"s{s.id}" for s in plan.splits.splits for i in range(s.first, s.end)}
    device_of = dict(flow.nodes(data="device"))
    reads = {
        (a, b)
        for a, b, d in nodes.edges(data=True)
        if a in split_of and d["tensor"] in graph.nodes[int(b[1:])].inputs
    }
    wanted = {(split_of[a], split_of[b]) for a, b in reads}
    assert {(a, b) for a, b in wanted if a != b} == set(flow.edges())
    for a, b, d in flow.edges(data=True):
        assert d["copied"] or device_of[a] == device_of[b] or reads_peers
        assert d["nbytes"] > 0 or not plan.splits.values[int(d["value"][1:])].nbytes


@given(plan=plans(), limit=st.integers(0, 12))
def test_dot_is_read_by_others_and_says_what_is_left_out(plan, limit):
    for text, count in (
        (plan_to_dot(plan, max_nodes=limit), len(plan.commands)),
        (splits_to_dot(plan, max_nodes=limit), len(plan.splits.splits)),
    ):
        names = set(read(text)[0])
        assert len(names - {"host", "left out"}) == min(limit, count)
        assert (f"{count - limit} more " in text) == (count > limit)
        assert ("left out" in names) == (count > limit)


@given(drawn=graphs(max_nodes=8), limit=st.integers(0, 12))
def test_dot_of_graphs(drawn, limit):
    flow = drawn.graph.to_networkx()
    names, edges = read(graph_to_dot(drawn.graph))
    assert set(names) == set(flow)
    assert sorted(edges) == sorted(set(flow.edges()))
    cut = graph_to_dot(drawn.graph, max_nodes=limit)
    kept = set(read(cut)[0]) - {"left out"}
    assert len(kept) <= limit
    assert ("are left out" in cut) == (len(kept) < len(flow))


NASTY = [
    '"',
    "\\",
    '\\"',
    'a"]; evil [label="',
    "line\nbreak",
    "\0\x1b[31m",
    "<b>html</b>",
    "ß→" * 200,
]


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_labels_are_text_whatever_they_hold(name):
    g = GraphBuilder(name)
    x = g.input(f"x{name}", (4,))
    graph = g.build(g.op("silu", g.add(x, g.weight(f"w{name}", (4,))), name=name))
    plan = make_plan(graph, machine("gpu:0"))
    for text in (graph_to_dot(graph), plan_to_dot(plan), splits_to_dot(plan)):
        assert all(name.replace(" ", "").isalnum() for name in read(text)[0])
        assert all(c.isprintable() or c == "\n" for c in text)
        assert max(map(len, text.splitlines())) < 1000


def test_a_plan_over_two_devices():
    g = GraphBuilder("two")
    x = g.input("x", (4,))
    h = g.silu(g.add(x, g.weight("a", (4,))))
    graph = g.build(g.silu(g.add(h, g.weight("b", (4,)))))
    from ggsched.passes import Constraints

    plan = make_plan(graph, machine("gpu:0", "gpu:1"), Constraints(homes={"a": 0, "b": 1}))
    flow = plan_to_networkx(plan)
    kinds = {d["kind"] for _, d in flow.nodes(data=True)}
    assert {"launch", "copy", "upload", "download", "record", "wait", "host_sync"} <= kinds
    assert {d["device"] for _, d in flow.nodes(data=True)} >= {"gpu:0", "gpu:1"}
    (edge,) = splits_to_networkx(plan).edges(data=True)
    assert edge == ("s0", "s1", {"value": edge[2]["value"], "nbytes": 16, "copied": True})


def test_command_line(tmp_path, capsys):
    from tests.models.helpers import ORACLE

    model, path = str(ORACLE / "llama-tiny-f32.gguf"), tmp_path / "plan.dot"
    assert main(["plan", model, "--devices", "cpu:0,cpu:1", "--dot", str(path)]) == 0
    assert "c0" in read(path.read_text(encoding="utf-8"))[0]
    capsys.readouterr()
    assert main(["plan", model, "--devices", "cpu:0", "--dot", str(tmp_path / "no" / "p")]) == 2
    err = capsys.readouterr().err
    assert "cannot write the picture" in err
    assert err.count("\n") == 1
