"""Several sequences of one session: each as if it were alone."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched_llm.load import load_model
from ggsched_llm.session import Session
from ggsched_llm.session_options import SessionOptions
from tests.models.helpers import ORACLE, tiny_arrays, tiny_gguf
from tests.models.reference_models import write_reference

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 6, 1, 8, 0, 3]]
MODELS = ["llama-tiny-f32.gguf", "gptoss-tiny-f32.gguf", "qwen3moe-tiny-f32.gguf"]


def opened(name=MODELS[0], devices=("cpu:0",), **options):
    options = {"n_ctx": 96, "n_parallel": 3, **options}
    return Session(load_model(ORACLE / name), list(devices), SessionOptions(**options))


def alone(name, tokens):
    """Return the logits of the last token of a sequence of its own."""
    return _alone(name, tuple(tokens))


@cache
def _alone(name, tokens):
    with opened(name, n_parallel=1) as session:
        return session.feed(list(tokens))[0]


def same(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (("cpu:0",), {}),
        (("cpu:0",), {"n_ubatch": 4}),
        (("sim:0", "cpu:0"), {"n_ubatch": 5, "pipelining": "on"}),
        (("cpu:0", "cpu:1"), {"split_mode": "tensor"}),
        pytest.param(("opencl:0", "cpu:0"), {}, marks=pytest.mark.opencl),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_prompts_of_different_lengths_and_decoding_together(name, devices, options):
    with opened(name, devices, **options) as session:
        several = session.sequences
        a, b, c = (several.join() for _ in range(3))
        first = several.step({a: PROMPTS[0], b: PROMPTS[1]})
        second = several.step({c: PROMPTS[2], a: [7], b: [8]})  # a prompt beside decoding
        assert [several.length(i) for i in (a, b, c)] == [8, 4, 6]
    same(first[a], alone(name, PROMPTS[0]))
    same(first[b], alone(name, PROMPTS[1]))
    same(second[a], alone(name, [*PROMPTS[0], 7]))
    same(second[b], alone(name, [*PROMPTS[1], 8]))
    same(second[c], alone(name, PROMPTS[2]))


def test_factors_are_those_of_the_context_of_one_sequence(tmp_path):
    """phi3 takes other factors where a sequence can be longer than in training, 64 tokens here."""
    model = load_model(write_reference(tmp_path / "m.gguf", "phi3-long-f32"))
    for n_ctx, n_parallel in ((64, 2), (65, 2)):
        with Session(model, ["cpu:0"], SessionOptions(n_ctx=n_ctx)) as session:
            wanted = session.feed(PROMPTS[0])[0]
        options = SessionOptions(n_ctx=n_ctx * n_parallel, n_parallel=n_parallel)
        with Session(model, ["cpu:0"], options) as session:
            several = session.sequences
            a, b = several.join(), several.join()
            found = several.step({a: PROMPTS[0], b: PROMPTS[1]})
        same(found[a], wanted)


def test_reset_leaves_other_sequences_after_numbers_that_are_not_finite(tmp_path):
    arrays = tiny_arrays("llama")
    arrays["token_embd.weight"][7] = np.inf
    model = load_model(tiny_gguf(tmp_path / "m.gguf", arrays=arrays))
    with Session(model, ["cpu:0"], SessionOptions(n_ctx=64, n_parallel=2)) as session:
        wanted = session.feed([1, 2, 3])[0]
        session.reset()
        several = session.sequences
        a, b = several.join(), several.join()
        several.step({a: [1, 2]})
        assert np.isnan(several.step({b: [7]})[b]).any()
        several.leave(b)
        session.reset()
        same(several.step({a: [3]})[a], wanted)
        several.leave(a)
        same(session.feed([1, 2, 3])[0], wanted)


@pytest.mark.parametrize("name", MODELS[:2])
def test_a_copy_goes_on_by_itself(name):
    with opened(name) as session:
        several = session.sequences
        a = several.join()
        several.step({a: PROMPTS[0]})
        b = several.copy(a)
        assert several.length(b) == 7
        found = several.step({a: [5], b: [6]})
        several.truncate(b, 3)
        again = several.step({b: PROMPTS[0][3:]})
    same(found[a], alone(name, [*PROMPTS[0], 5]))
    same(found[b], alone(name, [*PROMPTS[0], 6]))
    same(again[b], alone(name, PROMPTS[0]))


@settings(max_examples=12)
@given(data=st.data())
def test_any_order_of_joining_and_leaving(data):
    """Against the tokens of each sequence fed to a session of their own."""
    tokens: dict[int, list[int]] = {}
    with opened() as session, opened(n_parallel=1) as other:
        several = session.sequences
        for _ in range(data.draw(st.integers(1, 6))):
            if len(tokens) < 3 and data.draw(st.booleans()):
                tokens[several.join()] = []
            elif tokens and data.draw(st.integers(0, 3)) == 0:
                gone = data.draw(st.sampled_from(sorted(tokens)))
                several.leave(gone)
                del tokens[gone]
            if not tokens:
                continue
            fed = data.draw(
                st.dictionaries(
                    st.sampled_from(sorted(tokens)),
                    st.lists(st.integers(0, 15), min_size=1, max_size=5),
                    min_size=1,
                )
            )
            found = several.step(fed)
            for sequence, more in fed.items():
                tokens[sequence] += more
                other.reset()
                same(found[sequence], other.feed(tokens[sequence])[0])


def test_the_plan_does_not_depend_on_who_takes_part():
    with opened() as session:
        several = session.sequences
        a, b = several.join(), several.join()
        several.step({a: [1], b: [2]})
        several.step({a: [3], b: [4]})
        known = session.scheduler.plan_cache.misses
        c = several.join()
        several.leave(a)
        several.step({b: [5], c: [6]})
        several.step({c: [7], b: [8]})
        assert session.scheduler.plan_cache.misses <= known + 1  # one more row of the cache


def test_what_is_refused():
    with opened() as session:
        several = session.sequences
        with pytest.raises(UsageError, match="sequence 0 has not joined: active: none"):
            several.step({0: [1]})
        ids = [several.join() for _ in range(3)]
        for call in (several.join, lambda: several.copy(ids[0])):
            with pytest.raises(UsageError, match="all 3 sequences are in use"):
                call()
        with pytest.raises(UsageError, match="no sequences to feed"):
            several.step({})
        with pytest.raises(UsageError, match="no tokens to feed"):
            several.step({0: [1], 1: []})
        assert several.length(0) == 0, "all or none"
        with pytest.raises(UsageError, match="0 \\+ 33 tokens do not fit sequence 1"):
            several.step({0: [1], 1: [1] * 33})
        with pytest.raises(UsageError, match="not in the vocabulary"):
            several.step({0: [10**6]})
        several.step({0: [1, 2]})
        with pytest.raises(UsageError, match="cannot be cut to 3 tokens: it has 2"):
            several.truncate(0, 3)
        with pytest.raises(UsageError, match="in use by several sequences"):
            session.feed([1])
        for i in ids:
            several.leave(i)
        session.feed([1, 2])
        with pytest.raises(UsageError, match="a sequence of 2 tokens of its own"):
            several.join()
    with pytest.raises(UsageError, match="9 sequences in a cache of 8 rows"):
        opened(n_ctx=8, n_parallel=9)


@pytest.mark.parametrize("n_ubatch", [2, 64])
def test_logits_of_a_step_can_be_views(n_ubatch):
    with opened(n_ubatch=n_ubatch) as session:
        several = session.sequences
        a, b = several.join(), several.join()
        views = several.step({a: PROMPTS[0], b: PROMPTS[1]}, copy=False)
        same(views[a], alone(MODELS[0], PROMPTS[0]))
        same(views[b], alone(MODELS[0], PROMPTS[1]))
        kept = several.step({a: [7], b: [8]})
        again = {i: row.copy() for i, row in kept.items()}
        several.step({a: [1], b: [2]}, copy=False)
        assert all(np.array_equal(kept[i], again[i]) for i in kept)


def test_numbers_that_are_not_finite_are_noticed_in_any_row():
    with opened() as session:
        note, runner = session.batches._note, session.batches
        for row in range(3):
            logits = np.zeros((3, 8), np.float32)
            logits[row] = np.nan  # as a NaN in front of the output matrix leaves them
            runner.has_nonfinite = False
            note(logits)
            assert runner.has_nonfinite
        runner.has_nonfinite = False
        note(np.zeros((3, 8), np.float32))
        assert not runner.has_nonfinite


@pytest.mark.parametrize("name", MODELS[:2])
def test_a_token_of_each_is_given_the_inputs_of_spans(name, monkeypatch):
    given = []
    with opened(name) as session:
        several, runner = session.sequences, session.batches
        active = [several.join() for _ in range(3)]
        several.step(dict(zip(active, PROMPTS, strict=True)))
        plain = runner._run
        monkeypatch.setattr(
            runner,
            "_run",
            lambda graph, inputs, copy: given.append((graph, inputs)) or plain(graph, inputs, copy),
        )
        lengths = [several.length(i) for i in active]
        for token in (5, np.int64(5)):  # the second is not what generation feeds
            several.step({2: [token], 0: [token]})
            for i, length in zip(active, lengths, strict=True):
                several.truncate(i, length)
    (graph, ours), (other, wanted) = given
    assert graph is other
    assert list(ours) == list(wanted)
    for key, array in wanted.items():
        assert array.dtype == ours[key].dtype
        np.testing.assert_array_equal(ours[key], array)
