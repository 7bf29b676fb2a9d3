"""When drafts are made: by measured seconds, so that a run loses a small share of its time."""

from hypothesis import given
from hypothesis import strategies as st

from ggsched_llm.draft_pacing import CREDIT, MEASURED, SHARE, Pacing

STEP = 0.01


def run(pacing, n_tokens, cost, accepted):
    """Return the seconds of tokens: a round costs ``cost`` steps."""
    seconds, rounds = 0.0, 0
    while pacing.tokens < n_tokens:
        if pacing.wants_draft():
            seconds += cost * STEP
            pacing.note_round(1 + accepted(rounds), cost * STEP)
            rounds += 1
        else:
            seconds += STEP
            pacing.note_plain(STEP)
    return seconds, rounds


def test_plain_steps_are_timed_first():
    pacing = Pacing()
    for i in range(MEASURED):
        assert not pacing.wants_draft()
        assert pacing.wants_draft(MEASURED - i)
        pacing.note_plain(STEP)
    assert pacing.wants_draft()


@given(
    st.floats(0.5, 6.0), st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 3000)
)
def test_what_is_lost_is_bounded(cost, accepted, n_tokens):
    """Whatever drafts cost and however many are accepted: all but one loss is paid for."""
    pacing = Pacing()
    seconds, _ = run(pacing, n_tokens, cost, lambda i: accepted[i % len(accepted)])
    assert seconds / STEP <= (1 + SHARE) * pacing.tokens + CREDIT + cost


def test_never_below_95_per_cent_from_128_tokens_on():
    """With a draft of an eighth of the model's bytes of which nothing is ever accepted."""
    for n_tokens in (128, 256, 1024, 4096):
        seconds, rounds = run(Pacing(), n_tokens, 1.6, lambda _: 0)
        assert rounds >= 4
        assert n_tokens * STEP / seconds >= 0.95
    assert n_tokens * STEP / seconds >= 0.99  # pauses get longer


def test_drafts_that_gain_go_on():
    seconds, rounds = run(Pacing(), 1000, 1.6, lambda i: (4, 2, 0)[i % 3])
    assert rounds * 3 > 970
    assert 1000 * STEP / seconds > 1.7


def test_drafts_come_back():
    """A text that the draft does not predict, then one that it does."""
    pacing = Pacing()
    run(pacing, 1000, 1.6, lambda _: 0)
    _, rounds = run(pacing, 3000, 1.6, lambda _: 4)
    assert rounds * 5 > 1000


def test_plain_steps_are_timed_again():
    """They get slower as the cache grows."""
    pacing, plain = Pacing(), []
    for _ in range(400):
        plain.append(not pacing.wants_draft())
        if plain[-1]:
            pacing.note_plain(STEP)
        else:
            pacing.note_round(5, 2 * STEP)
    assert sum(plain) == MEASURED * (1 + sum(not p for p in plain) // 52)


def test_a_pause_of_the_machine_ends_no_drafting():
    """A round, or the plain steps beside it, whose seconds say nothing."""
    for plain, paused in ((STEP, 1e6 * STEP), (0.0, STEP)):
        pacing = Pacing()
        for _ in range(MEASURED):
            pacing.note_plain(plain)
        pacing.note_round(5, paused)
        _, rounds = run(pacing, 1000, 1.6, lambda _: 4)
        assert rounds * 5 > 600


def test_rounds_that_say_nothing_and_drafts_that_are_not_verified():
    pacing = Pacing()
    for _ in range(MEASURED):
        pacing.note_plain(STEP)
    for _ in range(40):
        pacing.note_round(1, None)
    assert pacing.wants_draft()
    for _ in range(8):
        pacing.note_round(0, 0.3 * STEP)
    assert not pacing.wants_draft()
