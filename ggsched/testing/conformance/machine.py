"""A Hypothesis state machine over the whole contract.

Every rule below is one call of a ``Program``; numbers are taken modulo what there is, so that
examples stay legal while they are made smaller. Needs the extra ``test``.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from ggsched.errors import SyncTimeout
from ggsched.testing.conformance.exact import exact_op
from ggsched.testing.conformance.model import Access, Memory
from ggsched.testing.conformance.programs import COUNT, Program, Queue
from ggsched.testing.conformance.world import World

STEPS: Final = 25
IMPATIENT_S: Final = 0.5
_QUEUE: Final = st.integers(0, 2)
_BUFFER: Final = st.integers(0, 4)
_ITEM: Final = st.integers(0, 7)
_HOW: Final = st.integers(0, 2)
_START: Final = st.integers(0, COUNT - 1)
_LENGTH: Final = st.integers(0, COUNT)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a program raised, and the program."""

    error: BaseException
    program: tuple[str, ...]


class Machine(RuleBasedStateMachine):
    """Draws programs; ``search`` makes a subclass that knows the devices."""

    made_for: World
    device_count: int
    failures: list[Failure]

    def __init__(self) -> None:
        super().__init__()
        w = self.made_for
        devices = w.harness.open(self.device_count, w.seed)
        harness = w.harness
        if any(isinstance(f.error, SyncTimeout) for f in self.failures):
            # What hangs is made smaller without waiting long again and again.
            harness = replace(harness, timeout_s=min(IMPATIENT_S, harness.timeout_s))
        self.world = World(devices, harness, "program", w.seed, can_hold=w.can_hold)
        self.is_broken = False
        self.program: Program = self._try(lambda: Program(self.world))

    # --- commands ---------------------------------------------------------------------------

    @rule(q=_QUEUE, b=_BUFFER, h=_ITEM, start=_START, n=_LENGTH, how=_HOW)
    def upload(self, q: int, b: int, h: int, start: int, n: int, how: int) -> None:
        """Upload fresh host memory, or some that was used before."""
        queue = self._queue(q)
        dst = self._part(self._own_buffer(queue, b), start, n, True)
        old = [m for m in self.program.host if m.count >= dst.end - dst.start]
        if h and old:
            source = old[h % len(old)]
        else:
            source = self.program.host_memory(max(1, dst.end - dst.start))
        self._try(lambda: self.program.upload(queue, source, dst, how))

    @rule(q=_QUEUE, b=_BUFFER, h=_ITEM, start=_START, n=_LENGTH, how=_HOW)
    def download(self, q: int, b: int, h: int, start: int, n: int, how: int) -> None:
        """Download to fresh host memory, or to some that was used before."""
        queue = self._queue(q)
        src = self._part(self._own_buffer(queue, b), start, n, False)
        old = [m for m in self.program.host if m.count >= src.end - src.start]
        if h and old:
            target = old[h % len(old)]
        else:
            target = self.program.host_memory(max(1, src.end - src.start))
        self._try(lambda: self.program.download(queue, src, target, how))

    @rule(q=_QUEUE, a=_BUFFER, b=_BUFFER, i=_START, k=_START, n=_LENGTH, how=_HOW)
    def copy(self, q: int, a: int, b: int, i: int, k: int, n: int, how: int) -> None:
        """Copy between two buffers, of which one is the stream's device's."""
        queue, buffers = self._queue(q), self.program.buffers
        src, dst = buffers[a % len(buffers)], buffers[b % len(buffers)]
        devices = self.world.devices
        for memory in (src, dst):
            if memory.device != queue.device:
                other = src if memory is dst else dst
                able = devices[queue.device].copies_with(devices[memory.device].facts)
                if other.device != queue.device or not able:
                    return
        n = min(n, COUNT - i, COUNT - k)
        if src is dst and i < k + n and k < i + n:
            return
        reads, writes = Access(src, i, i + n, False), Access(dst, k, k + n, True)
        self._try(lambda: self.program.copy(queue, reads, writes, how))

    @rule(q=_QUEUE, a=_BUFFER, b=_BUFFER, c=_BUFFER, i=_START, n=_LENGTH, how=_HOW)
    def launch(self, q: int, a: int, b: int, c: int, i: int, n: int, how: int) -> None:
        """Compute one buffer from two; operands and result do not overlap."""
        queue = self._queue(q)
        if exact_op(queue.stream.device.facts) is None:
            return
        out = self._part(self._own_buffer(queue, c), i, n, True)
        length = out.end - out.start
        inputs = []
        for number in (a, b):
            memory = self._own_buffer(queue, number)
            start = 0 if memory is not out.memory else out.end
            if start + length > COUNT:
                return
            inputs.append(Access(memory, start, start + length, False))
        if length:
            self._try(lambda: self.program.launch(queue, inputs, out, how))

    @rule(q=_QUEUE)
    def record(self, q: int) -> None:
        """Record an event."""
        queue = self._queue(q)
        if queue.stream.device.facts.has_events:
            self._try(lambda: self.program.record(queue))

    @rule(q=_QUEUE, e=_ITEM)
    def wait(self, q: int, e: int) -> None:
        """Wait for an event, the latest for 0."""
        queue, events = self._queue(q), self.program.events
        if events:
            recorded = events[-1 - e % len(events)]
            if self.program.can_wait(queue, recorded.device):
                self._try(lambda: self.program.wait(queue, recorded))

    # --- the host ---------------------------------------------------------------------------

    @rule(q=_QUEUE)
    def hold(self, q: int) -> None:
        """Hold a stream."""
        queue = self._queue(q)
        self._try(lambda: self.program.hold(queue))

    @rule()
    def release(self) -> None:
        """Let all streams go on."""
        self._try(self.program.release)

    @rule(q=_QUEUE, probe=st.booleans())
    def sync(self, q: int, probe: bool) -> None:
        """Wait for a stream, or ask whether it is done."""
        queue = self._queue(q)
        call = self.program.probe if probe else self.program.sync
        self._try(lambda: call(queue))

    @rule(e=_ITEM, probe=st.booleans())
    def sync_event(self, e: int, probe: bool) -> None:
        """Wait for an event, or ask whether it is done."""
        events = self.program.events
        if events:
            call = self.program.probe if probe else self.program.sync
            self._try(lambda: call(events[-1 - e % len(events)]))

    @rule(h=_ITEM)
    def rewrite(self, h: int) -> None:
        """Let the host write host memory again, once it may."""
        if self.program.host:
            memory = self.program.host[-1 - h % len(self.program.host)]
            self._try(lambda: self.program.rewrite(memory))

    @rule(h=_ITEM)
    def look(self, h: int) -> None:
        """Compare what the host may see by now."""
        if self.program.host:
            self._try(lambda: self.program.look(self.program.host[-1 - h % len(self.program.host)]))

    @rule(b=_BUFFER)
    def replace_buffer(self, b: int) -> None:
        """Close a buffer and allocate another one."""
        self._try(lambda: self.program.replace_buffer(b % len(self.program.buffers)))

    def teardown(self) -> None:
        """Compare every byte, unless something was wrong before."""
        if not hasattr(self, "world"):
            return
        try:
            if not self.is_broken:
                self._try(self.program.finish)
        finally:
            self.world.finish(failed=True)

    # --- helpers ----------------------------------------------------------------------------

    def _try(self, call: Any) -> Any:
        try:
            return call()
        except BaseException as error:
            self.is_broken = True
            self.failures.append(Failure(error, tuple(self.world.program)))
            raise

    def _queue(self, q: int) -> Queue:
        queues: list[Queue] = self.program.queues
        return queues[q % len(queues)]

    def _own_buffer(self, queue: Queue, b: int) -> Memory:
        own: list[Memory] = [m for m in self.program.buffers if m.device == queue.device]
        return own[b % len(own)]

    def _part(self, memory: Memory, start: int, n: int, writes: bool) -> Access:
        return Access(memory, start, min(COUNT, start + n), writes)


def search(w: World, *, devices: int) -> None:
    """Try ``w.max_examples`` random programs; the program of a failure ends up in ``w``."""
    failures: list[Failure] = []
    made = {"made_for": w, "device_count": devices, "failures": failures}
    machine = seed(w.seed)(type("Programs", (Machine,), made))
    try:
        run_state_machine_as_test(machine, settings=_settings(w.max_examples))
    except Flaky as error:
        # The smaller ones do not fail each time, so the first one has to do.
        w.program[:] = failures[0].program if failures else ()
        raise (failures[0].error if failures else error) from error
    except BaseException:
        w.program[:] = failures[-1].program if failures else ()
        raise


def _settings(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
