"""A plan that carries its graph, or is given it, is compared with it by ``ggsched check``."""

import json

import msgspec
import pytest

from ggsched.cli.main import main
from ggsched.ir.text import parse_graph
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.command import Launch
from ggsched.sanitize.check import GRAPH_RULES
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
PLAN = ["plan", LLAMA, "--devices", "cpu:0,cpu:1", "-ot", r"blk\.1\.=cpu:0"]


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = main([*map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def broken(plan):
    """Return the plan with two equal operands of one step exchanged: nothing else is wrong."""
    commands = list(plan.commands)
    for at, command in enumerate(commands):
        if not isinstance(command, Launch):
            continue
        for number, step in enumerate(command.steps):
            node = plan.nodes[step.node]
            first, second, *rest = step.operands
            if node.op == "add" and first.nbytes == second.nbytes and first != second:
                exchanged = step._replace(operands=(second, first, *rest))
                steps = (*command.steps[:number], exchanged, *command.steps[number + 1 :])
                commands[at] = msgspec.structs.replace(command, steps=steps)
                return msgspec.structs.replace(plan, commands=tuple(commands))
    raise AssertionError("the plan has no such step")


def test_a_plan_carries_its_graph_only_if_asked(call, tmp_path):
    for name, more in (("without", []), ("with", ["--with-graph"])):
        assert call(*PLAN, "-o", tmp_path / name, *more)[0] == 0
        plan = plan_from_json((tmp_path / name).read_bytes())
        assert bool(plan.graph_text) == bool(more)
        assert call("check", tmp_path / name)[0] == 0
    assert parse_graph(plan.graph_text).digest == plan.graph
    code, out, _ = call(*PLAN, "--json", "--with-graph")
    assert (code, json.loads(out)["graph_text"]) == (0, plan.graph_text)


def test_what_only_the_graph_shows_is_found(call, tmp_path):
    path = tmp_path / "plan.json"
    assert call(*PLAN, "-o", path, "--with-graph")[0] == 0
    plan = plan_from_json(path.read_bytes())
    (tmp_path / "graph").write_text(plan.graph_text, encoding="utf-8")
    bad = broken(plan)
    path.write_bytes(plan_to_json(bad))
    code, out, _ = call("check", path)
    assert code == 1
    assert "graph" in out
    path.write_bytes(plan_to_json(msgspec.structs.replace(bad, graph_text="")))
    without = call("check", path)
    code, out, _ = call("check", path, "--graph", tmp_path / "graph")
    assert code == 1
    assert out != without[1]


def test_rules_that_need_a_missing_graph_are_listed(call, tmp_path):
    path = tmp_path / "plan.json"
    for more, rules in ((["--with-graph"], ()), ([], GRAPH_RULES)):
        assert call(*PLAN, "-o", path, *more)[0] == 0
        code, out, _ = call("check", path)
        said = " ".join(out.split())
        assert (code, "not checked without the graph" in said) == (0, bool(rules))
        assert all(rule in said for rule in rules)
        assert json.loads(call("check", path, "--json")[1])["not_checked"] == list(rules)


def test_another_graph_is_a_finding(call, tmp_path):
    path = tmp_path / "plan.json"
    assert call(*PLAN, "-o", path, "--with-graph")[0] == 0
    text = plan_from_json(path.read_bytes()).graph_text
    (tmp_path / "graph").write_text(text.replace("silu", "gelu"), encoding="utf-8")
    code, out, _ = call("check", path, "--graph", tmp_path / "graph")
    assert code == 1 or "silu" not in text
    assert "the plan is of graph" in " ".join(out.split()) or "silu" not in text


def test_what_is_no_graph_is_one_line(call, tmp_path):
    path = tmp_path / "plan.json"
    assert call(*PLAN, "-o", path, "--with-graph")[0] == 0
    plan = plan_from_json(path.read_bytes())
    path.write_bytes(plan_to_json(msgspec.structs.replace(plan, graph_text="nothing")))
    code, _, err = call("check", path)
    assert code == 2
    assert f"{path}: graph_text" in err
    assert err.count("\n") == 1
    code, _, err = call("check", "tests/litmus/events.litmus", "--graph", path)
    assert (code, err.count("\n")) == (2, 1)
    assert "--graph is for plans" in err
