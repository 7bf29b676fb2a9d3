"""Models on the backend ``cuda`` over a GPU in software: kernels of a step, and its graphs."""

from itertools import product

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.scheduler import Scheduler
from ggsched_llm.draft_options import DraftOptions
from ggsched_llm.draft_pacing import Pacing
from ggsched_llm.expert_sharing import ExpertOptions, read_expert_split
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions
from tests.backends.software_kernels import in_software
from tests.kernels.test_fibers import NEEDS, Runner
from tests.models.helpers import ORACLE
from tests.models.reference_models import write_reference
from tests.models.test_prediction_head import of_the_token_alone, parts, write

pytestmark = NEEDS

REFERENCE = ORACLE.parent / "reference"
BOUND = 1e-4
STEPS = 3


ONE, TWO = ("cuda:0",), ("cuda:0/0", "cuda:0/1")
LLAMA, GPT_OSS = "llama-tiny-f32", "gptoss-tiny-f32"
FAST = [(90, LLAMA, ONE), (90, GPT_OSS, TWO)]
SLOW = [case for case in product((80, 90), (LLAMA, GPT_OSS), (ONE, TWO)) if case not in FAST]


@pytest.fixture(scope="module")
def gpus(compiled_kernels):
    """Return a GPU of a capability."""
    runner = Runner(compiled_kernels)
    return lambda arch: in_software(runner, arch=arch)


def check_logits(name, devices, **options):
    """Compare the logits of a prompt, and of some steps behind it, with llama.cpp's."""
    recorded = np.load(ORACLE / f"{name}.npz")
    model, sizes = load_model(ORACLE / f"{name}.gguf"), SessionOptions(n_ctx=64, **options)
    with Session(model, devices, sizes, settings=Settings()) as session:
        rows = [session.feed(recorded["dec_prompt"])]
        rows += [session.feed([int(token)]) for token in recorded["dec_tokens"][:STEPS]]
        used = {split.device for split in session.last_plan.splits.splits}
    assert used == set(range(len(devices)))
    found, wanted = np.concatenate(rows), recorded["dec_logits"][: 1 + STEPS]
    assert np.abs(found - wanted).max() < BOUND


@pytest.mark.parametrize(
    ("arch", "name", "devices"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
    ids=str,
)
def test_logits(gpus, arch, name, devices):
    with gpus(arch) as driver:
        check_logits(name, devices)
    assert driver.counts["graph"], "steps behind the first two are replayed"


def test_experts_by_expert(gpus):
    """Captured steps in which each GPU computes with the experts that it has, and adds up."""
    experts = ExpertOptions(split=read_expert_split("0:5-7,1:0-4"))
    with gpus(90) as driver:
        check_logits(GPT_OSS, TWO, split_mode="tensor", experts=experts)
    assert driver.counts["graph"]


@pytest.mark.parametrize(
    ("devices", "options"),
    [(ONE, {}), (TWO, {}), pytest.param(TWO, {"split_mode": "tensor"}, marks=pytest.mark.slow)],
    ids=["one", "layers", "shares"],
)
def test_greedy_steps_are_replayed_ahead(gpus, devices, options):
    """Two graphs by turns on the same streams, each in front of the host, and the same tokens."""
    model, sizes = load_model(ORACLE / f"{LLAMA}.gguf"), SessionOptions(n_ctx=64, **options)
    prompt, count = [3, 1, 4, 1, 5], 9
    with Session(model, ["cpu:0"], SessionOptions(n_ctx=64)) as session:
        wanted = list(session.generate(prompt, count))
    with gpus(90) as driver, Session(model, devices, sizes, settings=Settings()) as session:
        assert session.batches.keeps
        found = []
        for token in session.generate(prompt, count):
            found.append(token)
            assert len(session.scheduler._order._started) == (1 < len(found) < count)
        made = session.scheduler._executors.values()
        (step,) = (e for e in made if e.alternate is not None)
        replays = [e.captured.report.replays for e in (step, step.alternate)]
    assert found == wanted
    assert driver.counts["graph"]
    assert min(replays) >= 2


@pytest.mark.parametrize("draft_device", [ONE[0], pytest.param(TWO[1], marks=pytest.mark.slow)])
def test_drafts_are_verified_in_replays(gpus, monkeypatch, draft_device):
    """Tokens of all rows are chosen on the GPU; contexts and streams of two models share it."""
    monkeypatch.setattr(Pacing, "wants_draft", lambda self, more=0: True)
    monkeypatch.setattr(Pacing, "note_round", lambda self, n_tokens, seconds: None)
    model, sizes = load_model(ORACLE / f"{LLAMA}.gguf"), SessionOptions(n_ctx=64)
    prompt, count = [3, 1, 4, 1, 5], 14
    with Session(model, ["cpu:0"], sizes) as session:
        wanted = list(session.generate(prompt, count))
    with gpus(90) as driver, Session(model, ONE, sizes, settings=Settings()) as session:
        session.use_draft(model, DraftOptions(draft_max=2, draft_devices=(draft_device,)))
        assert list(session.generate(prompt, count)) == wanted
        assert session.timing.accepted == session.timing.drafted == 8
        made = session.scheduler._executors.values()
        assert max(e.captured.report.replays for e in made) >= 2
    assert driver.counts["graph"]


@pytest.mark.parametrize("arch", ["glm4moe", pytest.param("deepseek2", marks=pytest.mark.slow)])
def test_a_head_drafts_in_replays(gpus, monkeypatch, tmp_path, arch):
    """One graph drafts all tokens of a round; the model's steps fill the head's caches."""
    monkeypatch.setattr(Pacing, "wants_draft", lambda self, more=0: True)
    monkeypatch.setattr(Pacing, "note_round", lambda self, n_tokens, seconds: None)
    meta, arrays = parts(arch)
    of_the_token_alone(arrays)
    model = load_model(write(tmp_path / "m.gguf", meta, arrays), head=True)
    prompt, count, sizes = [3, 1, 4, 1, 5], 14, SessionOptions(n_ctx=64)
    with Session(model, ["cpu:0"], sizes) as session:
        wanted = list(session.generate(prompt, count))
    with gpus(90) as driver, Session(model, ONE, sizes, settings=Settings()) as session:
        session.use_draft(model, DraftOptions(draft_max=2))
        assert list(session.generate(prompt, count)) == wanted
        assert session.timing.accepted == session.timing.drafted == 8
        made = session.scheduler._executors.values()
        assert sorted(e.captured.report.replays for e in made)[-2:] >= [2, 2]
    assert driver.counts["graph"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3next", "qwen35", "glm4moe", "minimax-m2", "deepseek3"])
def test_steps_are_replayed(gpus, tmp_path, name):
    """One replay for each step, and no update: states and caches are where they were."""
    recorded = np.load(REFERENCE / f"{name}-f32.npz")
    model = load_model(write_reference(tmp_path / "m.gguf", f"{name}-f32"))
    with gpus(90) as driver, Session(model, ONE, SessionOptions(n_ctx=64)) as session:
        rows = [session.feed(recorded["dec_prompt"])]
        replays, updates = [], []
        for token in recorded["dec_tokens"][:5]:
            rows.append(session.feed([int(token)]))
            replays.append(driver.counts["graph"])
            updates.append(driver.counts["graph updates"])
    assert np.diff(replays).tolist()[1:] == [1, 1, 1]
    assert np.diff(updates).tolist()[1:] == [0, 0, 0]
    assert np.abs(np.concatenate(rows) - recorded["dec_logits"][:6]).max() < BOUND


@pytest.mark.parametrize("arch", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_logits_beside_the_processor(gpus, arch):
    with gpus(arch) as driver:
        check_logits(LLAMA, ("cuda:0", "cpu:0"), offload=Offload(n_gpu_layers=1))
    assert driver.counts["kernel"]


def test_products_of_many_rows(gpus):
    """They go to cuBLAS, eager and from a graph."""
    g, rng = GraphBuilder("product"), np.random.default_rng(1)
    graph = g.build(g.mul_mat(g.weight("w", (24, 64)), g.input("x", (20, 64))))
    w, x = (rng.standard_normal(shape, np.float32) for shape in ((24, 64), (20, 64)))
    with gpus(80) as driver, Scheduler(["cuda:0"], weights={"w": w}) as scheduler:
        for _ in range(4):
            found = scheduler.run(graph, {"x": x})[graph.outputs[0]]
            np.testing.assert_allclose(found, x @ w.T, 1e-5, 1e-5)
    assert driver.counts["graph"]
