"""Models whose blocks keep states of fixed size: several sequences, and what is refused."""

import numpy as np
import pytest

from ggsched.errors import ModelError, UsageError
from ggsched.ir.tensor import Role
from ggsched_llm.load import load_model
from ggsched_llm.session import Session
from ggsched_llm.session_options import SessionOptions
from tests.models.helpers import write_gguf
from tests.models.reference_models import REFERENCES, metadata, shapes, tensor, write_reference

NAMES = ["qwen3next-f32", "mamba2-f32"]
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 6, 1, 8, 0, 3]]


@pytest.fixture(scope="module")
def path_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    return lambda name: write_reference(folder / f"{name}.gguf", name)


@pytest.fixture(scope="module", params=NAMES)
def model(request, path_of):
    return load_model(path_of(request.param))


def opened(model, devices=("cpu:0",), **options):
    return Session(model, list(devices), SessionOptions(**{"n_ctx": 96, **options}))


def same(found, wanted):
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


ALONE = {}
"""Logits of sequences of their own, by architecture and tokens: each is asked for several times."""


def alone(model, tokens):
    key = (model.hparams.arch, *tokens)
    if key not in ALONE:
        with opened(model) as session:
            ALONE[key] = session.feed(tokens)[0]
    return ALONE[key]


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (("cpu:0",), {}),
        (("cpu:0",), {"n_ubatch": 4}),
        (("sim:0", "cpu:0"), {"n_ubatch": 5, "pipelining": "on"}),
        (("cpu:0", "cpu:1"), {"split_mode": "tensor"}),
    ],
    ids=str,
)
def test_sequences_beside_each_other(model, devices, options):
    """Each as if it were alone, also where one leaves and another takes its slot."""
    with opened(model, devices, n_parallel=3, **options) as session:
        several = session.sequences
        a, b = several.join(), several.join()
        first = several.step({a: PROMPTS[0], b: PROMPTS[1]})
        several.leave(b)
        c = several.join()
        assert c == b
        second = several.step({c: PROMPTS[2], a: [7]})
        d = several.copy(a)
        third = several.step({d: [5], a: [6, 4]})
    same(first[a], alone(model, PROMPTS[0]))
    same(first[b], alone(model, PROMPTS[1]))
    same(second[c], alone(model, PROMPTS[2]))
    same(third[d], alone(model, [*PROMPTS[0], 7, 5]))
    same(third[a], alone(model, [*PROMPTS[0], 7, 6, 4]))


def test_nothing_is_left_of_a_sequence(model):
    wanted = alone(model, PROMPTS[1])
    with opened(model) as session:
        session.feed(PROMPTS[0])
        session.reset()
        same(session.feed(PROMPTS[1])[0], wanted)
        session.truncate(3)  # all of it stays
        session.truncate(0)
        same(session.feed(PROMPTS[1])[0], wanted)


def test_a_state_is_not_rolled_back(model):
    with opened(model) as session:
        session.feed(PROMPTS[0])
        with pytest.raises(UsageError, match="keep a state that cannot be rolled back") as info:
            session.truncate(3)
        assert "reset()" in str(info.value)
        assert session.n_past == 7
    with opened(model, n_parallel=2) as session:
        a = session.sequences.join()
        session.sequences.step({a: PROMPTS[0]})
        with pytest.raises(UsageError, match=r"sequence 0 cannot be cut.*copy\(\) it before"):
            session.sequences.truncate(a, 3)
        session.sequences.truncate(a, 0)


def test_one_plan_for_all_steps(model):
    """Decoding plans again only where attention looks at more rows."""
    with opened(model) as session:
        session.feed([1])
        session.feed([2])
        known = session.scheduler.plan_cache.misses
        for token in range(20):
            session.feed([token])
        assert session.scheduler.plan_cache.misses == known
        states = session.graph(1, 1, 1).roots(Role.STATE)
    assert sorted(t.name for t in states) == sorted(model.hparams.state_names)


def test_states_have_the_size_that_is_counted(model):
    with opened(model, n_parallel=3) as session:
        found = {t.name: t.nbytes for t in session.graph(1, 1, 1).roots(Role.STATE)}
        assert found == session.spec.state_nbytes(session.options.n_ctx)


@pytest.mark.parametrize(
    ("name", "key", "value", "word"),
    [
        ("qwen3next-f32", "ssm.group_count", 4, "must divide the 6 heads"),
        ("qwen3next-f32", "ssm.inner_size", 100, "multiple of the 6 heads"),
        ("qwen3next-f32", "ssm.inner_size", 48, "heads of ssm.state_size=16 make 96"),
        ("qwen3next-f32", "ssm.conv_kernel", 1, "must be from 2"),
        ("qwen3next-f32", "full_attention_interval", 0, "must be from 1"),
        ("qwen3next-f32", "nextn_predict_layers", 4, "there are 4 blocks"),
        ("qwen35moe-f32", "rope.dimension_sections", (2, 1, 1, 1), "needs 4, the last of them 0"),
        ("qwen3next-f32", "attention.recurrent_layers", (True,), "there are 4 blocks"),
        ("mamba2-f32", "ssm.time_step_rank", 0, "must be from 1"),
        ("mamba2-f32", "ssm.state_size", -1, "must be from 1"),
    ],
)
def test_contradicting_keys(path_of, name, key, value, word):
    arch = name.partition("-")[0]
    with pytest.raises(ModelError) as info:
        load_model(path_of(name), overrides={f"{arch}.{key}": value})
    assert f"key {arch}.{key}: " in str(info.value)
    assert word in str(info.value)


def test_blocks_that_are_listed(path_of):
    overrides = {"qwen3next.attention.recurrent_layers": (True, True, True, False)}
    listed = load_model(path_of("qwen3next-f32"), overrides=overrides).hparams.recurrent
    assert listed == load_model(path_of("qwen3next-f32")).hparams.recurrent
    odd = {"qwen3next.attention.recurrent_layers": (False, True, True, True)}
    with pytest.raises(ModelError, match="blk.0.attn_q.weight': is missing"):
        load_model(path_of("qwen3next-f32"), overrides=odd)


def test_blocks_that_predict_further_tokens_are_left_out(tmp_path):
    model = REFERENCES["qwen3next-f32"]
    arch, layers = model.arch, model.sizes["layers"]
    meta = metadata("qwen3next-f32", model)
    meta |= {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    tensors = {n: tensor("qwen3next-f32", model, n, s) for n, s in shapes(model).items()}
    tensors[f"blk.{layers}.nextn.enorm.weight"] = tensors["output_norm.weight"]
    hp = load_model(write_gguf(tmp_path / "m.gguf", meta, tensors)).hparams
    assert (hp.n_layer, hp.recurrent.layers) == (4, (True, True, True, False))
