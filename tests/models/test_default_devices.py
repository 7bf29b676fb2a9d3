"""Which devices a session takes if nobody names any."""

import logging
import re
from dataclasses import replace

import pytest

from ggsched.backend.offline_device import OfflineDevice
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.dtype import Q8_0
from ggsched.topology.cost import KernelRate, MachineRates, guessed_rates
from ggsched.topology.model import Topology
from ggsched_llm import choice_apart, default_devices, quick_rates
from ggsched_llm.choice_apart import choose_apart, devices_by_default
from ggsched_llm.default_devices import choose_devices
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import ORACLE, tiny_gguf
from tests.passes.machines import device
from tests.support.shapes import LLAMA_1B, spec_of

SMALL = spec_of(replace(LLAMA_1B, n_layer=1, n_vocab=512, n_embd=256, n_ff=512), Q8_0)
LARGE = spec_of(replace(LLAMA_1B, n_layer=2, n_vocab=4096), Q8_0)
POCL = {"kind": "accelerator", "imports_host_memory": True}
CPU = {"kind": "cpu", "is_host": True, "imports_host_memory": True}


def machine(**changes):
    """A processor with two backends; changes by backend, None to leave one out."""
    facts = {"gpu": None, "opencl": POCL, "cpu": CPU, **changes}
    return [
        device(f"{name}:0", **{"memory_nbytes": 8 << 30, **known})
        for name, known in facts.items()
        if known is not None
    ]


def chosen(spec, facts, *, n_ctx=1024, **settings):
    topology = Topology(tuple(facts))
    devices = [OfflineDevice(topology, i) for i in range(len(facts))]
    return choose_devices(spec, n_ctx, devices, Settings(**settings))


def rated(monkeypatch, speeds, source="calibrated 2026-11-22"):
    """Let rates be those of a file: how many times as fast as guessed each device is."""

    def load(topology, setting):
        guesses = guessed_rates(topology)
        rates = [
            replace(r, flops=r.flops * f, bandwidth=r.bandwidth * f)
            for r, f in zip(guesses.devices, speeds, strict=True)
        ]
        return MachineRates(tuple(rates), guesses.links, source=source)

    monkeypatch.setattr(default_devices, "load_rates", load)


@pytest.mark.parametrize(("speeds", "wanted"), [((1, 9), "cpu:0"), ((9, 1), "opencl:0")])
def test_calibrated_rates_decide(monkeypatch, speeds, wanted):
    rated(monkeypatch, speeds)
    found = chosen(LARGE, machine())
    assert found.names == (wanted,)
    times = {c.name: c.seconds for c in found.candidates}
    assert min(times, key=times.get) == wanted
    line = found.reason()
    assert re.fullmatch(
        rf"devices: {wanted}: predicted for 512 \+ 128 tokens: {wanted} [\d.]+ m?s, "
        r"\w+:0 [\d.]+ m?s \(calibrated 2026-11-22\)",
        line,
    ), line


@pytest.mark.parametrize("faster", ["cpu:0", "opencl:0"])
def test_without_rates_the_product_that_counts_is_measured(monkeypatch, faster):
    asked = []

    def measure(bench, stream, dtype, allowance):
        name = bench.device.facts.name
        asked.append((name, dtype))
        return KernelRate("mul_mat:q8_0", *((9e12, 9e12) if name == faster else (1e9, 1e9)))

    monkeypatch.setattr(quick_rates, "measure_product", measure)
    monkeypatch.setattr(quick_rates.Bench, "stream", lambda bench: None)
    monkeypatch.setattr(quick_rates, "RefusingDevice", ())
    found = chosen(LARGE, machine(), rates="off")
    assert found.names == (faster,)
    assert sorted(asked) == [("cpu:0", Q8_0), ("opencl:0", Q8_0)]
    assert "mul_mat:q8_0 measured" in found.reason()
    asked.clear()
    assert chosen(SMALL, machine(), rates="off").names == ("cpu:0",), "nodes cost more on a queue"
    assert asked == [], "a small model is not worth it"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"memory_nbytes": 64 << 20}, "MiB of"),
        ({"max_allocation_nbytes": 1 << 20}, "has no buffers of"),
        ({"lacks": ("rope",)}, "has no rope:f32"),
    ],
)
def test_a_device_that_the_model_does_not_fit_is_not_taken(monkeypatch, facts, why):
    rated(monkeypatch, (1000, 1))
    found = chosen(LARGE, machine(opencl={**POCL, **facts}))
    assert found.names == ("cpu:0",)
    assert why in found.reason()


def test_all_are_taken_where_none_is_large_enough(monkeypatch):
    rated(monkeypatch, (1, 1))
    small = {"memory_nbytes": 64 << 20}
    found = chosen(LARGE, machine(opencl={**POCL, **small}, cpu={**CPU, **small}))
    assert found.names == ("opencl:0", "cpu:0")


def test_gpus_are_taken_with_a_cpu_and_not_with_another_device_of_the_same_memory():
    gpus = (device("gpu:0"), device("gpu:1"))
    found = chosen(LARGE, [*gpus, *machine()], rates="off")
    assert found.names == ("gpu:0", "gpu:1", "cpu:0")
    assert found.reason() == "devices: gpu:0, gpu:1, cpu:0"


def test_a_list_of_backends_is_an_order_already():
    found = chosen(LARGE, machine(), backends=("opencl", "cpu"))
    assert found.names == ("opencl:0", "cpu:0")


def test_a_session_says_what_it_took(tmp_path):
    model = load_model(tiny_gguf(tmp_path / "m.gguf"))
    with Session(model, None, SessionOptions(n_ctx=32)) as session:
        taken = session.default_devices
        assert taken is not None
        assert [d.name for d in session.scheduler.topology.devices] == list(taken.names)
        session.feed([1, 2])
    with Session(model, ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        assert session.default_devices is None


def test_a_process_of_its_own_chooses_the_same():
    settings = Settings(backends=("cpu",))
    found = choose_apart(LARGE, 256, settings)
    assert found == default_devices.default_devices(LARGE, 256, settings)


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/program"])
def test_without_that_process_the_choice_is_made_here(monkeypatch, program):
    monkeypatch.setattr(choice_apart.sys, "executable", program)
    assert choose_apart(LARGE, 256, Settings()) is None


@pytest.mark.parametrize(
    ("spec", "bindings", "gpus", "settings", "is_apart"),
    [
        (LARGE, True, 0, Settings(), True),
        (SMALL, True, 0, Settings(), False),
        (LARGE, False, 0, Settings(), False),
        (LARGE, True, 1, Settings(), False),
        (LARGE, True, 0, Settings(backends=("cpu",)), False),
    ],
)
def test_only_what_saves_memory_is_chosen_apart(
    monkeypatch, spec, bindings, gpus, settings, is_apart
):
    apart, here = (default_devices.DefaultDevices((name,)) for name in ("apart:0", "here:0"))
    monkeypatch.setattr(choice_apart, "choose_apart", lambda *asked: apart)
    monkeypatch.setattr(choice_apart, "default_devices", lambda *asked: here)
    monkeypatch.setattr(choice_apart, "find_spec", lambda name: bindings or None)
    monkeypatch.setattr(choice_apart, "offered", lambda besides: {"gpu": gpus, "sim": 0})
    assert devices_by_default(spec, 256, settings) == (apart if is_apart else here)


@pytest.mark.parametrize(
    "offload",
    [
        Offload(n_gpu_layers=1),
        Offload(n_cpu_moe=1),
        Offload(tensor_split=(1.0,)),
        Offload(overrides=(OverrideRule(re.compile("x"), "cpu"),)),
    ],
)
def test_a_model_that_is_divided_gets_all_devices(offload):
    assert SessionOptions().leaves_devices_open
    assert not SessionOptions(offload=offload).leaves_devices_open
    assert not SessionOptions(placement="cost").leaves_devices_open


def test_no_device_at_all(caplog):
    caplog.set_level(logging.ERROR)
    model = load_model(ORACLE / "llama-tiny-f32.gguf")
    with pytest.raises(UsageError, match="no backend 'nothing'"):
        Session(model, None, settings=Settings(backends=("nothing",)))
