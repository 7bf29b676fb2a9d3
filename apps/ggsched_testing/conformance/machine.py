"""A state machine over the whole contract, fed by bytes.

A program is a list of steps, a step is a few bytes: which action, and its choices, each taken
modulo what there is. Zeros mean nothing, the first stream, the shortest range. So Hypothesis, which
draws the bytes, makes a program smaller by deleting steps and by writing zeros, and whatever comes
out is a program again. (Its own rule-based machines draw few and short programs.)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from ggsched.backend.capture import offers_capture
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.exact import exact_op
from ggsched_testing.conformance.model import Access, Memory
from ggsched_testing.conformance.programs import COUNT, CaseProgram, ProgramShape, Queue

STEP_NBYTES: Final = 9
MORE_NBYTES: Final = 3
"""Of a step that may be any of ``MORE_ACTIONS``."""

MAX_HELD: Final = 60
"""Steps after which streams that are held are released."""


class Choices:
    """The choices of a step, one byte each; the first one of each is 0."""

    def __init__(self, step: bytes) -> None:
        self._bytes = iter(step)

    def number(self, count: int) -> int:
        """Choose a number below ``count``."""
        return next(self._bytes, 0) % count

    def flag(self) -> bool:
        """Choose yes or no."""
        return self.number(2) == 1

    def pick(self, items: Sequence[Any]) -> Any:
        """Choose one of several things."""
        return items[self.number(len(items))]


class Machine:
    """Turns steps into calls of a ``CaseProgram``."""

    def __init__(
        self, world: TestContext, shape: ProgramShape, actions: "Sequence[Action]"
    ) -> None:
        self.world = world
        self.actions = actions
        self.program = CaseProgram(world, shape)

    def play(self, steps: Sequence[bytes]) -> None:
        """Do all steps, then compare every byte."""
        is_patient = self.program.shape.is_patient
        for number, step in enumerate(steps, 1):
            choices = Choices(step)
            action = self.actions[choices.number(len(self.actions))]
            if not (is_patient and action in OF_THE_HOST):
                action(self, choices)
            if number % MAX_HELD == 0:
                self.program.release()  # a queue may be full (STR-2)
        self.program.finish()

    # --- commands ---------------------------------------------------------------------------

    def nothing(self, c: Choices) -> None:
        """Do nothing; this is what steps become that do not matter."""

    def upload(self, c: Choices) -> None:
        """Upload fresh host memory, or some that was used before."""
        q, how = self._queue(c), self._how(c)
        dst = self._part(self._own_buffer(q, c), c, writes=True)
        self.program.upload(q, self._host_memory(c, dst), dst, how)

    def download(self, c: Choices) -> None:
        """Download to fresh host memory, or to some that was used before."""
        q, how = self._queue(c), self._how(c)
        src = self._part(self._own_buffer(q, c), c, writes=False)
        self.program.download(q, src, self._host_memory(c, src), how)

    def copy(self, c: Choices) -> None:
        """Copy between two buffers, of which one at least is the stream's device's."""
        q, how = self._queue(c), self._how(c)
        src = self._part(c.pick(self.program.buffers), c, writes=False)
        memory = c.pick(self.program.buffers)
        if not self._reaches(q, src.memory, memory):
            return
        start = min(c.number(COUNT), COUNT - (src.end - src.start))
        dst = Access(memory, start, start + src.end - src.start, True)
        apart = src.memory is not memory or src.end <= start or dst.end <= src.start
        if apart:
            self.program.copy(q, src, dst, how)

    def fill(self, c: Choices) -> None:
        """Fill with a pattern of 1, 2 or 4 bytes, which are those of some f32."""
        q, how = self._queue(c), self._how(c)
        dst = self._part(self._own_buffer(q, c), c, writes=True)
        length = c.pick((1, 2, 4))
        self.program.fill(q, dst, bytes(0x40 + c.number(11) for _ in range(length)), how)

    def replay(self, c: Choices) -> None:
        """Replay a graph several times, a new one of up to three copies or one from before."""
        q, how = self._queue(c), self._how(c)
        facts = q.stream.device.facts
        if facts.copy_order != "stream" or not offers_capture(q.stream.device):
            return
        times, is_new = 1 + c.number(3), c.flag()
        mine = [g for g in self.program.graphs if g.queue is q]
        if mine and not is_new:
            graph = c.pick(mine)
        else:
            own = [m for m in self.program.buffers if m.device == q.device]
            start, count, at = c.number(COUNT), 1 + c.number(COUNT), c.number(len(own))
            end = min(COUNT, start + count)
            parts = [Access(own[(at + i) % len(own)], start, end, False) for i in range(len(own))]
            moves = [(a, replace(b, writes=True)) for a, b in pairwise(parts)]
            if not moves:
                return
            graph = self.program.capture(q, moves)
        for _ in range(times):
            self.program.replay(graph, how)

    def launch(self, c: Choices) -> None:
        """Compute one range from two others, which do not overlap it."""
        q, how = self._queue(c), self._how(c)
        out = self._part(self._own_buffer(q, c), c, writes=True)
        length = out.end - out.start
        inputs = []
        for _ in range(2):
            memory = self._own_buffer(q, c)
            start = out.end if memory is out.memory else 0
            inputs.append(Access(memory, start, start + length, False))
        fits = all(access.end <= COUNT for access in inputs)
        if length and fits and exact_op(q.stream.device.facts) is not None:
            self.program.launch(q, inputs, out, how)

    def record(self, c: Choices) -> None:
        """Record an event."""
        q = self._queue(c)
        if q.stream.device.facts.has_events:
            self.program.record(q)

    def wait(self, c: Choices) -> None:
        """Wait for an event."""
        q = self._queue(c)
        if self.program.events:
            recorded = c.pick(self.program.events)
            if self.program.can_wait(q, recorded.device):
                self.program.wait(q, recorded)

    # --- the host ---------------------------------------------------------------------------

    def hold(self, c: Choices) -> None:
        """Hold a stream."""
        self.program.hold(c.pick(self.program.queues))

    def release(self, c: Choices) -> None:
        """Let all streams go on."""
        self.program.release()

    def sync(self, c: Choices) -> None:
        """Wait for a stream or for an event."""
        self.program.sync(c.pick([*self.program.queues, *self.program.events]))

    def probe(self, c: Choices) -> None:
        """Ask a stream or an event whether it is done."""
        self.program.probe(c.pick([*self.program.queues, *self.program.events]))

    def rewrite(self, c: Choices) -> None:
        """Let the host write host memory again, once it may."""
        if self.program.host:
            self.program.rewrite(c.pick(self.program.host))

    def look(self, c: Choices) -> None:
        """Compare what the host may see by now."""
        for memory in self.program.host:
            self.program.look(memory)

    def replace_buffer(self, c: Choices) -> None:
        """Close a buffer and allocate another one."""
        self.program.replace_buffer(c.number(len(self.program.buffers)))

    # --- helpers ----------------------------------------------------------------------------

    def _how(self, c: Choices) -> int:
        """Choose how to order; a patient host lets the devices do it."""
        return c.number(2 if self.program.shape.is_patient else 3)

    def _queue(self, c: Choices) -> Queue:
        """Choose a stream; often it is held, so that what has to wait for it is seen to wait."""
        q: Queue = c.pick(self.program.queues)
        if c.flag():
            self.program.hold(q)
        return q

    def _own_buffer(self, q: Queue, c: Choices) -> Memory:
        own: list[Memory] = [m for m in self.program.buffers if m.device == q.device]
        memory: Memory = c.pick(own)
        return memory

    def _part(self, memory: Memory, c: Choices, *, writes: bool) -> Access:
        start = c.number(COUNT)
        return Access(memory, start, min(COUNT, start + c.number(COUNT + 1)), writes)

    def _host_memory(self, c: Choices, other: Access) -> Memory:
        """Choose fresh memory for as much as another access has, or some from before."""
        count = other.end - other.start
        old = [m for m in self.program.host if m.count >= count]
        at = c.number(4)
        return old[-at] if 0 < at <= len(old) else self.program.host_memory(max(1, count))

    def _reaches(self, q: Queue, src: Memory, dst: Memory) -> bool:
        ends = {src.device, dst.device}
        others = ends - {q.device}
        if q.device not in ends:
            return False
        facts = [self.world.devices[number].facts for number in others]
        return all(q.stream.device.copies_with(f) for f in facts)


Action = Callable[[Machine, Choices], None]

UNITS: Final = (1, 3, 257, 1021, 1024, 4099, 16384, 16385)
"""f32 values of an element: buffers of 64 B to 1 MiB, and commands of any part of one."""

MAX_STREAMS: Final = 6


def drawn_shape(c: Choices) -> ProgramShape:
    """Choose sizes and streams; zeros are the smallest."""
    unit, skew, streams = c.pick(UNITS), 4 * c.number(64), 1 + c.number(MAX_STREAMS)
    return ProgramShape(unit, skew, streams, is_patient=c.flag())


ACTIONS: Final[tuple[Action, ...]] = (
    Machine.nothing,
    *(3 * (Machine.upload, Machine.download, Machine.copy, Machine.launch)),
    *(2 * (Machine.sync, Machine.probe, Machine.record, Machine.wait)),
    Machine.hold,
    Machine.release,
    Machine.rewrite,
    Machine.look,
    Machine.replace_buffer,
)
"""By the first byte of a step; some are more frequent than others."""

MORE_ACTIONS: Final = (*ACTIONS, Machine.fill, Machine.fill, Machine.replay)
"""For programs of drawn sizes; small ones stay small when there are fewer."""

OF_THE_HOST: Final = (Machine.sync, Machine.probe, Machine.rewrite, Machine.replace_buffer)
"""Actions for which the host may wait."""
