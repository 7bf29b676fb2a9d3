"""Rates that are measured because nobody has calibrated the machine."""

from dataclasses import replace

import pytest

from ggsched.backend.probe import probe
from ggsched.config import Settings
from ggsched.ir.dtype import F32, Q8_0
from ggsched.topology.cost import guessed_rates
from ggsched_llm import quick_rates, session
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.quick_rates import is_guessed, with_links, with_products
from ggsched_llm.session import Session, SessionOptions
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.sim import SimConfig, SimWorld
from tests.models.helpers import tiny_gguf


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure for as short as possible."""
    monkeypatch.setattr(quick_rates, "_SECONDS", 0.0)


@pytest.fixture
def devices():
    return SimWorld([SimConfig(kind="gpu"), SimConfig(kind="cpu", is_host=True)]).open_all()


def test_products_and_links_are_measured_and_noted(devices):
    topology = probe(devices)
    guesses = guessed_rates(topology)
    rates = with_products(guesses, devices, {1: [F32]})
    assert [k.name for k in rates.devices[1].kernels] == ["mul_mat:f32"]
    assert rates.devices[0] == guesses.devices[0]
    rates = with_links(rates, topology, devices, 1)
    assert rates.links[1, 0] != guesses.links[1, 0]
    assert {pair for pair in rates.links if rates.links[pair] != guesses.links[pair]} == {(1, 0)}
    cpu, gpu = devices[1].facts.name, devices[0].facts.name
    assert rates.source.endswith(
        f"; measured: mul_mat:f32 on {cpu}; measured: copies {cpu} to {gpu}"
    )


def test_calibrated_devices_are_left_alone(devices):
    topology = probe(devices)
    known = replace(guessed_rates(topology), source="calibrated 2026-11-22")
    assert not is_guessed(known, topology.devices[1])
    assert with_products(known, devices, {1: [F32]}) == known
    assert with_links(known, topology, devices, 1) == known
    part = replace(known, source=f"{known.source}; guesses by kind of device: sim:1")
    assert [is_guessed(part, facts) for facts in topology.devices] == [False, True]


def test_a_type_that_a_device_lacks_is_passed_over(devices):
    guesses = guessed_rates(probe(devices))
    devices[1].facts = replace(devices[1].facts, ops=frozenset({"add:f32"}))
    assert with_products(guesses, devices, {1: [Q8_0]}).devices == guesses.devices


@pytest.mark.parametrize(
    ("offload", "is_measured"),
    [
        (Offload(n_gpu_layers=1), True),
        (Offload(), False),
        (Offload(n_gpu_layers=1, experts=ExpertPolicy("off")), False),
    ],
)
def test_a_session_measures_where_there_is_something_to_decide(
    tmp_path, monkeypatch, devices, offload, is_measured
):
    monkeypatch.setattr(session, "WORTH_NBYTES", 1)
    model = load_model(tiny_gguf(tmp_path / "m.gguf"))
    settings, sizes = Settings(rates="off"), SessionOptions(n_ctx=32, offload=offload)
    with Session(model, devices, sizes, settings=settings) as made:
        assert ("measured" in made.rates.source) == is_measured
        assert made.constraints.rates is made.rates
