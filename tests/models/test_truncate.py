"""Going back in a sequence."""

import numpy as np
import pytest

from ggsched.errors import UsageError
from ggsched_llm.load import load_model
from ggsched_llm.session import Session
from ggsched_llm.session_options import SessionOptions
from tests.models.helpers import ORACLE

KINDS = ["llama-tiny-f32.gguf", "gptoss-tiny-f32.gguf"]  # the second with windows
DRAFT = [7, 8, 9, 10]


@pytest.fixture(params=KINDS)
def session(request):
    model = load_model(ORACLE / request.param)
    with Session(model, ["cpu:0"], SessionOptions(n_ctx=64)) as made:
        yield made


def test_what_follows_is_as_if_the_rest_had_never_been(session):
    """Also where the new tokens are fewer than those that are forgotten."""
    head = [3, 1, 4, 1, 5, 9]
    session.feed([*head, *DRAFT])
    session.truncate(len(head))
    assert session.n_past == len(head)
    found = np.concatenate([session.feed([2]), session.feed([6, 5])])
    session.reset()
    session.feed(head)
    wanted = np.concatenate([session.feed([2]), session.feed([6, 5])])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_to_nothing_and_to_everything(session):
    first = session.feed([3, 1, 4])
    session.truncate(3)
    assert session.n_past == 3
    session.truncate(0)
    assert session.n_past == 0
    np.testing.assert_allclose(session.feed([3, 1, 4]), first, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_tokens", [-1, 4])
def test_what_is_not_there_cannot_be_kept(session, n_tokens):
    session.feed([3, 1, 4])
    with pytest.raises(UsageError, match=rf"cannot be cut to {n_tokens} tokens: it has 3"):
        session.truncate(n_tokens)
    assert session.n_past == 3


def test_a_generation_that_is_under_way_ends(session):
    tokens = session.generate([3, 1, 4], 8)
    next(tokens)
    next(tokens)
    session.truncate(2)
    with pytest.raises(UsageError, match="changed"):
        next(tokens)


def test_numbers_that_are_not_finite_stay_in_the_cache(session):
    session.feed([3, 1, 4])
    session.batches.has_nonfinite = True
    with pytest.raises(UsageError, match="may hold such numbers"):
        session.truncate(2)
    session.truncate(0)
    assert not session.batches.has_nonfinite
