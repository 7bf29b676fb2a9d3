"""A session serves one call at a time, and each generator one sequence."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched_llm.load import load_model
from ggsched_llm.sequences import Sequences
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import ORACLE
from tests.run.devices import Latch
from tests.run.test_threads import refused, thread_in

PROMPT = (3, 1, 4, 1, 5, 9, 2)
OTHER = (2, 7, 1, 8)


@pytest.fixture(scope="module")
def model():
    return load_model(ORACLE / "llama-tiny-f32.gguf")


@pytest.fixture
def session(model):
    with opened(model) as made:
        yield made


@pytest.fixture(scope="module")
def expected(model):
    """What greedy generation gives, and the logits after the prompt."""
    with opened(model) as session:
        logits = session.feed(PROMPT)
        session.reset()
        return list(session.generate(PROMPT, 6)), logits


def opened(model, **options):
    sizes = SessionOptions(n_ctx=64, n_batch=8, n_parallel=2)
    return Session(model, ["cpu:0"], sizes, settings=Settings(), **options)


CALLS = {
    "Session.graph": lambda s: s.graph(1, 8, 1),
    "Session.step_graph": lambda s: s.step_graph(8),
    "Scheduler.plan": lambda s: s.plan_of(s.graph(1, 8, 1)),
    "Session.memory_need": lambda s: s.memory_need(4, 2),
    "Session.feed": lambda s: s.feed(OTHER),
    "Session.generate": lambda s: list(s.generate(OTHER, 2)),
    "Session.reset": lambda s: s.reset(),
    "Session.truncate": lambda s: s.truncate(0),
    "Session.use_draft": lambda s: s.use_draft(s.model),
    "Sequences.join": lambda s: s.sequences.join(),
    "Sequences.leave": lambda s: s.sequences.leave(0),
    "Sequences.truncate": lambda s: s.sequences.truncate(0, 0),
    "Sequences.copy": lambda s: s.sequences.copy(0),
    "Sequences.step": lambda s: s.sequences.step({0: [1]}),
    "Scheduler.close": lambda s: s.close(),
    "Scheduler.clear_states": lambda s: s.scheduler.clear_states(),
}


def test_every_public_method_is_tried():
    both = (*vars(Session).items(), *vars(Sequences).items())
    public = {name for name, m in both if callable(m) and not name.startswith("_")}
    tried = {name.split(".")[1] for name in CALLS}
    assert public <= tried | {"plan_of", "check_tokens", "length"}  # the last two read only


@pytest.mark.parametrize("work", ["feed", "generate"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_while_another_thread_is_in_one(model, expected, name, work):
    """The other thread is held while it loads a weight, in the middle of a micro-batch."""
    latch = Latch()

    def progress(*_):
        latch.reached.set()
        assert latch.free.wait(60)

    tokens, logits = expected
    graph = None
    with opened(model, progress=progress) as session:
        if name == "Scheduler.plan":
            graph = session.graph(1, 8, 1)

        def held():
            return session.feed(PROMPT) if work == "feed" else list(session.generate(PROMPT, 6))

        with thread_in(held, latch) as results:
            call = CALLS[name] if graph is None else lambda s: s.plan_of(graph)
            message = refused(lambda: call(session))
        assert f"{name}: called on thread 'MainThread' (" in message
        assert "while thread 'worker-a' (" in message
        if work == "feed":
            np.testing.assert_array_equal(results[0], logits)
        else:
            assert results[0] == tokens
        assert session.n_past == len(PROMPT) + (5 if work == "generate" else 0)
        if name.startswith("Sequences."):
            session.reset()
            if name != "Sequences.join":
                assert session.sequences.join() == 0
        CALLS[name](session)


def test_properties_may_be_read_at_any_time(model):
    latch = Latch()

    def progress(*_):
        latch.reached.set()
        assert latch.free.wait(60)

    with opened(model, progress=progress) as session:
        with thread_in(lambda: session.feed(PROMPT), latch):
            assert session.n_past == 0
            assert session.timing.prompt_tokens == 0
            assert session.last_plan is not None
        assert session.n_past == len(PROMPT)


def test_a_callback_does_not_feed(model, expected):
    seen = []

    def progress(*_):
        if not seen:
            seen.append(refused(lambda: session.feed(OTHER)))

    with opened(model, progress=progress) as session:
        np.testing.assert_array_equal(session.feed(PROMPT), expected[1])
    assert seen[0].startswith("Session.feed: called from inside Scheduler.run: a callback on")


def test_sessions_at_the_same_time(model, expected):
    barrier = threading.Barrier(2, timeout=60)

    def work():
        with opened(model) as session:
            barrier.wait()
            return list(session.generate(PROMPT, 6))

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(work) for _ in range(2)]
        assert [call.result(120) for call in calls] == [expected[0]] * 2


class TestGenerators:
    def test_threads_take_turns_with_one(self, session, expected):
        tokens = session.generate(PROMPT, 6)
        found = []
        for _ in range(6):
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(next, tokens).result(60))
        assert found == expected[0]
        assert list(tokens) == []

    @pytest.mark.parametrize("change", ["feed", "reset", "generate"])
    def test_the_sequence_is_changed_between_two_tokens(self, session, expected, change):
        tokens = session.generate(PROMPT, 6)
        assert [next(tokens), next(tokens)] == expected[0][:2]
        match change:
            case "feed":
                session.feed(OTHER)
            case "reset":
                session.reset()
            case "generate":
                next(session.generate(OTHER, 3))
        n_past = session.n_past
        message = refused(lambda: next(tokens))
        assert message.startswith("Session.generate: the sequence was changed after 2 generated")
        assert "end one generation before the next, or use a session for each" in message
        assert session.n_past == n_past

    def test_interleaved(self, session):
        """The one that began last goes on; the other gets an error."""
        first, second = session.generate(PROMPT, 4), session.generate(OTHER, 4)
        next(first)
        begun = [next(second)]
        refused(lambda: next(first))
        begun += second
        session.reset()
        session.feed(PROMPT)
        assert list(session.generate(OTHER, 4)) == begun

    def test_what_leaves_the_sequence_as_it_is(self, session, expected):
        found = []
        for token in session.generate(PROMPT, 6):
            found.append(token)
            session.plan(1, session.n_past)
            session.memory_need(4, 2)
            session.scheduler.prepare(session.graph(2, session.n_past, 1), session.constraints)
            with pytest.raises(UsageError, match="not in the vocabulary"):
                session.feed([-1])
        assert found == expected[0]

    def test_a_generator_that_is_left_does_not_hold_the_session(self, session, expected):
        tokens = session.generate(PROMPT, 6)
        next(tokens)
        session.reset()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(list, session.generate(PROMPT, 6)).result(60) == expected[0]
        tokens.close()

    def test_logits_are_shown_between_calls(self, session, expected):
        """The function that is shown them may use the session, on any thread."""
        seen = []

        def show(logits):
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(session.memory_need, 4, 2).result(60))

        assert list(session.generate(PROMPT, 6, on_logits=show)) == expected[0]
        assert len(seen) == 6

    def test_what_is_shown_feeds(self, session):
        def show(logits):
            session.feed(OTHER)

        tokens = session.generate(PROMPT, 6, on_logits=show)
        next(tokens)
        assert "the sequence was changed" in refused(lambda: next(tokens))
