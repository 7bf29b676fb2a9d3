import json
import sys

import pytest
from rich.cells import cell_len

from ggsched.cli.main import main
from ggsched_testing import conformance
from ggsched_testing.conformance import Harness, all_cases
from tests.testing.broken_devices import deaf_simulator


@pytest.fixture
def deaf(monkeypatch):
    """Let every name stand for a broken device."""
    harness = deaf_simulator()
    monkeypatch.setattr(Harness, "named", classmethod(lambda cls, spec, allow=None: harness))


@pytest.mark.usefixtures("narrow")
def test_a_backend_that_keeps_the_contract(capsys):
    assert main(["conform", "cpu", "--rules", "STR-5,EVT-3,CAP-*"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    for rule in ("STR-5", "CAP-1"):
        assert rows[rule] == [str(sum(c.rule == rule for c in all_cases())), "ok"]
    assert "cpu:0 keeps the contract" in out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80


def test_in_a_process_of_its_own(capsys):
    assert main(["conform", "cpu", "--isolate", "--rules", "EVT-3"]) == 0
    assert "cpu:0 keeps the contract" in capsys.readouterr().out


def test_a_backend_without_programs_in_c_is_one_line(capsys, tmp_path):
    assert main(["conform", "cpu", "--emit-c", str(tmp_path / "made")]) == 2
    err = capsys.readouterr().err
    assert err.strip() == "ggsched: error: cpu: the backend writes no programs in C"
    assert not (tmp_path / "made").exists()


def test_a_backend_that_breaks_it(deaf, capsys):
    assert main(["conform", "broken", "--rules", "EVT-2", "--seed", "4"]) == 1
    out = capsys.readouterr().out
    assert "EVT-2" in out
    assert "FAILED" in out
    assert "q1.wait(e0)" in out
    assert "replay: ggsched conform broken --rules evt2_holds_copies --seed 4" in out
    assert "breaks EVT-2" in out


def test_json(deaf, capsys):
    assert main(["conform", "broken", "--rules", "EVT-2", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "ggsched-conformance/1"
    assert data["broken_rules"] == ["EVT-2"]
    assert data["ok"] is False


def test_each_case_on_request(capsys):
    assert main(["conform", "sim:1", "--rules", "BUF-3", "-v"]) == 0
    out, err = capsys.readouterr()
    assert err.count("buf3_") == 5
    assert "sim:1 keeps the contract" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["cpu:one"],
        ["cpu", "--rules", "XYZ-1"],
        ["cpu", "--max-examples", "0"],
        ["cpu", "--seed", "-1"],
        [],
    ],
)
def test_what_makes_no_sense(arguments, capsys):
    assert main(["conform", *arguments]) == 2
    assert capsys.readouterr().err.startswith("ggsched: error:")


def test_what_is_not_there(monkeypatch, capsys):
    monkeypatch.setenv("GGSCHED_BACKENDS", "opencl")
    assert main(["conform", "cpu", "--rules", "STR-5"]) in (2, 3)
    assert "cpu" in capsys.readouterr().err


def test_examples_are_passed_on(monkeypatch):
    seen = {}

    def run(harness, **options):
        seen.update(options)
        return conformance.ConformanceReport("cpu:0", 0, ())

    monkeypatch.setattr(conformance, "run_conformance", run)
    assert main(["conform", "cpu", "--max-examples", "7", "--seed", "9"]) == 0
    assert (seen["max_examples"], seen["seed"], seen["rules"]) == (7, 9, None)


OPS_MODULE = """
import numpy as np
import ggsched
from ggsched import Sample

ggsched.register_op("{name}", version="1", operands=("x",), in_place=(0,),
                    reference=lambda x: x * x, kernels={{"cpu": np.square}},
                    samples=[Sample([(3, 4)])])
"""


@pytest.fixture
def my_ops(tmp_path, monkeypatch, registries_restored):
    """A module in the current folder that registers the op ``sqr_of_test``."""
    (tmp_path / "ops_of_test.py").write_text(OPS_MODULE.format(name="sqr_of_test"))
    monkeypatch.chdir(tmp_path)
    yield "ops_of_test:sqr_of_test"
    sys.modules.pop("ops_of_test", None)


def test_a_user_defined_op(my_ops, capsys):
    assert main(["conform", "cpu", "--op", my_ops]) == 0
    assert "7 passed, 0 failed, 0 skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cpu", "--op", "no_such_module:sqr"], "the module 'no_such_module' cannot be imported"),
        (["cpu", "--op", "no_such_op"], "op 'no_such_op': it is not a user-defined op"),
        (["cpu", "--op", "add"], "op 'add': it is not a user-defined op"),
    ],
)
def test_an_op_that_is_not_there(arguments, message, capsys):
    assert main(["conform", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_modules_of_ops_from_the_environment(my_ops, monkeypatch, capsys):
    monkeypatch.setenv("GGSCHED_OPS", "ops_of_test")
    assert main(["conform", "cpu", "--op", "sqr_of_test", "--rules", "LCH-2"]) == 0
    monkeypatch.setenv("GGSCHED_OPS", "ops_of_nobody")
    assert main(["devices"]) == 2
    assert "'ops_of_nobody' cannot be imported" in capsys.readouterr().err


LOSING = """
from ggsched.backend.base import BaseBackend, BaseDevice, host_facts

lost = False  # of the process, as with a driver that opens no context behind a fault

def open_device(index):
    if lost:
        raise RuntimeError("Context failed: <unknown error -9999>")
    device = BaseDevice(host_facts("losing", [], name=f"losing:{index}"), {})
    plain = device.make_stream

    def make_stream(name):
        stream = plain(name)
        submit = stream._submit

        def submit_or_fail(command, work):
            global lost
            lost = lost or command == "fill"
            if lost:
                raise RuntimeError("the context is lost")
            submit(command, work)

        stream._submit = submit_or_fail
        return stream

    device.make_stream = make_stream
    return device

def open_backend():
    return BaseBackend("losing", open_device, contract_version=(1, 1))
"""


def test_a_device_that_is_lost_for_the_process_is_opened_by_another_one(
    tmp_path, monkeypatch, capsys
):
    """NVIDIA's OpenCL opens no context any more once a command has failed; there was no verdict."""
    (tmp_path / "losing_plug_in.py").write_text(LOSING)
    info = tmp_path / "losing-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: losing\nVersion: 1\n")
    points = "[ggsched.backends]\nlosing = losing_plug_in:open_backend\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    rules = "cpy2_within_a_buffer,fil1_whole_buffers,fil2_in_order_with_copies,err3_twice"
    assert main(["conform", "losing", "--rules", rules, "--json"]) == 1
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["verdict"] for case in cases] == ["pass", "fail", "fail", "pass"]
    assert all(case["reason"].startswith("device lost: ") for case in cases[1:3])
