"""Filters keep the tokens that they should, and recent tokens are penalised."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ggsched.errors import ModelError, UsageError
from ggsched_llm.sampling import Sampler, Sampling

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30).map(
    lambda values: np.array(values, np.float32)
)


def drawn(logits, count=60, **how):
    sampler = Sampler(Sampling(temperature=2.0, **how))
    return {sampler.choose(logits) for _ in range(count)}


@given(logits=LOGITS, k=st.integers(1, 30))
def test_top_k(logits, k):
    least = np.sort(logits)[::-1][min(k, len(logits)) - 1]
    assert all(logits[token] >= least for token in drawn(logits, top_k=k))


@given(logits=LOGITS, p=st.floats(0.05, 1.0))
@example(logits=np.array([0, 0, 0, 0, 2, 2, 2.0707227599281453e-11], np.float32), p=0.75)
def test_top_p_takes_the_smallest_set_with_that_probability(logits, p):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares = weights / weights.sum()
    for token in drawn(logits, top_p=p):
        likelier = shares[shares > shares[token] * (1 + 1e-6)].sum()  # of f32 logits, not by a hair
        assert likelier < p + 1e-9


@given(logits=LOGITS, p=st.floats(0.0, 1.0))
def test_min_p(logits, p):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    assert all(weights[token] >= p * (1 - 1e-6) for token in drawn(logits, min_p=p))


@given(logits=LOGITS, seed=st.integers(0, 100))
def test_filters_that_keep_all_change_only_the_order_of_drawing(logits, seed):
    plain = Sampler(Sampling(1.0, seed)).choose(logits)
    assert 0 <= plain < len(logits)
    best = int(logits.argmax())
    assert logits[Sampler(Sampling(1.0, seed, top_k=1)).choose(logits)] == logits[best]
    assert logits[Sampler(Sampling(1.0, seed, top_p=1e-9)).choose(logits)] == logits[best]


@given(logits=LOGITS, data=st.data(), temperature=st.sampled_from([0.0, 2.0]))
def test_banned_tokens_are_never_chosen(logits, data, temperature):
    kept = data.draw(st.sets(st.integers(0, len(logits) - 1), min_size=1))
    banned = frozenset(range(len(logits) + 3)) - kept
    sampling = Sampling(temperature, repeat_penalty=1.1, banned=banned)
    assert sampling.is_greedy is False
    before, sampler = logits.copy(), Sampler(sampling, [0])
    assert {sampler.choose(logits, int(logits.argmax())) for _ in range(20)} <= kept
    assert (logits == before).all()


def test_recent_tokens_are_penalised_and_older_ones_are_not():
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    assert Sampler(Sampling(repeat_penalty=1.5), [0]).choose(logits) == 1
    assert Sampler(Sampling(repeat_penalty=1.5, repeat_last_n=2), [0, 2, 2]).choose(logits) == 0
    assert Sampler(Sampling(repeat_penalty=1.5, repeat_last_n=0), [0]).choose(logits) == 0
    negative = np.array([-1.0, -1.1], np.float32)
    sampler = Sampler(Sampling(repeat_penalty=2.0))
    assert [sampler.choose(negative, 0) for _ in range(3)] == [0, 1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1e308, 1e-308, 5e-324])
def test_penalties_have_no_bounds(penalty, temperature):
    logits = np.array([2.0, 0.0, -2.0, 1.0], np.float32)
    sampling = Sampling(temperature, top_p=0.5, repeat_penalty=penalty, repeat_last_n=10**30)
    token = Sampler(sampling, [0, 1, 2]).choose(logits)
    assert token == (3 if penalty > 1 else 0)


def test_a_penalty_does_not_hide_logits_that_are_not_finite():
    for odd in (np.inf, np.nan):
        with pytest.raises(ModelError, match="as its largest logit"):
            Sampler(Sampling(repeat_penalty=1.5), [0]).choose(np.array([odd, 1.0], np.float32))


@pytest.mark.parametrize(
    "how",
    [{"top_p": 0.0}, {"top_p": 1.5}, {"min_p": 2.0}, {"repeat_penalty": 0.0}, {"top_k": -1}],
)
def test_values_out_of_range(how):
    with pytest.raises(UsageError, match=next(iter(how))):
        Sampler(Sampling(**how))


def test_logits_as_far_apart_as_floats_can_be():
    logits = np.array([-3e38, 3e38], np.float32)
    assert drawn(logits, top_k=2) == {1}


def test_a_copy_draws_the_same_and_changes_nothing():
    sampling = Sampling(1.5, 3, repeat_penalty=1.2)
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    found = []
    for copies in (False, True):
        sampler = Sampler(sampling, [1])
        drawn = [sampler.copy().choose(logits) for _ in range(2)] if copies else []
        found.append([sampler.choose(logits) for _ in range(8)])
    assert found[0] == found[1]
    assert drawn == found[0][:1] * 2
