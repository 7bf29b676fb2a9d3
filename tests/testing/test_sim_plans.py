"""Plans, sound and broken, on simulated devices; the plug-in ``sim``; models."""

from pathlib import Path

import numpy as np
import pytest

from ggsched.backend.probe import probe
from ggsched.backend.registry import discover, open_devices
from ggsched.cli.main import main
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, UsageError
from ggsched.passes import make_plan
from ggsched.sanitize import check_plan
from ggsched.scheduler import Scheduler
from ggsched.topology.model import Topology
from ggsched_testing.explore import PlanProgram, explore, explore_plan, replay
from ggsched_testing.plan_mutants import drop_host_syncs, drop_waits, record_earlier
from ggsched_testing.schedule_policy import DrawingPolicy, ListPolicy, RandomPolicy
from ggsched_testing.sim import SimBackend, SimConfig, SimWorld, open_backend
from tests.support.errors import refused
from tests.testing.sims import A, B
from tests.testing.test_sim_faults import answer, two_devices

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "llama-tiny-f32.gguf"
RUNS = [{"x": A, "w": B}, {"x": A * 3 - 5, "w": B}]


@pytest.fixture
def planned():
    graph, constraints = two_devices()
    topology = probe(SimWorld([SimConfig(), SimConfig()]).open_all())
    return graph, topology, make_plan(graph, topology, constraints)


def test_a_sound_plan_gives_one_result_in_all_orders(planned):
    graph, topology, plan = planned
    program = PlanProgram(graph, plan, RUNS, topology=topology)
    found = explore(program, limit=50)
    assert found.is_complete
    assert found.is_deterministic
    assert found.outcomes[0].observation == program.expected()
    assert not program.world.violations
    for seed in range(50):
        assert program(RandomPolicy(seed)) == program.expected()


@pytest.mark.parametrize("mutate", [drop_waits, drop_host_syncs, record_earlier])
def test_a_broken_plan_is_wrong_for_some_seed(mutate, planned):
    graph, topology, plan = planned
    mutants = list(mutate(plan))
    assert mutants
    for what, mutant in mutants:
        assert not check_plan(mutant).is_clean
        program = PlanProgram(graph, mutant, RUNS, topology=topology)
        wrong = [s for s in range(100) if program(RandomPolicy(s)) != program.expected()]
        assert wrong, what
        found = explore(program, limit=50, stop_at=2)
        assert len(found.outcomes) == 2, what
        for outcome in found.outcomes:
            assert replay(outcome.token, program) == outcome.observation
            assert len(outcome.token) < 200
        with pytest.raises(UsageError):
            replay(found.outcomes[1].token, PlanProgram(graph, plan, RUNS, topology=topology))


def test_without_a_topology_every_path_is_there(planned):
    graph, topology, plan = planned
    assert explore_plan(graph, plan, RUNS, limit=20).is_deterministic
    with pytest.raises(UsageError, match="another topology"):
        explore_plan(graph, plan, RUNS, topology=Topology(topology.devices))


def test_a_wait_for_nothing_is_refused(planned):
    graph, _, plan = planned
    (record, *_) = [c for c in plan.commands if type(c).__name__ == "Record"]
    commands = [c for c in plan.commands if c is not record]
    broken = type(plan)(**{**_fields(plan), "commands": tuple(commands)})
    with refused("EVT-3"):
        PlanProgram(graph, broken, RUNS)


def _fields(plan):
    return {name: getattr(plan, name) for name in plan.__struct_fields__}


@pytest.mark.parametrize("config", [
    SimConfig(has_events=False),
    SimConfig(copy_order="barrier"),
    SimConfig(copy_order="host", has_events=False),
    SimConfig(copies=frozenset()),
    SimConfig(copies=frozenset({0}), waits="thread"),
    SimConfig(max_streams=1, transfer_queues=2),
    SimConfig(is_host=True, imports_host_memory=True),
    SimConfig(snapshots_uploads=True, waits="host"),
    SimConfig(alignment=4096, memory_nbytes=1 << 16),
])  # fmt: skip
def test_the_scheduler_on_every_kind_of_device(config):
    graph, constraints = two_devices()
    for seed in range(20):
        world = SimWorld([SimConfig(), config], seed=seed)
        devices = world.open_all()
        with Scheduler(devices, weights={"w": B}, settings=Settings()) as scheduler:
            for x in (A, A - 3, A / 2):
                (result,) = scheduler.run(graph, {"x": x}, constraints).values()
                assert (result == answer(graph, x)).all()
        assert not any(world.live().values())
        assert not world.violations


def test_choices_that_are_drawn_or_listed(planned):
    graph, topology, plan = planned
    program = PlanProgram(graph, plan, RUNS, topology=topology)
    drawn = DrawingPolicy(lambda n: n // 2)
    assert program(drawn) == program.expected()
    listed = ListPolicy([0, 0, 0])
    assert program(listed) == program.expected()
    assert set(listed.taken) == {0}
    with pytest.raises(UsageError, match="another program"):
        program(ListPolicy([99]))


class TestPlugIn:
    def test_offers_devices_by_name_only(self):
        (status,) = [s for s in discover() if s.name == "sim"]
        assert (status.state, status.devices) == ("ready", ())
        assert open_backend().device_count() == 0
        a, b = open_devices(["sim:0", "sim:63"])
        assert a.world is b.world
        assert b.facts.name == "sim:63"
        with pytest.raises(BackendUnavailable, match="sim:64"):
            open_backend().open_device(64)

    def test_every_open_gives_a_device_of_its_own(self):
        backend = SimBackend()
        one, two = backend.open_device(0), backend.open_device(0)
        assert one is not two
        one.close()
        two.create_stream()

    def test_seed_of_the_environment(self, monkeypatch):
        def orders(seed):
            monkeypatch.setenv("GGSCHED_SEED", str(seed))
            world = open_backend().world
            q = world.open(0).create_stream()
            buffer = q.device.allocate(32)
            seen = []
            for _ in range(30):
                q.upload(memoryview(bytes(32)), buffer, 0)
                seen.append(q.is_done)
            return seen

        assert orders(1) == orders(1)
        assert len({str(orders(seed)) for seed in range(10)}) > 1
        monkeypatch.setenv("GGSCHED_SEED", "-1")
        with pytest.raises(UsageError, match="GGSCHED_SEED"):
            open_backend()

    def test_a_model_says_the_same_as_on_the_cpu(self, monkeypatch, capsys):
        def tokens(devices, seed):
            monkeypatch.setenv("GGSCHED_SEED", str(seed))
            model = ["run", str(MODEL), "--devices", devices, "--tokens", "1,2,3", "-n", "6"]
            assert main(model) == 0
            return capsys.readouterr().out.splitlines()[-1]

        expected = tokens("cpu:0", 0)
        assert len(expected.split()) == 6
        assert {tokens("sim:0,sim:1", seed) for seed in range(3)} == {expected}


def test_results_are_those_of_the_oracle_to_the_bit(planned):
    graph, topology, _ = planned
    world = SimWorld.of_topology(topology, seed=1)
    with Scheduler(world.open_all(), weights={"w": B}, settings=Settings()) as scheduler:
        (result,) = scheduler.run(graph, {"x": A}).values()
    np.testing.assert_array_equal(result, answer(graph, A))
