"""Every order that matters: stateless search with dynamic partial-order reduction.

Two steps *depend* on each other if one actor does both, or if they touch common bytes and one
writes. Orders that differ in independent steps only give the same result, so one of each such
class is enough. After each execution the pairs of dependent steps that could have happened the
other way round are looked up, and where they have not been tried the other way, that is noted for
a later execution (C. Flanagan and P. Godefroid, POPL 2005). What is noted follows P. Abdulla,
S. Aronis, B. Jonsson and K. Sagonas (POPL 2014, *source sets*), and *sleep sets* keep an actor
from being tried again before something that depends on its step has happened.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ggsched.errors import UsageError
from ggsched_testing.explore.trace import ExplorationRecorder, Moment, Touch
from ggsched_testing.schedule_policy import Option

Sleepers = dict[str, list[Touch]]
"""Actors that need not act now, each with what its next step touches."""


@dataclass(slots=True)
class Frame:
    """A moment of the present execution and what remains to be tried there.

    Attributes:
        moment: What happened.
        sleep: Who need not be tried.
        done: Actors that have been tried, and what they touched.
        todo: Actors to be tried.
        before: Moments that happened before, itself included, as bits.
    """

    moment: Moment
    sleep: Sleepers
    done: Sleepers = field(default_factory=dict)
    todo: set[str] = field(default_factory=set)
    before: int = 0


class Search:
    """The search. Ask for a policy, execute, call ``learn``; again until there is none.

    Attributes:
        is_over: Whether everything has been tried.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._frames: list[Frame] = []
        self._by_actor: dict[str, list[int]] = {}
        self._history: dict[Hashable, list[tuple[int, Touch]]] = {}
        self._next: str | None = None

    def policy(self) -> "Follower":
        """Return a policy for the next execution."""
        return Follower([f.moment for f in self._frames], self._next, self._last_sleep())

    def learn(self, follower: "Follower") -> None:
        """Look at an execution, and decide where to go on."""
        moments = follower.moments[: follower.end]
        if len(moments) < len(self._frames):
            raise changed(len(moments) + 1, "it ended")
        first = max(len(self._frames) - 1, 0)
        if self._frames:
            self._frames[-1].moment = moments[first]
        elif not moments:
            self.is_over = True
            return
        for moment, sleep in zip(moments[len(self._frames) :], follower.sleeps, strict=False):
            self._frames.append(Frame(moment, sleep, todo={moment.actor}))
        if not self._history:
            self._remember(0, follower.start)
        for i in range(first, len(self._frames)):
            self._order(i + 1)
        self._go_back()

    # --- what depends on what ------------------------------------------------------------------

    def _order(self, number: int) -> None:
        """Note what happened before a moment, and what could have been the other way round."""
        frame = self._frames[number - 1]
        before = 1
        for cause in frame.moment.causes:
            before |= self._before(cause)
        mine = self._by_actor.setdefault(frame.moment.actor, [])
        before |= self._before(mine[-1] if mine else 0)
        for i in self._conflicts(number, frame.moment):
            if before >> i & 1:
                continue
            self._reverse(i, number, before)
            before |= self._before(i)
        frame.before = before | 1 << number
        mine.append(number)
        self._remember(number, frame.moment.touches)

    def _before(self, number: int) -> int:
        return self._frames[number - 1].before if number else 1

    def _conflicts(self, number: int, moment: Moment) -> list[int]:
        """Return earlier moments that depend on this one by what they touch, latest first."""
        found = {
            i
            for touch in moment.touches
            for i, other in self._history.get(touch.space, ())
            if depend(touch, other)
        }
        return sorted(found, reverse=True)

    def _remember(self, number: int, touches: Sequence[Touch]) -> None:
        for touch in touches:
            self._history.setdefault(touch.space, []).append((number, touch))

    def _reverse(self, i: int, number: int, before: int) -> None:
        """See to it that moment ``number`` is tried before moment ``i``, or what leads to it.

        Args:
            i: The earlier of two moments that depend on each other and nothing else orders.
            number: The later one.
            before: What happened before the later one, if not because of the earlier one.
        """
        frame = self._frames[i - 1]
        first: dict[str, int] = {}
        others = 0
        for k in range(i + 1, number):
            other = self._frames[k - 1]
            if not other.before >> i & 1:
                others |= 1 << k
                first.setdefault(other.moment.actor, k)
        first.setdefault(self._frames[number - 1].moment.actor, number)
        able = []
        for actor, k in first.items():
            known = before if k == number else self._frames[k - 1].before & ~(1 << k)
            if not known & others:
                able.append(actor)
        if not frame.todo.isdisjoint(able):
            return
        able = [actor for actor in able if actor in frame.moment.actors]
        later = self._frames[number - 1].moment.actor
        if able:
            frame.todo.add(later if later in able else able[0])
        else:
            frame.todo.update(frame.moment.actors)

    # --- where to go on ------------------------------------------------------------------------

    def _go_back(self) -> None:
        """Return to the latest moment at which somebody else is to be tried."""
        while self._frames:
            frame = self._frames[-1]
            frame.done[frame.moment.actor] = frame.moment.touches
            for actor in frame.moment.actors:
                if actor in frame.todo and actor not in frame.done and actor not in frame.sleep:
                    self._next = actor
                    self._forget(len(self._frames) - 1)
                    return
            self._frames.pop()
        self.is_over = True

    def _forget(self, last: int) -> None:
        """Forget what was touched after a moment."""
        for entries in self._history.values():
            while entries and entries[-1][0] > last:
                entries.pop()
        for numbers in self._by_actor.values():
            while numbers and numbers[-1] > last:
                numbers.pop()

    def _last_sleep(self) -> Sleepers:
        if not self._frames:
            return {}
        return {**self._frames[-1].sleep, **self._frames[-1].done}


class Follower(ExplorationRecorder):
    """Repeats the beginning of an execution, takes one other step, and goes on as usual.

    Attributes:
        sleeps: Who sleeps at each moment after the beginning.
        end: Number of moments that are worth looking at: beyond it the order is one that has
            been tried.
    """

    def __init__(self, prefix: Sequence[Moment], other: str | None, sleep: Sleepers) -> None:
        super().__init__(tracks=True)
        self._prefix = prefix
        self._other = other
        self._sleep = sleep
        self.sleeps: list[Sleepers] = []
        self._end: int | None = None

    @property
    def end(self) -> int:
        """See the class."""
        return len(self.moments) if self._end is None else self._end

    def pick(self, options: Sequence[Option], usual: int) -> int:
        """Return the next actor."""
        number, count = len(self.moments), len(self._prefix)
        if number < count:
            return self._repeat(self._prefix[number], options, is_last=number == count - 1)
        if self._end is not None:
            return usual
        if number:
            last = self.moments[-1]
            self._sleep = {
                actor: touches
                for actor, touches in self._sleep.items()
                if actor != last.actor and not any_depend(touches, last.touches)
            }
        self.sleeps.append(self._sleep)
        awake = [i for i, option in enumerate(options) if option.actor not in self._sleep]
        if not awake:
            self._end = number
            return usual
        return usual if usual in awake else awake[0]

    def _repeat(self, moment: Moment, options: Sequence[Option], *, is_last: bool) -> int:
        if moment.actors != tuple(option.actor for option in options):
            before, now = ", ".join(moment.actors), ", ".join(o.actor for o in options)
            raise changed(len(self.moments) + 1, f"able to act were {before} and now {now}")
        return moment.actors.index(self._other) if is_last and self._other else moment.at


def changed(number: int, why: str) -> UsageError:
    """Return the error for a program that is not deterministic."""
    return UsageError(
        "the program is not the same from one execution to the next",
        where=f"moment {number}",
        why=why,
        hint="let nothing in it depend on time, addresses or chance",
    )


def depend(a: Touch, b: Touch) -> bool:
    """Whether the order of two touches of one space matters."""
    return (a.writes or b.writes) and a.start < b.end and b.start < a.end


def any_depend(some: Sequence[Touch], others: Sequence[Touch]) -> bool:
    """Whether the order of two steps of different actors matters."""
    return any(a.space == b.space and depend(a, b) for a in some for b in others)
