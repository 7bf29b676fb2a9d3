"""A session that shares layers and was fitted runs within the memory that is free."""

import random
from dataclasses import replace

import pytest

from ggsched.config import Settings
from ggsched.errors import OutOfDeviceMemory
from ggsched.plan.splits import HOST
from ggsched_llm.fit import FitRequest
from ggsched_llm.fit_sharing import SharedChoice
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions
from ggsched_testing.sim import SimConfig, SimWorld
from tests.models.helpers import tiny_gguf
from tests.support.profile import some

PROMPT = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
CONTEXTS = (64, 32)
SETTINGS = Settings(sanitize="off")
LAYERS = 2


def opened(*memory, cpu=0):
    """Open accelerators with so many bytes, and a CPU behind them."""
    kinds = [*(("gpu", n) for n in memory), *([("cpu", cpu)] if cpu else [])]
    return SimWorld([SimConfig(kind=k, memory_nbytes=n) for k, n in kinds]).open_all()


def options(**offload):
    fit = FitRequest(CONTEXTS[-1], (0, 0.0))
    return SessionOptions(
        n_ctx=CONTEXTS[0], n_ubatch=8, split_mode="tensor", pipelining="off", fit=fit,
        offload=Offload(**offload),
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return load_model(tiny_gguf(path, "qwen3moe", layers=LAYERS))


@pytest.fixture(scope="module")
def expected(model):
    with Session(model, opened(1 << 30), settings=SETTINGS) as session:
        return list(session.generate(PROMPT, 60))


def taken(model, devices, **offload):
    """Return what a session with these options takes of each device, with one plan at a time."""
    asked = replace(options(**offload), fit=None)
    with Session(model, devices, asked, settings=SETTINGS) as session:
        need = session.memory_need(CONTEXTS[0], 1)
        return [need.least[d].total for d in range(len(devices))], need.least[HOST].total


@pytest.fixture(scope="module")
def whole(model):
    """What two devices with equal shares take, and a CPU beside them."""
    return taken(model, opened(1 << 30, 1 << 30, cpu=1 << 30))[0]


def test_what_fits_is_shared_equally(model, whole):
    with Session(model, opened(*whole[:2], cpu=1 << 30), options(), settings=SETTINGS) as session:
        assert (session.options.offload.tensor_split, session.options.n_ctx) == (None, 64)
        assert session.options.offload.n_cpu_moe == 0
        assert session.fit.reasons[0].startswith("fit: -sm tensor -c 64, predicted")
        assert session.fit.reasons[-1] == "nothing that fits is predicted to be faster"


def test_unequal_cards_get_shares_of_their_memory(model, whole, expected):
    room = sum(whole[:2])
    memory = int(1.0 * room), int(0.45 * room)  # heads are not cut: a half of them is on each
    with Session(model, opened(*memory, cpu=1 << 30), options(), settings=SETTINGS) as session:
        large, small = session.options.offload.tensor_split
        assert large > 2 * small
        parts = [session.sharing.nbytes(f"blk.1.ffn_up_exps.weight#{p}") for p in (0, 1)]
        assert parts[0] > 2 * parts[1]
        assert session.options.offload.n_cpu_moe == 0
        assert "too large: -sm tensor -c 64 lacks" in session.fit.reasons[-1]
        assert list(session.generate(PROMPT, 20)) == expected[:20]


def test_as_few_experts_as_possible_stay_on_the_cpu(model, whole, expected):
    experts = sum(w.nbytes for n, w in model.spec.weights.items() if "_exps" in n) / LAYERS
    memory = [int(n - 0.2 * experts) for n in whole[:2]]
    with Session(model, opened(*memory, cpu=1 << 30), options(), settings=SETTINGS) as session:
        offload = session.options.offload
        assert (offload.n_cpu_moe, offload.n_gpu_layers) == (1, None)
        assert session.homes.devices["blk.0.ffn_up_exps.weight"] == 2
        assert list(session.generate(PROMPT, 20)) == expected[:20]


def test_what_is_given_is_kept(model, whole):
    given = {"tensor_split": (3.0, 1.0), "n_cpu_moe": 1}
    memory = [3 * n for n in whole[:2]]
    with Session(model, opened(*memory, cpu=1 << 30), options(**given), settings=SETTINGS) as s:
        assert s.options.offload.tensor_split == (3.0, 1.0)
        assert s.options.offload.n_cpu_moe == 1


def test_a_draft_model_has_its_memory_first(model, whole):
    """What is taken of a device beside the session is not there for it."""
    asked = options()
    asked = replace(asked, fit=replace(asked.fit, beside={"sim:1": whole[1] // 3}))
    with Session(model, opened(*whole[:2], cpu=1 << 30), asked, settings=SETTINGS) as session:
        assert session.options.offload != Offload()
        assert session.fit.limits[:2] == (whole[0], whole[1] - whole[1] // 3)


@pytest.mark.parametrize("seed", some(3, range(12)))
def test_runs_to_the_end_of_the_context(model, whole, expected, seed):
    rng = random.Random(seed)
    memory = [int(rng.uniform(0.3, 1.3) * n) for n in whole[:2]]
    devices = opened(*memory, cpu=int(rng.uniform(0.5, 2) * sum(whole)))
    try:
        session = Session(model, devices, options(), settings=SETTINGS)
    except OutOfDeviceMemory:
        assert any(a < b for a, b in zip(memory, whole, strict=False))
        return
    with session:
        n = session.options.n_ctx - len(PROMPT)
        assert list(session.generate(PROMPT, n)) == expected[:n]


def test_nothing_fits(model):
    with pytest.raises(OutOfDeviceMemory, match="-sm tensor .*comes closest and lacks") as raised:
        Session(model, opened(5_000, 5_000), options(), settings=SETTINGS)
    assert "\n" not in raised.value.one_line()


def test_choices_are_written_as_options():
    choice = SharedChoice(64, (3.0, 1.0), 2, 1)
    assert choice.text() == "-sm tensor -ts 3,1 -ngl 2 --n-cpu-moe 1 -c 64"
