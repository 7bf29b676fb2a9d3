"""Greedy generation whose tokens are chosen where the logits are."""

import re
import time
from itertools import count

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, ModelError, OutOfDeviceMemory, UsageError
from ggsched.ir.dtype import F32
from ggsched.plan.command import Download, HostSync
from ggsched.plan.splits import HOST
from ggsched.run.run_order import StartedRun
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched_llm.batch_runner import BatchRunner
from ggsched_llm.graph import CHOOSING_OPS
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.sampling import Sampling
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import ORACLE
from tests.models.reference_models import write_reference
from tests.models.test_recurrent import NAMES as RECURRENT

PROMPT = (3, 1, 4, 1, 5, 9, 2)
COUNT = 40

ONE, TWO, THREE = (tuple(f"sim:{i}" for i in range(n)) for n in (1, 2, 3))


@pytest.fixture(scope="module")
def model():
    return load_model(ORACLE / "llama-tiny-f32.gguf")


def opened(model, devices=ONE, **options):
    sizes = SessionOptions(n_ctx=64, **options)
    return Session(model, list(devices), sizes, settings=Settings())


@pytest.fixture(scope="module")
def wanted(model):
    """Return tokens, each the first of the largest logits that ``feed`` returned."""
    with opened(model, ["cpu:0"]) as session:
        found, fed = [], list(PROMPT)
        for _ in range(COUNT):
            found.append(int(session.feed(fed)[-1].argmax()))
            fed = found[-1:]
    return found


def downloaded(plan):
    """Return the bytes that a plan downloads, and how often the host waits."""
    commands = plan.commands
    nbytes = sum(c.src.nbytes for c in commands if isinstance(c, Download))
    return nbytes, sum(isinstance(c, HostSync) for c in commands)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (ONE, {}),
        (TWO, {}),
        (TWO, {"split_mode": "tensor"}),
        (THREE, {"split_mode": "tensor", "offload": Offload(tensor_split=(2.0, 1.0, 1.0))}),
    ],
    ids=["one", "layers", "shares", "uneven shares"],
)
def test_tokens_are_those_of_the_logits(model, wanted, devices, options):
    """Over two buckets of the cache. A step waits once, for an index and a logit."""
    with opened(model, devices, **options) as session:
        assert list(session.generate(PROMPT, COUNT)) == wanted
        assert downloaded(session.last_plan) == (8, 1)
        assert session.last_plan.graph == session.step_graph(session.n_past - 1).digest
        assert session.n_past == len(PROMPT) + COUNT - 1
        assert session.timing.decode_tokens == COUNT - 1
        again = session.feed([wanted[-1]])  # the sequence is as if logits had been fetched
        session.reset()
        np.testing.assert_allclose(again, session.feed([*PROMPT, *wanted]), 1e-4, 1e-4)


@pytest.mark.parametrize("devices", [ONE, TWO], ids=len)
@pytest.mark.parametrize("split", ["layer", "tensor"])
def test_a_step_is_enqueued_before_the_token_in_front_of_it_is_known(
    model, wanted, monkeypatch, devices, split
):
    """Also where the cache grows, so that it has another plan; the last one has none behind it."""
    if split == "tensor" and devices is ONE:
        pytest.skip("nothing to share")
    note, under_way, starts = BatchRunner._note_step, [], []
    begin = Scheduler.start

    def noted(self, step):
        under_way.append(len(self._scheduler._order._started))
        return note(self, step)

    def started(self, graph, inputs, constraints):
        assert "tokens" not in inputs
        starts.append(graph)
        return begin(self, graph, inputs, constraints)

    monkeypatch.setattr(BatchRunner, "_note_step", noted)
    monkeypatch.setattr(Scheduler, "start", started)
    with opened(model, devices, split_mode=split) as session:
        assert list(session.generate(PROMPT, COUNT)) == wanted
    assert under_way == [2] * (COUNT - 2) + [1]
    assert len(starts) == COUNT - 1
    assert len({graph.digest for graph in starts}) == 2


@pytest.mark.parametrize("is_stopped", [False, True], ids=["left", "stop token"])
def test_a_step_that_nobody_wants(model, wanted, is_stopped):
    """What was enqueued ahead leaves nothing behind, wherever a generation ends."""
    end = wanted.index(wanted[6])
    with opened(model) as session:
        for _ in range(2):
            tokens = session.generate(PROMPT, COUNT, stop=frozenset(wanted[6:7]))
            found = list(tokens) if is_stopped else [next(tokens) for _ in range(end)]
            assert found == wanted[:end]
            assert len(session.scheduler._order._started) == 1
            session.truncate(len(PROMPT) + 2)
            assert int(session.feed([wanted[2]])[-1].argmax()) == wanted[3]
            session.reset()


def test_a_step_that_nobody_wants_and_is_not_finite(model, wanted, monkeypatch):
    """The rows that it left in the cache are cleared."""
    chosen = StartedRun.outputs
    with opened(model) as session:
        tokens = session.generate(PROMPT, COUNT)
        next(tokens), next(tokens)
        tokens.close()

        def spoiled(run):
            found = chosen(run)
            return {**found, [*found][-1]: np.full((1, 1, 1), np.nan, np.float32)}

        with monkeypatch.context() as patched:
            patched.setattr(StartedRun, "outputs", spoiled)
            assert session.batches.has_nonfinite
        with pytest.raises(UsageError, match="logits were not finite"):
            session.truncate(3)
        session.reset()
        assert not session.batches.has_nonfinite
        assert list(session.generate(PROMPT, 5)) == wanted[:5]


def test_a_next_step_that_cannot_be_started(model, wanted, monkeypatch):
    """The token in front of it can be had all the same."""
    start = BatchRunner._start_step

    def refused(self, token, n_past):
        if token is None:
            raise OutOfDeviceMemory("no room for the next plan")
        return start(self, token, n_past)

    with opened(model) as session:
        tokens = session.generate(PROMPT, COUNT)
        next(tokens)
        with monkeypatch.context() as patched:
            patched.setattr(BatchRunner, "_start_step", refused)
            with pytest.raises(OutOfDeviceMemory, match="no room for the next plan"):
                next(tokens)
        assert session.n_past == len(PROMPT)
        assert session.batches.run_and_choose(wanted[0], len(PROMPT)) == wanted[1]
        session.reset()
        assert list(session.generate(PROMPT, 5)) == wanted[:5]


def test_calls_between_two_tokens(model, wanted):
    """Those that do not change the sequence are allowed, and find a step under way."""
    with opened(model) as session:
        found = []
        for token in session.generate(PROMPT, 9):
            found.append(token)
            assert session.n_past == len(PROMPT) + len(found) - 1
            session.memory_need(7, 20)
            session.plan(3, 8)
            session.scheduler.exchange.give(session.graph(1, 8, 1).named("blk.0.k_cache"))
        assert found == wanted[:9]


def test_steps_are_timed_from_token_to_token(model):
    """Not from where the caller comes back, who may have been busy meanwhile."""
    with opened(model) as session:
        began = time.perf_counter()
        for _ in session.generate(PROMPT, 20):
            time.sleep(0.005)
        elapsed = time.perf_counter() - began
        timing = session.timing
        assert timing.decode_tokens == 19
        assert 0 < timing.fastest_step_s <= timing.decode_s / 19
        assert timing.decode_s + timing.prompt_s < elapsed


def test_recorded_steps_are_given_their_token(model, wanted):
    with opened(model) as session:
        assert "tokens" not in session.step_graph(8)
    recorded = Session(
        model, [*ONE], SessionOptions(n_ctx=64), settings=Settings(), recorder=Recorder()
    )
    with recorded as session:
        assert session.batches.chooses
        assert "tokens" in session.step_graph(8)
        assert list(session.generate(PROMPT, 5)) == wanted[:5]


@pytest.mark.parametrize(
    "asked",
    [
        {"on_logits": lambda _: None},
        {"sampling": Sampling(temperature=0.5)},
        {"sampling": Sampling(repeat_penalty=1.1)},
    ],
    ids=["shown", "drawn", "penalised"],
)
def test_logits_come_where_somebody_needs_them(model, asked):
    with opened(model) as session:
        assert len(list(session.generate(PROMPT, 4, **asked))) == 4
        nbytes, _ = downloaded(session.last_plan)
        assert nbytes == 4 * model.hparams.n_vocab


def test_not_in_host_memory(model):
    """There the host reads logits as fast as a device would look through them."""
    on_cpu = Offload(overrides=(OverrideRule(re.compile("output"), "cpu:0"),))
    for devices, offload in (
        (["cpu:0"], Offload()),
        (["sim:0", "cpu:0"], Offload(n_gpu_layers=0)),
        (["sim:0", "cpu:0"], on_cpu),
    ):
        with opened(model, devices, offload=offload) as session:
            assert not session.batches.chooses
            assert session.step_graph(8) is session.graph(1, 8, 1)


def test_beside_host_memory(model, wanted):
    """With layers on a CPU, but the logits on another device, steps run one by one."""
    offload = Offload(overrides=(OverrideRule(re.compile(r"blk\.0\."), "cpu:0"),))
    with opened(model, ["sim:0", "cpu:0"], offload=offload) as session:
        assert session.batches.chooses
        assert not session.batches.keeps
        assert list(session.generate(PROMPT, COUNT)) == wanted
        assert downloaded(session.last_plan)[0] < 4 * model.hparams.n_vocab
        assert len(session.last_plan.splits.splits) > 1


def test_not_where_a_step_cannot_be_run_again(tmp_path):
    path = write_reference(tmp_path / "recurrent.gguf", RECURRENT[0])
    with opened(load_model(path)) as session:
        assert not session.batches.chooses
        assert len(list(session.generate(PROMPT, 3))) == 3


def test_a_step_is_run_again_for_its_logits(model, wanted, monkeypatch):
    """It leaves the same rows in the cache."""
    choose, times = BatchRunner.run_and_choose, count(1)

    def every_other(self, token, n_past, *, goes_on):
        found = choose(self, token, n_past, goes_on=goes_on)
        return found if next(times) % 2 else None

    monkeypatch.setattr(BatchRunner, "run_and_choose", every_other)
    with opened(model) as session:
        assert list(session.generate(PROMPT, 9)) == wanted[:9]
        assert session.n_past == len(PROMPT) + 8
    assert next(times) == 9


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_an_error(model, monkeypatch, value):
    """As ``feed`` shows it: the step that chooses says only that the largest is not finite."""
    with opened(model) as session:
        tokens = session.generate(PROMPT, 5)
        next(tokens)
        outputs, chosen = BatchRunner._outputs, StartedRun.outputs

        def spoiled(found):
            last = [*found][-1]  # logits, or the largest
            return {**found, last: np.full_like(found[last], value)}

        def spoiled_logits(self, graph, inputs, *, copy):
            return spoiled(outputs(self, graph, inputs, copy=True))

        monkeypatch.setattr(BatchRunner, "_outputs", spoiled_logits)
        monkeypatch.setattr(StartedRun, "outputs", lambda run: spoiled(chosen(run)))
        with pytest.raises(ModelError, match=f"computed {value} as its largest logit"):
            next(tokens)
        assert session.batches.has_nonfinite


def test_the_cache_is_cleared_if_the_step_is_not_run_again(model, wanted, monkeypatch):
    with opened(model) as session:
        tokens = session.generate(PROMPT, 5)
        next(tokens)
        outputs = StartedRun.outputs

        def spoiled(run):
            found = outputs(run)
            return {**found, [*found][-1]: np.full((1, 1, 1), np.nan, np.float32)}

        def fault(*args, **kwargs):
            raise DeviceFault("a command failed")

        with monkeypatch.context() as patched:
            patched.setattr(StartedRun, "outputs", spoiled)
            patched.setattr(BatchRunner, "_outputs", fault)
            with pytest.raises(DeviceFault):
                next(tokens)
        assert session.batches.has_nonfinite
        session.reset()
        assert not session.batches.has_nonfinite
        assert list(session.generate(PROMPT, 5)) == wanted[:5]


def test_a_context_that_is_full(model):
    """What is fed again after that has several tokens, so its logits come to the host."""
    found = []
    for devices in (ONE, ["cpu:0"]):
        with opened(model, devices) as session:
            found.append(list(session.generate(PROMPT, 90, keep=2)))
    assert found[0] == found[1]


def test_a_device_without_the_ops(model, monkeypatch):
    needed = (*CHOOSING_OPS, ("no_such_op", F32))
    monkeypatch.setattr("ggsched_llm.batch_runner.CHOOSING_OPS", needed)
    with opened(model) as session:
        assert not session.batches.chooses
        assert len(list(session.generate(PROMPT, 3))) == 3


def test_faults_and_retries(model, wanted, monkeypatch):
    choose, faults = BatchRunner.run_and_choose, [DeviceFault("a command failed")]

    def faulty(self, token, n_past, *, goes_on):
        if n_past == len(PROMPT) + 2 and faults:
            raise faults.pop()
        return choose(self, token, n_past, goes_on=goes_on)

    monkeypatch.setattr(BatchRunner, "run_and_choose", faulty)
    with opened(model) as session:
        assert list(session.generate(PROMPT, 8, retries=1)) == wanted[:8]
        assert not faults


def test_the_sequence_and_its_limits(model, wanted):
    with opened(model) as session:
        tokens = session.generate(PROMPT, 5)
        found = [next(tokens), next(tokens)]
        session.feed([1])
        with pytest.raises(UsageError, match="the sequence was changed after 2 generated tokens"):
            next(tokens)
        assert found == wanted[:2]
        session.reset()
        stopped = list(session.generate(PROMPT, COUNT, stop=frozenset(wanted[6:7])))
        assert stopped == wanted[: wanted.index(wanted[6])]


def test_memory_is_predicted_for_what_will_run(model):
    """``tests/models/test_memory_need.py`` compares greedy generations with what they take."""
    with opened(model) as session:
        chosen = session.memory_need(7, 20)
        drawn = session.memory_need(7, 20, sampling=Sampling(temperature=1.0))
        logits = 4 * model.hparams.n_vocab
        assert drawn.peak[HOST].total - chosen.peak[HOST].total > logits - 512
        list(session.generate(PROMPT, 20))
        assert session.scheduler.plan_cache.misses == 3  # none that will not run
