"""``ggsched check``: plans, traces and litmus programs, and whatever else a file may hold."""

import json

import pytest

from ggsched.cli.main import main
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.trace.export import trace_to_lines
from ggsched.trace.schema import Record, Sync, Wait
from ggsched_testing.plan_builder import PlanWriter, fake_device
from ggsched_testing.plan_mutants import drop_host_syncs
from tests.models.helpers import ORACLE
from tests.sanitize.traces import A, B, H, alloc, reads, trace, writes

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
RUN = ["--tokens", "3,1,4", "-n", "3", "--devices", "cpu:0,cpu:1"]
ORDERED = (alloc(0), writes(A, 0), Record(A, 0, H), Wait(B, 0, H), reads(B, 0))


@pytest.fixture
def check(capsys, tmp_path, narrow):
    """Check bytes or a file; return exit code, stdout and stderr."""

    def call(content, *options, name="file"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = main(["check", str(path), *options])
        out, err = capsys.readouterr()
        assert all(len(line) <= 80 for line in out.splitlines() if "--json" not in options)
        return code, out, err

    return call


@pytest.fixture
def made(tmp_path, capsys):
    """A plan as ``ggsched plan`` writes it."""
    path = tmp_path / "made.json"
    assert main(["plan", LLAMA, "--devices", "cpu:0,cpu:1", "-o", str(path)]) == 0
    capsys.readouterr()
    return path.read_bytes()


class TestPlans:
    def test_clean(self, check, made):
        code, out, err = check(made)
        assert (code, err) == (0, "")
        verdict, rest = out.split("not checked without the graph: ")
        assert verdict.endswith(" 3 runs: clean\n")
        assert rest.startswith("ops, ")

    def test_broken(self, check, made):
        (_, mutant), *_ = drop_host_syncs(plan_from_json(made))
        code, out, _ = check(plan_to_json(mutant))
        assert code == 1
        assert "nothing orders c" in out
        assert "fix: " in out

    def test_json(self, check, made):
        (_, mutant), *_ = drop_host_syncs(plan_from_json(made))
        code, out, _ = check(plan_to_json(mutant), "--json")
        data = json.loads(out)
        assert (code, data["kind"], data["clean"]) == (1, "plan", False)
        first = data["findings"][0]
        assert (first["kind"], first["hazard"]) == ("race", "RAW")
        assert {"in", "what", "fix", "command", "start", "end", "earlier", "later"} <= set(first)
        assert data["reports"][0]["runs"] == 3

    def test_advice_is_no_finding(self, check):
        w = PlanWriter(fake_device())
        q = w.stream()
        x = w.host_input("x", 16)
        w.transfer(q, x, w.value(w.arena("compute", 0, 16), 0, 16, of=x))
        w.sync(q)
        plan = plan_to_json(w.plan())
        assert "waste" not in check(plan)[1]
        code, out, _ = check(plan, "--advice")
        assert code == 0
        assert "waste: nobody reads what c0, the upload to v1, copies" in out
        (advice,) = json.loads(check(plan, "--advice", "--json")[1])["advice"]
        assert advice["command"] == 0


class TestTraces:
    def test_clean(self, check):
        assert check(trace_to_lines(trace(*ORDERED))) == (0, "hand: 5 records: clean\n", "")

    def test_race(self, check):
        code, out, _ = check(trace_to_lines(trace(*ORDERED[:3], ORDERED[4])))
        assert code == 1
        assert "fix: let B wait for e0 before #3" in out

    def test_json(self, check):
        code, out, _ = check(trace_to_lines(trace(*ORDERED)), "--json")
        data = json.loads(out)
        assert code == 0
        assert (data["kind"], data["clean"], data["findings"]) == ("trace", True, [])

    def test_advice(self, check):
        entries = alloc(0), writes(A, 0), Sync(H, stream=A), reads(A, 0)
        code, out, _ = check(trace_to_lines(trace(*entries)), "--advice")
        assert code == 0
        assert "nobody needs #2, the wait of H" in out

    def test_of_a_run(self, check, capsys, tmp_path):
        path = tmp_path / "run.jsonl"
        assert main(["run", LLAMA, *RUN, "--trace", str(path)]) == 0
        with_trace = capsys.readouterr().out
        assert main(["run", LLAMA, *RUN]) == 0
        assert capsys.readouterr().out == with_trace
        code, out, err = check(path.read_bytes())
        assert (code, err) == (0, "")
        assert out.startswith("ggsched run llama-tiny-f32.gguf: ")
        assert out.endswith(" records: clean\n")

    def test_advice_on_a_run_says_nothing_of_waits_that_ggsched_makes_itself(self, check, tmp_path):
        """Before memory is freed, say. Those of a plan are named by the check of the plan."""
        path = tmp_path / "run.jsonl"
        call = ["run", "demo", "-p", "1+1=", "-n", "2", "--devices", "sim:0,cpu:0"]
        assert main([*call, "--trace", str(path)]) == 0
        code, out, _ = check(path.read_bytes(), "--advice")
        assert (code, "waste" in out) == (0, False), out

    def test_where_none_can_be_written(self, capsys, tmp_path):
        assert main(["run", LLAMA, *RUN, "--trace", str(tmp_path / "no" / "t")]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "cannot write the trace" in err
        assert err.count("\n") == 1


class TestLitmus:
    TEXT = "litmus X race\nA: run > x#1\n+ H: sync A\nH: get x?1 > y\n"

    def test_both_variants(self, check):
        code, out, _ = check(self.TEXT)
        assert code == 1
        assert out.splitlines()[0] == "X broken: 2 records: 1 finding"
        assert "line 2 'A: run > x#1' before line 4" in " ".join(out.split())
        assert out.splitlines()[-1] == "X fixed: 3 records: clean"

    def test_clean(self, check):
        code, out, _ = check("litmus X clean\nA: run > x#1\nA: run x?1\n")
        assert code == 0
        assert out.count("clean") == 2

    def test_markdown(self, check):
        code, out, _ = check(f"[a](b)\n\n```{self.TEXT}```\n", "--json")
        data = json.loads(out)
        assert (code, data["kind"]) == (1, "litmus")
        assert [r["plan"] for r in data["reports"]] == ["X broken", "X fixed"]
        assert [f["in"] for f in data["findings"]] == ["X broken"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "no litmus block"),
            (b"{", "file: not a plan"),
            (b"{}", "file: not a plan"),
            (b'{"format": "ggsched-plan/9"}', "file: format 'ggsched-plan/9'"),
            (b'{"format": "ggsched-trace/9"}', "file:1: format 'ggsched-trace/9'"),
            (b'{"format":"ggsched-trace/3","name":"x","actors":[]}\n{}', "file:2: not a trace"),
            (b"[1]", "file:1: an operation before the first header"),
            (b"litmus X race\nA run", "file:2: an operation is"),
            (b"litmus X race\n\xff", "file:2: not a text in UTF-8"),
            (b"\x00\x01\x02", "file:1"),
        ],
    )
    def test_one_line_and_2(self, check, content, says):
        code, out, err = check(content)
        assert (code, out) == (2, "")
        assert err.startswith("ggsched: error: ")
        assert says in err
        assert err.count("\n") == 1

    def test_no_file(self, capsys, tmp_path):
        for path in (tmp_path / "none", tmp_path):
            assert main(["check", str(path)]) == 2
            assert "cannot read the file" in capsys.readouterr().err

    def test_usage(self, capsys):
        assert main(["check"]) == 2
        assert main(["check", "a", "b"]) == 2
        assert main(["check", "--help"]) == 0
        assert "--advice" in capsys.readouterr().out


@pytest.mark.parametrize("first", ['{"a": 1}', "garbage", '{"format": 7}', "[]", None])
def test_a_trace_whose_first_line_is_damaged_is_one_line(tmp_path, capsys, first):
    """Also where it is missing, so that the first record stands in its place."""
    path = tmp_path / "trace.jsonl"
    records = ['{"t": 1, "kind": "begin"}', '{"t": 2, "kind": "end"}']
    path.write_text("\n".join(records if first is None else [first, *records]))
    assert main(["check", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ggsched: error: {path}:1: ")
    assert err.count("\n") == 1
