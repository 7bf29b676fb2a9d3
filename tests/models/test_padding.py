"""Prompts are rounded up, so that those of any length find plans of others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched_llm.batches import padding
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import tiny_gguf

STEP, N_CTX = 512, 8192


@given(st.integers(1, 20_000), st.sampled_from([1, 7, 100, STEP]), st.integers(0, 2000))
def test_rounding(n, step, room):
    more = padding(n, step=step, room=room)
    assert 0 <= more <= room
    assert more * 16 <= n
    assert -(-(n + more) // step) == -(-n // step), "no more micro-batches"
    assert n >= 32 or not more


def test_long_prompts_end_in_few_ways():
    """From 4,096 tokens on the last micro-batch has 256 tokens or 512."""
    tails = {(n + padding(n, step=STEP, room=N_CTX)) % STEP for n in range(4096, 8192)}
    assert tails == {0, 256}
    short = {n + padding(n, step=STEP, room=N_CTX) for n in range(256, 513)}
    assert len(short) == 17


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(tiny_gguf(tmp_path_factory.mktemp("padding") / "model.gguf"))


def options(**more):
    return SessionOptions(**{"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, **more})


def test_prompts_of_other_lengths_reuse_plans(model):
    """129 to 136 tokens are 136, three micro-batches of which the last one has 8."""
    with Session(model, ["cpu"], options()) as session:
        missed = []
        for n in (136, 129, 133, 136):
            session.reset()
            session.feed([k % 7 for k in range(n)])
            missed.append(session.scheduler.plan_cache.misses)
    assert len(set(missed)) == 1


@pytest.mark.parametrize("n", [33, 67, 130, 255, 256])
def test_tokens_are_the_same(model, n):
    """What the added tokens left in the cache is written again before anybody looks at it."""
    tokens = [(3 * k + k // 5) % 8 for k in range(n)]
    with Session(model, ["cpu"], options()) as session:
        padded = session.feed(tokens)[-1]
        session.reset()
        each = session.feed(tokens, all_logits=True)[-1]  # nothing is added
        session.reset()
        for at in range(0, n, 17):
            by_pieces = session.feed(tokens[at : at + 17])[-1]
    np.testing.assert_allclose(padded, each, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(padded, by_pieces, rtol=1e-4, atol=1e-4)


def test_predicted_memory_counts_them(model):
    with Session(model, ["cpu"], options()) as session:
        wanted = session.memory_need(129, 1)
        assert wanted == session.memory_need(136, 1)
