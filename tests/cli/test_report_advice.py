"""What ``--report`` advises are options that the same command accepts."""

import random
import re
import shlex

import pytest

from ggsched.cli.main import main
from ggsched.report.text import account_text
from ggsched.trace.advice import advise
from ggsched.trace.setup import RunSetup, Stage
from ggsched.trace.utilization import Account, DeviceAccount, PathAccount
from ggsched_commands import run_setup as run_setup_module
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
TOKENS = ",".join(str(n) for n in range(1, 25))
RUN = ["run", LLAMA, "--tokens", TOKENS, "-n", "1", "-c", "32", "--report"]
SETUPS = {
    "CPUs as stages": ["--devices", "cpu:0,cpu:1", "-ts", "2,1", "-ub", "4"],
    "accelerators and a CPU": ["--devices", "sim:0,sim:1,cpu:0", "-ub", "4"],
    "one accelerator and a CPU": ["--devices", "sim:0,cpu:0", "-ngl", "2", "-ub", "2"],
    "one device": ["--devices", "cpu:0", "-ub", "8", "-b", "8"],
    "overrides": ["--devices", "cpu:0,cpu:1", "-ot", r"blk\.1\.=cpu:0"],
    "to fit": ["--devices", "sim:0,sim:1", "--fit"],
}


def accounts(names, count=60):
    """Return accounts of runs whose time went anywhere."""
    rng = random.Random(7)
    for _ in range(count):
        some = rng.sample(names, rng.randint(1, len(names)))
        devices = tuple(DeviceAccount(n, *(rng.random() for _ in range(7))) for n in some)
        path = PathAccount(f"host->{some[0]}", rng.choice((10, 10**8)), 5, 0.2)
        batches = rng.choice((1, 4, 8))
        bubble = rng.choice((0.0, 0.3))
        yield Account(
            "x", 0.0, 2.0, 3, (batches,), len(some), devices, (path,), 3, 0.1, 9, bubble, 0.1
        )


@pytest.fixture
def setup_of(monkeypatch, capsys):
    def get(arguments):
        found = []
        real = run_setup_module.run_setup

        def spy(*given):
            found.append(real(*given))
            return found[-1]

        with monkeypatch.context() as patch:
            patch.setattr(run_setup_module, "run_setup", spy)
            assert main([*RUN, *arguments]) == 0, capsys.readouterr().err
        capsys.readouterr()
        return found[0]

    return get


@pytest.mark.parametrize("name", SETUPS)
def test_advised_options_work(name, setup_of, capsys):
    arguments = SETUPS[name]
    setup = setup_of(arguments)
    names = arguments[1].split(",")
    advised = set()
    for made in accounts(names):
        for advice in advise(made, setup, most=9):
            advised.add(advice.options)
            assert not re.search(r"(^|\s)-\w", advice.what), "options have a place of their own"
        printed = re.findall(r"^ +try: (.*)$", account_text(made, setup), re.MULTILINE)
        assert set(printed) <= advised
    advised.discard("")
    assert advised
    if name in ("to fit", "overrides"):
        assert not any("-ts" in options or "-ngl" in options for options in advised)
    for options in sorted(advised)[:: max(1, len(advised) // 6)]:
        code = main([*RUN, *arguments, *shlex.split(options)])
        assert code == 0, (options, capsys.readouterr().err)


def balanced(stages, host, busy):
    setup = RunSetup(stages, host, True, 512, 2048, 4096)
    devices = tuple(DeviceAccount(name, seconds) for name, seconds in busy.items())
    made = Account("x", 0.0, 9.0, 1, (8,), len(busy), devices, (), 0, 0.0, 9, 0.9, 0.1)
    return [a.options for a in advise(made, setup, most=9) if a.rule == "balance"]


def test_layers_go_where_the_pace_is():
    two = (Stage("a:0", 9, 99), Stage("b:0", 3, 99))
    assert balanced(two, None, {"a:0": 9.0, "b:0": 1.0}) == ["-ts 3,9"]
    assert balanced(two, None, {"a:0": 3.0, "b:0": 1.0}) == ["-ts 6,6"], "one pace"
    assert balanced(two, None, {"a:0": 3.1, "b:0": 2.9}) == [], "it is as it should be"
    full = (Stage("a:0", 9, 99), Stage("b:0", 3, 5))
    assert balanced(full, None, {"a:0": 9.0, "b:0": 1.0}) == [], "there is no room for six more"
    one = (Stage("a:0", 9, 99),)
    cpu = Stage("cpu:0", 3, 99)
    assert balanced(one, cpu, {"a:0": 1.0, "cpu:0": 3.0}) == ["-ngl 11"]
    assert balanced(two, cpu, {"a:0": 1.0, "b:0": 1.0, "cpu:0": 9.0}) == ["-ngl 14 -ts 11,3"]
    assert balanced(one, Stage("cpu:0", 0, 9), {"a:0": 3.0, "cpu:0": 1.0}) == []
