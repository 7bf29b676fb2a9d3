"""The file of rates: round trip, other devices, damage, and what planning gets."""

import json
import logging
from dataclasses import replace

import pytest

from ggsched.calibrate import cache
from ggsched.calibrate.cache import load_rates, rates_path, read_rates
from ggsched.calibrate.identity import device_identity
from ggsched.errors import UsageError
from ggsched.topology.caps import HOST_PROCESSOR
from ggsched.topology.cost import (
    GUESSES,
    HOST,
    KernelRate,
    Link,
    MachineRates,
    Rates,
    Work,
    guessed_rates,
    node_seconds,
)
from ggsched.topology.model import CopyPath, Topology
from ggsched_calibrate.machine import Calibration
from ggsched_calibrate.save import older_rates, save_rates
from ggsched_testing.sim import SimConfig
from tests.passes.machines import device

FAST, SLOW = SimConfig(), SimConfig(memory_nbytes=1 << 30)
RATES = Rates(1e9, 2e9, 3e9, 2, 1e-6, 2e-6, 3e-6, (
    KernelRate("mul_mat:f32", 4e9, 5e9), KernelRate("recurrent", 4e9, 5e9, 1e-6),
))  # fmt: skip
DEFAULT_PATH = cache.default_path  # tests go without it, see conftest


def topology(*configs):
    facts = tuple(c.facts(i) for i, c in enumerate(configs))
    pairs = [(a, b) for a in range(len(facts)) for b in range(len(facts)) if a != b]
    return Topology(facts, {(a, b): CopyPath(a, b, a) for a, b in pairs})


def calibration(machine, rates=RATES, link=Link(1e-5, 1e10)):  # noqa: B008  # frozen
    n = range(len(machine.devices))
    links = {(a, b): link for a in (HOST, *n) for b in (HOST, *n) if a != b}
    return Calibration(
        tuple(f.name for f in machine.devices),
        tuple(device_identity(f) for f in machine.devices),
        MachineRates(tuple(rates for _ in n), links, 4e-7),
        {},
        (),
        1.0,
    )


def save(machine, path, **changes):
    return save_rates(calibration(machine, **changes), {f.name: f for f in machine.devices}, path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "rates.json"


def test_what_was_measured_comes_back(path):
    machine = topology(FAST, SLOW)
    save(machine, path)
    got = load_rates(machine, str(path))
    assert got.devices == (RATES, RATES)
    assert got.enqueue_s == 4e-7
    assert got.link(0, 1) == got.link(HOST, 1) == Link(1e-5, 1e10)
    assert got.source.startswith("calibrated 2")
    assert [p.name for p in path.parent.iterdir()] == ["rates.json"]


def test_logical_devices_share_their_rates(path):
    save(topology(FAST, FAST), path)
    got = load_rates(topology(FAST, FAST, FAST), str(path))
    assert got.devices == (RATES,) * 3
    assert got.link(2, 1) == Link(1e-5, 1e10)


def test_another_device_is_guessed_and_named(path):
    save(topology(FAST), path)
    machine = topology(FAST, SLOW)
    got = load_rates(machine, str(path))
    assert got.devices == (RATES, guessed_rates(machine).devices[1])
    assert got.source.endswith(f"{GUESSES}: sim:1")
    assert load_rates(topology(SLOW), str(path)) == guessed_rates(topology(SLOW))


def test_a_new_calibration_leaves_other_devices_alone(path):
    save(topology(FAST), path)
    other = replace(RATES, flops=7.0)
    save(topology(SLOW), path, rates=other, link=Link(0.0, 5.0))
    got = load_rates(topology(FAST, SLOW), str(path))
    assert got.devices == (RATES, other)
    assert got.link(HOST, 0) == Link(1e-5, 1e10)
    assert got.link(HOST, 1) == Link(0.0, 5.0)


def test_a_file_of_the_older_format_is_read(path):
    save(topology(FAST), path)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["format"] = "ggsched-rates/1"
    for kernel in next(iter(data["devices"].values()))["kernels"].values():
        del kernel["step_s"]
    path.write_text(json.dumps(data), encoding="utf-8")
    (got,) = load_rates(topology(FAST), str(path)).devices
    assert got == replace(RATES, kernels=tuple(replace(k, step_s=0.0) for k in RATES.kernels))
    assert older_rates(path) == {device_identity(topology(FAST).devices[0]): got}


def test_a_device_of_which_nothing_can_be_trusted_is_not_kept(path):
    machine = topology(FAST, SLOW)
    found = replace(calibration(machine), unknown=frozenset({machine.devices[1].name}))
    file = save_rates(found, {f.name: f for f in machine.devices}, path)
    assert list(file.devices) == [device_identity(machine.devices[0])]


def beside(path, *calibrated):
    """Return the rates of the backend cpu and of another device on its processor."""
    own = {"kind": "cpu", "is_host": True, "processor": HOST_PROCESSOR}
    machine = Topology((device("cpu:0", **own), device("x:0", processor=HOST_PROCESSOR)))
    kept = Topology(tuple(machine.devices[i] for i in calibrated))
    save(kept, path)
    return load_rates(machine, str(path)).devices


def test_a_guess_beside_a_calibrated_processor_is_half_of_it(path):
    cpu, other = beside(path, 0)
    for work in (
        Work("mul_mat", "mul_mat:f32", 1e9, 1e6),
        Work("nd.sin", "functions", 1e9, 1e6),
        Work("nd.lstm", "recurrent", 1.0, 1.0, 1e3),
    ):
        assert node_seconds(other, work) > 1.9 * node_seconds(cpu, work)


def test_what_was_not_measured_beside_a_processor_is_taken_to_be_slow(path):
    """A rate of one sort of node does not stand for another one there."""
    cpu, other = beside(path, 0, 1)
    for op in ("mul_mat", "attention"):
        work = Work(op, "mul_mat:f32", 1e9, 1.0)
        assert node_seconds(other, work) == node_seconds(cpu, work)
    for work in (Work("x", "pool", 1e9, 1.0), Work("mul_mat", "mul_mat:q4_0", 1e9, 1.0)):
        assert node_seconds(other, work) > 3 * node_seconds(cpu, work)


def damaged():
    yield "empty", lambda text: ""
    yield "no JSON", lambda text: text[: len(text) // 2]
    yield "no text", lambda text: b"\xff\xfe\x00"
    yield "a list", lambda text: "[]"
    yield "nested", lambda text: "[" * 100_000

    def edit(change):
        def apply(text):
            data = json.loads(text)
            change(data)
            return json.dumps(data)

        return apply

    def of_device(name, value):
        return edit(lambda d: next(iter(d["devices"].values())).__setitem__(name, value))

    yield "another format", edit(lambda d: d.update(format="ggsched-rates/0"))
    yield "a field too many", edit(lambda d: d.update(more=1))
    yield "a field too few", edit(lambda d: d.pop("links"))
    yield "a text", of_device("flops", "fast")
    yield "nothing", of_device("bandwidth", 0.0)
    yield "negative", of_device("node_s", -1.0)
    yield "no streams", of_device("parallel", 0)
    yield "infinite", lambda text: text.replace("1e9", "1e999").replace("1000000000.0", "1e999")
    yield "a link of nothing", edit(lambda d: d["links"][0].update(bandwidth=0))
    yield "a step", of_device("kernels", {"pool": {"flops": 1, "bandwidth": 1, "step_s": -1}})
    yield "a kernel", of_device("kernels", {"mul_mat:f32": {"flops": -1.0, "bandwidth": 1.0}})


@pytest.mark.parametrize(
    ("what", "damage"), list(damaged()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_damage_gives_one_warning_and_guesses(what, damage, path, caplog):
    machine = topology(FAST)
    save(machine, path)
    text = damage(path.read_text(encoding="utf-8"))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with caplog.at_level(logging.WARNING, "ggsched"):
        assert load_rates(machine, str(path)) == guessed_rates(machine)
    (record,) = caplog.records
    assert "rates.json is ignored: " in record.getMessage()
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 500
    caplog.clear()
    save(machine, path)
    assert load_rates(machine, str(path)).devices == (RATES,)


def test_a_folder_in_its_place_is_ignored_too(path, caplog):
    path.mkdir(parents=True)
    assert read_rates(path) is None
    assert len(caplog.records) == 1
    with pytest.raises(UsageError, match="cannot write the rates"):
        save(topology(FAST), path)
    assert list(path.parent.iterdir()) == [path]


def test_no_file(path, caplog):
    machine = topology(FAST)
    assert load_rates(machine, "auto") == load_rates(machine, "off") == guessed_rates(machine)
    with pytest.raises(UsageError, match=r"no such file of rates.*ggsched calibrate"):
        load_rates(machine, str(path))
    assert not caplog.records


def test_places(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "default_path", DEFAULT_PATH)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert rates_path("auto") == tmp_path / "ggsched" / "rates.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert rates_path("auto") == tmp_path / "me" / ".cache" / "ggsched" / "rates.json"
    assert rates_path("off") is None
