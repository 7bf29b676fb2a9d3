"""Malformed traces: one clear message with the number of the line, from ``check`` and ``trace``."""

import json

import msgspec
import pytest

from ggsched.cli.main import main
from ggsched.errors import UsageError
from ggsched.sanitize import check_trace
from ggsched.trace.export import header_fields, read_trace, trace_to_lines
from ggsched.trace.schema import Actor, Barrier, Free, Run, Sync
from tests.sanitize.traces import A, H, alloc, trace, writes

DEMO = "ggsched/data/addition-moe.gguf"
DEVICES = ["--devices", "cpu:0"]
BAD = {
    "no actors": (trace(writes(A, 0), actors=[]), 2, "is of actor 1; the header names 0"),
    "actor": (trace(alloc(0), writes(9, 0)), 3, "is of actor 9"),
    "negative": (trace(alloc(0), Barrier(-3, H)), 3, "is of actor -3"),
    "thread": (trace(alloc(0), Barrier(A, 7)), 3, "was enqueued by actor 7"),
    "stream": (trace(alloc(0), Sync(H, stream=9)), 3, "waits for actor 9"),
    "number": (trace(actors=[Actor(3, "x", "host")]), 1, "actor 0 has the id 3"),
    "plan": (trace(runs=(Run(4, 0, 0, 0, 0.0, 1.0),)), 1, "run 0 is of plan 4"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_line_is_named(name):
    bad, line, message = BAD[name]
    with pytest.raises(UsageError, match=message) as info:
        read_trace(trace_to_lines(bad), "file")
    assert info.value.where == f"file:{line}"


@pytest.mark.parametrize("name", ["actor", "stream"])
def test_the_form_of_one_object_too(name):
    bad, _, message = BAD[name]
    with pytest.raises(UsageError, match=message):
        read_trace(msgspec.json.encode({**header_fields(bad), "entries": bad.entries}), "file")


@pytest.mark.parametrize("command", ["check", "trace"])
@pytest.mark.parametrize("name", BAD)
def test_the_commands_say_so(name, command, tmp_path, capsys):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(trace_to_lines(BAD[name][0]))
    assert main([command, str(file)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert BAD[name][2] in error


def test_plans_in_a_trace_that_name_what_is_not_there(tmp_path, capsys):
    """The commands of a plan are matched with the records, so they have to be whole."""
    path = tmp_path / "run.jsonl"
    assert main(["run", DEMO, "-p", "1+1=", "-n", "2", *DEVICES, "--trace", str(path)]) == 0
    capsys.readouterr()
    header, *records = path.read_text().splitlines()
    for place, value in (
        (("splits", "bindings", 5, 0), -(2**63)),
        (("splits", "bindings", 5), [1]),
        (("splits", "transfers", 0, "before"), 10**6),
        (("memory", "regions", 2), [48, 4096, 1024]),
        (("memory", "arenas", 3, "device"), 9),
        (("streams", "streams", 0, "device"), 9),
        (("commands", 1, "stream"), 9),
    ):
        data = json.loads(header)
        at = data["plans"][0]["plan"]
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value
        path.write_text("\n".join([json.dumps(data), *records]))
        assert main(["trace", str(path)]) == 2, place
        error = capsys.readouterr().err
        assert error.startswith(f"ggsched: error: {path}:1: "), place
        assert error.count("\n") == 1
        assert "is malformed: " in error


def test_free_before_its_alloc():
    (finding,) = check_trace(trace(Free(H, 0), alloc(0))).findings
    assert (finding.kind, finding.what) == ("freed", "#0 frees m0 before it is allocated")
