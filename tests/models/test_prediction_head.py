"""Drafts of the head of a file that predicts further tokens: glm4moe and deepseek2."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import ModelError, UsageError
from ggsched_llm import draft as drafting
from ggsched_llm.draft_options import DraftOptions
from ggsched_llm.fit import FitRequest
from ggsched_llm.load import load_model
from ggsched_llm.memory_check import _specs
from ggsched_llm.offload import Offload
from ggsched_llm.sampling import Sampling
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import Runner, Stored, stored, write_gguf
from tests.models.reference_models import REFERENCES, metadata, shapes, tensor
from tests.models.test_draft import HOW, PROMPT, Eager, check_distribution
from tests.models.test_draft import opened as opened_with

ARCHS = {"glm4moe": "glm4moe-f32", "deepseek2": "deepseek3-f32"}
COUNT, HOWS = 12, [*HOW]
MIXES = {
    "cpu": (("cpu:0",), {}),
    "sim": (("sim:0",), {}),
    "a pipeline of sims": (("sim:0", "sim:1"), {"n_ubatch": 5, "pipelining": "on"}),
    "opencl + cpu": (("opencl:0", "cpu:0"), {"offload": Offload(n_gpu_layers=2)}),
    "a cache of q8_0": (("sim:0",), {"cache_type": "q8_0"}),
}


CASES = [("glm4moe", mix) for mix in MIXES] + [("deepseek2", mix) for mix in [*MIXES][:3]]


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(drafting, "Pacing", Eager)


def parts(arch, seed=0, layers=1):
    """Return metadata and arrays of a small model with a head behind its last block."""
    name = ARCHS[arch]
    model = REFERENCES[name]
    model = replace(model, sizes={**model.sizes, "layers": layers + 1})
    meta = metadata(name, model) | {f"{model.arch}.nextn_predict_layers": 1}
    rng = np.random.default_rng(seed)
    arrays = {}
    for n, shape in shapes(model).items():
        base = tensor(name, model, n, shape)
        array = np.frombuffer(base.raw, np.float32).reshape(shape)
        arrays[n] = array if "norm" in n else rng.permuted(array)
    e, blk = model.sizes["embd"], f"blk.{layers}.nextn."
    arrays[f"{blk}eh_proj.weight"] = rng.standard_normal((e, 2 * e)) / np.sqrt(2 * e)
    for part in ("enorm", "hnorm", "shared_head_norm"):
        arrays[f"{blk}{part}.weight"] = rng.uniform(0.75, 1.25, e)
    return meta, arrays


def write(path, meta, arrays):
    tensors = {n: a if isinstance(a, Stored) else stored(np.asarray(a)) for n, a in arrays.items()}
    return write_gguf(path, meta, tensors)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes a model with its head; the same for the same arguments."""
    folder = tmp_path_factory.mktemp("heads")

    @cache
    def make(arch="glm4moe", seed=0, *, predicts_well=False, head=True, vocab=256):
        meta, arrays = parts(arch, seed)
        meta[f"{meta['general.architecture']}.vocab_size"] = vocab
        for name in ("token_embd.weight", "output.weight"):
            arrays[name] = arrays[name][:vocab]
        if predicts_well:
            of_the_token_alone(arrays)
        path = folder / f"{arch}-{seed}-{predicts_well}-{head}-{vocab}.gguf"
        return load_model(path if path.exists() else write(path, meta, arrays), head=head)

    return make


def of_the_token_alone(arrays):
    """Let a token follow from the one before it: blocks add nothing, the head takes embeddings."""
    for name in arrays:
        if any(part in name for part in ("attn_output", "ffn_down")):
            arrays[name] = np.zeros_like(arrays[name])
    e = arrays["output_norm.weight"].shape[0]
    blk = next(n for n in arrays if n.endswith("eh_proj.weight")).removesuffix("eh_proj.weight")
    arrays[f"{blk}eh_proj.weight"] = np.hstack([np.eye(e), np.zeros((e, e))])
    arrays[f"{blk}enorm.weight"] = np.ones(e)
    arrays[f"{blk}shared_head_norm.weight"] = arrays["output_norm.weight"]


def opened(model, devices=("cpu:0",), options=None, **sizes):
    draft = model if model.hparams.predicts else None
    return opened_with(model, devices, draft, options=options, **sizes)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("arch", "mix"), CASES)
def test_tokens_are_those_of_the_model_alone(made, arch, mix):
    """Two ways of choosing for each; all of them over the mixes."""
    (devices, more), texts = MIXES[mix], []
    first = [*MIXES].index(mix) + 2 * (arch == "deepseek2")
    for head in (False, True):
        with opened(made(arch, head=head), devices, **more) as session:
            for name in (HOWS[first % 4], HOWS[(first + 1) % 4]):
                session.reset()
                texts.append([*session.generate(PROMPT * 3, COUNT, HOW[name])])
            timing = session.timing
    assert texts[:2] == texts[2:]
    assert timing.drafted > timing.rounds > 0
    assert timing.decode_tokens == 2 * (COUNT - 1)


def assert_follows(model, session):
    """What was refused and forgotten leaves nothing behind: drafts are those of a new sequence."""
    *tokens, last = session._tokens
    found = [*session.batches.draft(last, len(tokens))]
    with opened(model, options=session.draft.options) as fresh:
        fresh.feed(tokens)
        wanted = [*fresh.batches.draft(last, len(tokens))]
    assert [token for token, _ in found] == [token for token, _ in wanted]
    np.testing.assert_allclose([p for _, p in found], [p for _, p in wanted], rtol=1e-3)


@given(data=st.data())
@settings(max_examples=3)
def test_any_sizes(made, data):
    """Drafts of any length, over the end of the context, in a sequence that is cut and goes on."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drafting, "Pacing", Eager)
        arch, seed = data.draw(st.sampled_from(sorted(ARCHS))), data.draw(st.integers(0, 2))
        longest, n_ctx = data.draw(st.integers(1, 6)), data.draw(st.sampled_from((24, 40)))
        options = DraftOptions(
            draft_max=longest,
            draft_min=data.draw(st.integers(0, longest)),
            draft_p_min=data.draw(st.sampled_from((0.0, 0.01))),
        )
        how, keep = HOW[data.draw(st.sampled_from(HOWS))], data.draw(st.sampled_from((None, 2)))
        well, step = data.draw(st.booleans()), data.draw(st.sampled_from((4, 512)))
        found = []
        for head in (False, True):
            model = made(arch, seed, predicts_well=well, head=head)
            sizes = {"n_ctx": n_ctx, "n_ubatch": max(step, 1 + longest)}
            with opened(model, options=options, **sizes) as session:
                texts = [list(session.generate(PROMPT, n_ctx, how, keep=keep))]
                session.truncate(min(7, session.n_past))
                texts.append(list(session.generate((2, 7), 9, how)))
                session.reset()
                texts.append(list(session.generate((5,), 6, how)))
                if head:
                    assert_follows(model, session)
                found.append((texts, session.n_past))
        assert found[0] == found[1]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("arch", "devices"), [*product(ARCHS, [("cpu:0",), ("sim:0",)])])
def test_a_head_that_predicts_well_saves_steps(made, arch, devices):
    model = made(arch, predicts_well=True)
    with opened(model, devices) as session:
        list(session.generate(PROMPT, COUNT))
        timing = session.timing
        assert timing.accepted == timing.drafted
        assert timing.rounds == 2
        session.reset()
        known = timing.accepted
        list(session.generate(PROMPT, COUNT, Sampling(temperature=0.3, seed=3)))
        assert timing.accepted - known > (timing.drafted - known) / 2


@pytest.mark.parametrize("arch", ARCHS)
def test_predictions_are_those_of_the_equations(made, tmp_path, arch):
    """The model's hidden states by an output matrix that is the identity, the block as a model."""
    meta, arrays = parts(arch)
    name, e, n = REFERENCES[ARCHS[arch]].arch, 64, 12
    tokens = np.arange(3, 3 + n) * 7 % 251
    hidden = _alone(tmp_path / "h.gguf", meta, arrays, name, np.eye(256, e)).feed(tokens)[:, :e]

    def normed(x, weight):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * weight

    def predicted(ids, hidden):
        """Return what the head gives for each pair, the first of which is that of position 1."""
        own = {n.removeprefix("blk.1.nextn."): a for n, a in arrays.items() if ".nextn." in n}
        both = [
            normed(arrays["token_embd.weight"][ids], own["enorm.weight"]),
            normed(hidden, own["hnorm.weight"]),
        ]
        x = np.concatenate(both, axis=1) @ own["eh_proj.weight"].T
        block = {n.replace("blk.1.", "blk.0."): a for n, a in arrays.items() if "blk.1." in n}
        block = {n: a for n, a in block.items() if ".nextn." not in n}
        block |= {"output_norm.weight": own["shared_head_norm.weight"]}
        block |= {"token_embd.weight": np.pad(x, ((0, 256 - len(x)), (0, 0)))}
        keys = {**meta, f"{name}.leading_dense_block_count": 0, f"{name}.block_count": 1}
        found = []
        for output in (arrays["output.weight"], np.eye(256, e)):
            runner = _alone(tmp_path / "b.gguf", keys, {**block, "output.weight": output}, name)
            found.append(runner.feed(range(len(x)))[-1])
        return found[0], found[1][:e]

    ids, states, wanted = [*tokens], [*hidden[:-1]], []
    for _ in range(3):
        logits, state = predicted(ids[1:], np.array(states))
        shares = np.exp(logits - logits.max())
        wanted.append((int(logits.argmax()), shares.max() / shares.sum()))
        ids.append(wanted[-1][0])
        states.append(state)
    with opened(made(arch), options=DraftOptions(draft_max=3)) as session:
        for start in range(0, n - 1, 4):  # its rows are filled over several micro-batches
            session.feed(tokens[start : min(start + 4, n - 1)])
        found = [*session.batches.draft(int(tokens[-1]), n - 1)]
    assert [token for token, _ in found] == [token for token, _ in wanted]
    np.testing.assert_allclose([p for _, p in found], [p for _, p in wanted], rtol=1e-3)


def _alone(path, meta, arrays, arch, output=None):
    """Return a runner of a model without its head."""
    own = {n: a for n, a in arrays.items() if "blk.1." not in n}
    own |= {} if output is None else {"output.weight": output}
    blocks = min(1, meta[f"{arch}.block_count"])
    keys = {**meta, f"{arch}.block_count": blocks, f"{arch}.nextn_predict_layers": 0}
    return Runner(load_model(write(path, keys, own)))


@pytest.mark.usefixtures("eager")
def test_drawn_tokens_have_the_models_distribution(made):
    check_distribution(*[made(vocab=4)] * 2, n_seeds=160)


@pytest.mark.parametrize("arch", ARCHS)
def test_tensors_of_the_head_are_checked(tmp_path, arch):
    """Each that is missing, or of another shape, is named; without the head nobody looks."""
    meta, arrays = parts(arch)
    path = tmp_path / "m.gguf"
    own = load_model(write(path, meta, arrays), head=True).spec
    shared = ("shared_head_norm", "bias")  # the model's norm serves too; biases are optional
    for name in [n for n in own.weights if n.startswith("blk.1.")]:
        broken = {n: a for n, a in arrays.items() if n != name}
        if not any(part in name for part in shared):
            message = f"{name}': is missing"
            with pytest.raises(ModelError, match=message):
                load_model(write(path, meta, broken), head=True)
        broken[name] = arrays[name][:-1]
        with pytest.raises(ModelError, match=f"{name}': has the wrong shape") as info:
            load_model(write(path, meta, broken), head=True)
        assert "\n" not in str(info.value)
        assert load_model(path)


def test_what_is_refused(made, tmp_path):
    meta, arrays = parts("glm4moe")
    plain = {n: a for n, a in arrays.items() if ".nextn." not in n}
    keys = {k: v for k, v in meta.items() if "nextn" not in k}
    with pytest.raises(UsageError, match="has no head that predicts further tokens"):
        load_model(write(tmp_path / "plain.gguf", keys, plain), head=True)
    recurrent = REFERENCES["qwen3next-f32"]
    meta = metadata("qwen3next-f32", recurrent)
    meta |= {"qwen3next.block_count": 5, "qwen3next.nextn_predict_layers": 1}
    tensors = {n: tensor("", recurrent, n, shape) for n, shape in shapes(recurrent).items()}
    tensors["blk.4.nextn.enorm.weight"] = tensors["output_norm.weight"]
    with pytest.raises(UsageError, match="head of qwen3next .* drafts are taken back, and states"):
        load_model(write(tmp_path / "hybrid.gguf", meta, tensors), head=True)
    with pytest.raises(UsageError, match="--draft-devices without a draft model: the model's own"):
        opened(made(), options=DraftOptions(draft_devices=("cpu:0",)))
    with pytest.raises(UsageError, match="further tokens with -sm tensor"):
        opened(made(), ["sim:0", "sim:1"], split_mode="tensor")


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("arch", ARCHS)
def test_the_memory_of_the_head_is_counted(made, arch):
    """What a run takes for weights and caches is predicted, and --fit knows it."""
    model, whole = made(arch), sum(w.nbytes for w in made(arch).spec.weights.values())
    assert whole > sum(w.nbytes for w in made(arch, head=False).spec.weights.values())
    sizes = SessionOptions(n_ctx=64, fit=FitRequest())
    with Session(model, ["sim:0"], sizes, draft=(model, DraftOptions())) as session:
        need = session.memory_need(len(PROMPT), COUNT).peak[0]
        list(session.generate(PROMPT, COUNT))
        assert session.timing.drafted
        states = sum(session.spec.state_nbytes(64).values())
        assert (need.weights, need.states) == (whole, states + 4)  # and the next token
        resident = [session.scheduler.resident_nbytes(kind) for kind in ("weight", "state")]
        assert resident == [{"sim:0": whole}, {"sim:0": states + 4}]
        assert session.fit.need.peak[0].weights == whole
        assert session.fit.need.peak[0].states == states
        assert len([*_specs(session)]) == 1  # there are no other types to advise


@pytest.mark.usefixtures("eager")
def test_a_head_whose_logits_are_not_finite_is_left_out(tmp_path, caplog):
    meta, arrays = parts("glm4moe")
    arrays["blk.1.nextn.shared_head_norm.weight"] = np.full(64, np.nan)
    model = load_model(write(tmp_path / "nan.gguf", meta, arrays), head=True)
    with opened(model) as session:
        found = list(session.generate(PROMPT, 8))
        assert session.draft is None
        session.reset()
        assert list(session.generate(PROMPT, 8)) == found
    assert "nan.gguf: computed logits that are not finite; going on without" in caplog.text


@pytest.mark.parametrize("arch", ARCHS)
def test_several_sequences_have_no_use_for_the_head(made, arch):
    found = []
    for head in (False, True):
        with opened(made(arch, head=head), n_parallel=3) as session:
            sequences = session.sequences
            first, other = sequences.join(), sequences.join()
            rows = [*sequences.step({first: [3, 1, 4], other: [5]}).values()]
            copied = sequences.copy(first)
            rows += sequences.step({copied: [2], other: [7, 1]}).values()
            found.append(rows)
    np.testing.assert_allclose(found[0], found[1], 1e-4, 1e-4)
