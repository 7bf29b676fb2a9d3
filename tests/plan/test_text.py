"""Plans for people."""

import re

import msgspec
import pytest

from ggsched.plan.effects import Hazard
from ggsched.plan.placement import Placement, PlacementChoice
from ggsched.plan.stats import plan_stats
from ggsched.plan.text import command_text, plan_text
from ggsched_testing.plan_builder import PlanWriter, fake_device
from tests.plan.examples import example


@pytest.fixture(scope="module")
def plan():
    return example().plan


def test_every_command_has_a_line(plan):
    lines = plan_text(plan).splitlines()
    for command in plan.commands:
        assert any(line.startswith(f"  c{command.id} q{command.stream} ") for line in lines)


def test_all_parts_are_there(plan):
    text = plan_text(plan)
    for title in ("devices", "splits", "memory", "commands", "stats"):
        assert f"\n{title}\n" in text
    assert "d0 gpu:0  q0  (copies stream)" in text
    assert "d1 cpu:0  q1  (copies stream, host memory)" in text
    assert re.search(r"s0 gpu:0 q0 {2}n0..n1 \(2 nodes\) {2}pin x2 \(gpu:0\)", text)
    assert "gpu:0  1 weight, 256 B" in text
    assert re.search(r"c\d+ q\d gpu:0 {2}launch s0 n0\.\.n1 \(2 nodes\)", text)
    assert re.search(r"wait e\d+ {2}RAW a\d+\[0:128\] of c\d+ before c\d+", text)


def test_verbose_shows_steps_and_weights(plan):
    text = plan_text(plan, verbose=True)
    assert re.search(r"n0 mul_mat 'blk.0.up' {2}r:a\d+\[0:256\] r:a\d+\[0:128\] w:a\d", text)
    assert "weight 'w'" in text
    assert len(text) > len(plan_text(plan))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_are_folded(plan, width):
    longest = max(len(line) for line in plan_text(plan, verbose=True, width=width).splitlines())
    assert longest <= width


def test_long_lists_are_cut_unless_verbose():
    w = PlanWriter(fake_device())
    q, a = w.stream(), w.fixed("state", 0, "kv", 16)
    for _ in range(60):
        w.launch(q, w.node("p", a))
    plan = w.plan()
    assert "... and 20 more splits" in plan_text(plan)
    assert "more splits" not in plan_text(plan, verbose=True)


def test_many_causes_are_summed():
    w = PlanWriter(fake_device())
    q, a = w.stream(), w.fixed("state", 0, "kv", 16)
    w.launch(q, *(w.node("p", a) for _ in range(6)))
    plan = w.plan()
    causes = ("pin", "fill", "owner", "fill", "pin", "fill")
    choices = tuple(PlacementChoice(0, cause, f"because {i}") for i, cause in enumerate(causes))
    plan = msgspec.structs.replace(plan, placement=Placement(choices, {0: 0}))
    assert "  pin x2, fill x3, owner x1\n" in plan_text(plan)
    assert "pin (because 0), fill, owner, fill," in plan_text(plan, verbose=True)


def test_commands_of_every_kind():
    w = PlanWriter(fake_device("gpu:0", copy_order="barrier"), fake_device("gpu:1"))
    q, r = w.stream(0), w.stream(1)
    x = w.host_input("x", 16)
    a = w.value(w.arena("compute", 0, 16), 0, 16, of=x)
    b = w.value(w.arena("compute", 1, 16), 0, 16, of=a)
    out = w.host_output("y", 16, of=b)
    w.transfer(q, x, a)
    w.barrier(q)
    w.launch(q, w.node("p", a))
    w.order(q, r)
    w.transfer(r, a, b)
    w.transfer(r, b, out)
    w.sync(r, w.record(r))
    w.sync(q)
    plan = w.plan()
    actions = [
        command_text(plan, c).partition("  ")[2].partition("  RAW")[0] for c in plan.commands
    ]
    assert actions == [
        "upload a0[0:16] -> a1[0:16]  v1 'x'",
        "barrier",
        "launch s0 n0",
        "record e0",
        "wait e0",
        "copy a1[0:16] -> a2[0:16]  v2 'x'",
        "download a2[0:16] -> a3[0:16]  v3 'x'",
        "record e1",
        "host sync e1",
        "host sync q0",
    ]


def test_hazards():
    h = Hazard("WAR", 3, 0, 64, 7, 2, next_run=True)
    assert h.text == "WAR a3[0:64] of c7 before c2 of the next run"
    assert Hazard("RAW", 3, 0, 64, 7, -1).text == "RAW a3[0:64] of c7 before the host"


def test_numbers(plan):
    stats = plan_stats(plan)
    assert (stats.nodes, stats.splits, stats.transfers) == (4, 3, len(plan.splits.transfers))
    assert stats.copied["host->gpu:0"] == 128
    assert stats.copied["gpu:0->cpu:0"] == 128
    assert stats.weights == {"gpu:0": 256}
    assert stats.states == {"cpu:0": 128}
    assert stats.commands["launch"] == 3
    assert sum(stats.commands.values()) == len(plan.commands)
    assert stats.host == 128 + 2 * 128
    assert stats.waste == pytest.approx(1.0)


def test_numbers_of_nothing():
    stats = plan_stats(PlanWriter().plan())
    assert stats.commands == {}
    assert stats.waste == 1.0
