"""The explorer sees what every order can give, and can repeat each."""

import random
from dataclasses import replace

import pytest

from ggsched.errors import UsageError
from ggsched_testing.explore import Observation, explore, replay
from ggsched_testing.schedule_policy import EagerPolicy, LaziestPolicy, Option, RandomPolicy
from tests.testing.toy import Toy, every_order, runner

LOST_UPDATE = {"a": [("r", 0), ("w", 0, 1)], "b": [("r", 0), ("w", 0, 2)]}


def random_program(seed):
    """Return actors that write, read, add, and wait for each other, deadlocks included."""
    pick = random.Random(seed)
    actors = "abc"[: pick.choice((2, 2, 3))]
    length = {a: pick.randint(1, 4 if len(actors) == 2 else 3) for a in actors}

    def op(actor):
        other = pick.choice([a for a in actors if a != actor])
        cell = pick.randrange(2)
        return pick.choice(
            (
                ("w", cell, pick.randint(1, 3)),
                ("r", cell),
                ("+", cell, pick.randint(1, 3)),
                ("+", cell, pick.randint(1, 3)),
                ("wait", other, pick.randint(0, length[other])),
            )
        )

    return {a: [op(a) for _ in range(length[a])] for a in actors}


def observations(found):
    return {outcome.observation for outcome in found.outcomes}


@pytest.mark.parametrize("seed", range(150))
def test_reduction_loses_no_observation(seed):
    run = runner(random_program(seed))
    expected, count = every_order(run)
    found = explore(run, limit=10**6, samples=0, shrinks=False)
    assert found.is_complete
    assert observations(found) == expected
    assert found.schedules <= count


def test_reduction_reduces():
    """Independent actors need one execution, however many orders there are."""
    run = runner({a: [("+", i, 1)] * 4 for i, a in enumerate("abc")})
    found = explore(run, samples=0)
    assert (found.schedules, found.is_complete) == (1, True)
    both = {a: [("r", 0)] * 4 for a in "abc"}
    assert explore(runner(both), samples=0).schedules == 1
    ordered = {"a": [("w", 0, 1)], "b": [("wait", "a", 1), ("w", 0, 2)]}
    assert explore(runner(ordered), samples=0).schedules == 1


@pytest.mark.parametrize("seed", range(20))
def test_with_enough_preemptions_every_order_is_tried(seed):
    run = runner(random_program(seed))
    expected, count = every_order(run)
    found = explore(run, mode="bounded", bound=99, limit=10**6, shrinks=False)
    assert observations(found) == expected
    assert found.schedules == count


def test_a_lost_update_takes_one_preemption():
    run = runner(LOST_UPDATE)
    none = explore(run, mode="bounded", bound=0)
    assert len(none.outcomes) == 2  # a before b, b before a
    one = explore(run, mode="bounded", bound=1)
    assert len(one.outcomes) == len(explore(run).outcomes) == 4
    assert not one.is_complete


def test_random_priorities_find_it_too():
    found = explore(runner(LOST_UPDATE), mode="pct", limit=60, seed=1)
    assert len(found.outcomes) == 4
    assert (found.schedules, found.is_complete) == (60, False)
    assert found == explore(runner(LOST_UPDATE), mode="pct", limit=60, seed=1)


def test_limits():
    run = runner(LOST_UPDATE)
    assert len(explore(run, stop_at=2).outcomes) == 2
    cut = explore(run, limit=1)
    assert (cut.schedules, cut.is_complete, cut.is_deterministic) == (1, False, True)
    with pytest.raises(UsageError):
        explore(run, limit=0)
    with pytest.raises(UsageError):
        explore(run, mode="best")


class TestTokens:
    def outcomes(self):
        return explore(runner(random_program(3)), limit=10**6).outcomes

    def test_repeat_the_execution(self):
        run = runner(random_program(3))
        for outcome in self.outcomes():
            assert replay(outcome.token, run) == outcome.observation
            assert replay(f" {outcome.token}\n", run) == outcome.observation
            assert outcome.token.isprintable()
            assert len(outcome.token) < 40

    def test_of_another_program(self):
        refused = 0
        for outcome in self.outcomes():
            for other in (random_program(4), {"a": [("r", 0)]}, {"x": [("r", 0)], "y": []}):
                with pytest.raises(UsageError, match="another program"):
                    replay(outcome.token, runner(other))
                refused += 1
        assert refused

    @pytest.mark.parametrize("token", ["", "x1", "x1-", "x0-AAAA", "hello", "x1-!!!!", "x1-AA"])
    def test_that_are_none(self, token):
        with pytest.raises(UsageError):
            replay(token, runner(LOST_UPDATE))

    def test_that_are_damaged(self):
        run = runner(LOST_UPDATE)
        for outcome in explore(run).outcomes:
            for at in range(3, len(outcome.token)):
                other = "A" if outcome.token[at] != "A" else "B"
                with pytest.raises(UsageError):
                    replay(outcome.token[:at] + other + outcome.token[at + 1 :], run)


def test_witnesses_are_simple():
    """Ten actors that do nothing of interest do not appear as deviations."""
    noise = {f"n{i}": [("+", 3 + i, 1)] * 3 for i in range(10)}
    run = runner({**noise, **LOST_UPDATE}, cells=20)
    found = explore(run, mode="pct", limit=200, seed=2)
    assert len(found.outcomes) == 4
    for outcome in found.outcomes[1:]:
        assert outcome.deviations <= 3
        assert replay(outcome.token, run) == outcome.observation
    text = found.to_text()
    assert "200 executions, not all orders, 4 observations" in text
    assert "a: ('r', 0)" in text


def test_programs_that_change_are_noticed():
    times = []

    def run(policy):
        times.append(1)
        ops = LOST_UPDATE if len(times) < 3 else {"a": [("r", 1)], "c": [("w", 1, 1)]}
        return Toy(ops).run(policy)

    with pytest.raises(UsageError, match="not the same from one execution to the next"):
        explore(run, samples=0)


def test_steps_that_touch_more_than_they_declare_are_noticed():
    class Silent(Toy):
        def _do(self, actor, policy):
            super()._do(actor, EagerPolicy())

    with pytest.raises(UsageError, match="touches more than it declares"):
        explore(lambda policy: Silent(LOST_UPDATE).run(policy), samples=10)


def test_observations():
    one = Observation.of({"x": b"abc", "y": "text"})
    assert one == Observation.of({"x": bytearray(b"abc"), "y": "text"})
    other = Observation.of({"x": b"abd", "y": "text", "z": ""})
    assert one.differences(other) == ("x", "z")
    assert one.digest != other.digest
    assert replace(one, parts=one.parts).digest == one.digest


def test_choosers():
    a, b, host = Option("q0", "c0"), Option("q1", "c1", needed=False), Option("host", "")
    assert EagerPolicy().choose([a, b, host]) == 0
    lazy = LaziestPolicy()
    assert lazy.choose([a, b, host]) == 2
    assert lazy.choose([a, b]) == 0  # the one that the host waits for
    assert lazy.choose([b]) == 0
    every = set()
    for seed in range(20):
        picks = [RandomPolicy(seed) for _ in range(2)]
        taken = [[p.choose([a, b, host]) for _ in range(200)] for p in picks]
        assert taken[0] == taken[1]
        every.update(taken[0])
    assert every == {0, 1, 2}
