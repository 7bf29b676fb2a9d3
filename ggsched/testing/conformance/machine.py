"""A state machine over the whole contract, fed by bytes.

A program is a list of steps, a step is a few bytes: which action, and its choices, each taken
modulo what there is. Zeros mean nothing, the first stream, the shortest range. So Hypothesis, which
draws the bytes, makes a program smaller by deleting steps and by writing zeros, and whatever comes
out is a program again. (Its own rule-based machines draw few and short programs.)
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from ggsched.testing.conformance.context import TestContext
from ggsched.testing.conformance.exact import exact_op
from ggsched.testing.conformance.model import Access, Memory
from ggsched.testing.conformance.programs import COUNT, CaseProgram, Queue

STEP_NBYTES: Final = 9


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

    def __init__(self, world: TestContext) -> None:
        self.world = world
        self.program = CaseProgram(world)

    def play(self, steps: Sequence[bytes]) -> None:
        """Do all steps, then compare every byte."""
        for step in steps:
            choices = Choices(step)
            ACTIONS[choices.number(len(ACTIONS))](self, choices)
        self.program.finish()

    # --- commands ---------------------------------------------------------------------------

    def nothing(self, c: Choices) -> None:
        """Do nothing; this is what steps become that do not matter."""

    def upload(self, c: Choices) -> None:
        """Upload fresh host memory, or some that was used before."""
        q, how = self._queue(c), c.number(3)
        dst = self._part(self._own_buffer(q, c), c, writes=True)
        self.program.upload(q, self._host_memory(c, dst), dst, how)

    def download(self, c: Choices) -> None:
        """Download to fresh host memory, or to some that was used before."""
        q, how = self._queue(c), c.number(3)
        src = self._part(self._own_buffer(q, c), c, writes=False)
        self.program.download(q, src, self._host_memory(c, src), how)

    def copy(self, c: Choices) -> None:
        """Copy between two buffers, of which one at least is the stream's device's."""
        q, how = self._queue(c), c.number(3)
        src = self._part(c.pick(self.program.buffers), c, writes=False)
        memory = c.pick(self.program.buffers)
        if not self._reaches(q, src.memory, memory):
            return
        start = min(c.number(COUNT), COUNT - (src.end - src.start))
        dst = Access(memory, start, start + src.end - src.start, True)
        apart = src.memory is not memory or src.end <= start or dst.end <= src.start
        if apart:
            self.program.copy(q, src, dst, how)

    def launch(self, c: Choices) -> None:
        """Compute one range from two others, which do not overlap it."""
        q, how = self._queue(c), c.number(3)
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
