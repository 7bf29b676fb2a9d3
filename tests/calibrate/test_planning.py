"""Rates reach the planner, distinguish plans, and are named in the plan."""

from dataclasses import replace

import pytest

from ggsched.config import Settings
from ggsched.errors import PlanError
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import GUESSES, guessed_rates
from ggsched_calibrate.machine import Calibration
from ggsched_calibrate.save import save_rates
from ggsched_llm.load import load_model
from ggsched_llm.session import Session
from tests.calibrate.test_cache import RATES, calibration, save
from tests.models.helpers import ORACLE
from tests.run.graphs import harmless

MODEL = ORACLE / "llama-tiny-f32.gguf"


def test_a_session_finds_the_file(tmp_path):
    path = tmp_path / "rates.json"
    model = load_model(MODEL)
    with Session(model, ["cpu:0"], settings=Settings(rates="off")) as session:
        assert session.plan(1).rates == GUESSES
        save(session.scheduler.topology, path)
    with Session(model, ["cpu:0"], settings=Settings(rates=str(path))) as session:
        assert session.rates.devices == (RATES,)
        assert session.plan(1).rates.startswith("calibrated 2")


def test_other_rates_may_give_another_plan():
    graph = harmless()
    with Scheduler(["cpu:0"], settings=Settings()) as scheduler:
        rates = guessed_rates(scheduler.topology)
        first = scheduler.plan(graph, Constraints(rates=rates))
        assert scheduler.plan(graph, Constraints(rates=replace(rates))) is first
        other = replace(rates, enqueue_s=1.0, source="a test")
        assert scheduler.plan(graph, Constraints(rates=other)).rates == "a test"
        assert scheduler.plan_cache.misses == 2


def test_rates_of_another_machine_are_refused():
    graph = harmless()
    with Scheduler(["cpu:0", "cpu:1"], settings=Settings()) as scheduler:
        two = guessed_rates(scheduler.topology)
        one = replace(two, devices=two.devices[:1])
        with pytest.raises(PlanError, match="rates of 1 devices for 2"):
            scheduler.plan(graph, Constraints(rates=one))


def test_a_calibration_of_nothing_is_kept_all_the_same(tmp_path):
    empty = Calibration((), (), replace(calibration(_one()).rates, devices=(), links={}), {}, (), 0)
    file = save_rates(empty, {}, tmp_path / "rates.json")
    assert file.devices == {}


def _one():
    with Scheduler(["cpu:0"], settings=Settings()) as scheduler:
        return scheduler.topology
