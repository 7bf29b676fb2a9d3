"""Runs of plans beside what was predicted; groups and collectives by name."""

import msgspec
import pytest

from ggsched.plan.collectives import collective_of
from ggsched.plan.fusions import Fusion
from ggsched.report.text import account_text
from ggsched.trace.timeline import NodeSpan, Span, TimedRun, Timeline, Track
from ggsched.trace.times import timeline_of
from ggsched.trace.utilization import account, plan_accounts
from tests.report.plans import batches_through_stages, expected_of, gpus, pipeline_trace
from tests.trace.timelines import copy, launch, timeline


@pytest.fixture(scope="module")
def pipeline():
    return pipeline_trace(2, 6)


def test_runs_beside_what_is_predicted(pipeline):
    (found,) = plan_accounts(timeline_of(pipeline), pipeline.plans)
    assert found.name == "6 micro-batches, 2 stages"
    assert found.runs == 1
    assert 0 < found.idle < 1
    assert found.expected_s > 0
    assert 0 < found.expected_idle < 1
    text = account_text(account(timeline_of(pipeline), pipeline.plans))
    line = next(line for line in text.splitlines() if line.startswith(found.name))
    assert line.split()[-1] == f"{found.expected_idle:.1%}"
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_stands_beside_what_is_only_predicted():
    made, traced = expected_of(*batches_through_stages(2, 3), gpus(2))
    (found,) = plan_accounts(made, [traced])
    assert found.expected_s == 0
    assert found.best_s > 0
    lines = account_text(account(made, [traced])).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("runs of plans"))
    assert lines[at + 1].endswith("%")


def test_idle_is_counted_in_the_fastest_run(pipeline):
    plan = pipeline.plans[0].plan
    # gpu:0 launches in 3 of 4 seconds, on two streams, gpu:1 in one; the other run is slow.
    by_hand = timeline(
        launch(1, 0, 2), launch(1, 1, 3), launch(2, 3, 4), copy(1, 0, 4), runs=[(0, 4)]
    )
    by_hand = msgspec.structs.replace(
        by_hand, plans=(plan,), runs=(*by_hand.runs, TimedRun(0, 4.0, 14.0))
    )
    (found,) = plan_accounts(by_hand)
    assert (found.runs, found.best_s, found.idle) == (2, 4, 1 - 4 / 8)


def test_a_fusion_group_is_one_node(pipeline):
    plan = pipeline.plans[0].plan
    info = [
        msgspec.structs.replace(plan.nodes[0], op="add", label=label)
        for label in ("ffn_sum#1@2", "l_out#1@2", "alone")
    ]
    grouped = msgspec.structs.replace(
        plan, nodes=(*info, *plan.nodes[3:]), fusions=(Fusion("add+add", (0, 1)),)
    )
    nodes = tuple(NodeSpan(f"n{i} add {n.label!r}", i, i + 1) for i, n in enumerate(info))
    span = Span(0, 0, "launch", "launch", 0.0, 0.0, 3.0, run=0, nodes=nodes)
    made = Timeline(
        "t", (Track(0, "cpu:0", "cpu:0"),), (span,), (TimedRun(0, 0.0, 3.0),), (grouped,)
    )
    assert [(o.op, o.nodes, o.seconds) for o in account(made).ops] == [
        ("add+add, sum over devices", 1, 2.0),
        ("add", 1, 1.0),
    ]
    traced = msgspec.structs.replace(pipeline.plans[0], plan=grouped, nodes=(0.5, 0.25, 4.0))
    beside = account(made, [traced])
    assert [o.expected_s for o in beside.ops] == [0.75, 4.0]  # a group by all of its nodes
    lines = account_text(beside).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("time by op"))
    assert [lines[at + n].split()[-3:-1] for n in (1, 2)] == [["750", "ms"], ["4", "s"]]
    damaged = msgspec.structs.replace(traced, nodes=(0.5,))
    assert [o.expected_s for o in account(made, [damaged]).ops] == [0.5, 0.0]


def test_each_node_of_a_run_is_predicted(pipeline):
    """What the cost model says of nodes adds up to what it says of launches, latencies apart."""
    (traced,) = pipeline.plans
    assert len(traced.nodes) == len(traced.plan.nodes)
    launches = [c.id for c in traced.plan.commands if c.effects.engine == "compute"]
    spans = {e.command: e.end_s - e.start_s for e in traced.expected}
    assert sum(traced.nodes) == pytest.approx(sum(spans[c] for c in launches), rel=0.5)
    assert min(traced.nodes) > 0


@pytest.mark.parametrize(
    ("label", "what"),
    [
        ("n12 add 'ffn_out-0_sum#1@3'", "sum over devices"),
        ("attn_out_sum#0", "sum over devices"),
        ("n3 concat 'logits_joined#0'", "join over devices"),
        ("n3 add 'row_sum'", ""),
        ("blk.0.attn_q#1", ""),
    ],
)
def test_what_a_label_says(label, what):
    assert collective_of(label) == what
