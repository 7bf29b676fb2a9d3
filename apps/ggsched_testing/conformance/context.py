"""What a case works with: live devices, and verbs that write down each call.

The list of calls is the program that a failing case shows. Verbs hand the devices' own objects on
as they are, so a case may make illegal calls as well.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ggsched.backend.capture import Capture, DeviceGraph
from ggsched.backend.fill import Pattern, fill
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.ir.dtype import F32
from ggsched_testing.conformance.call_trace import Bytes, CallTrace, flat
from ggsched_testing.conformance.cleanup import Aborted, Hold
from ggsched_testing.conformance.exact import ExactOp, exact_op
from ggsched_testing.conformance.harness import Harness
from ggsched_testing.conformance.latch import elsewhere
from ggsched_testing.conformance.rules import BrokenRule

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Floats = npt.NDArray[np.float32]
Place = tuple[Buffer, int]

NBYTES: Final = 256
"""Length of an ordinary buffer of a case."""
COUNT: Final = NBYTES // 4
MAX_EXAMPLES: Final = 50
"""Random programs that are tried unless the caller requests another number."""
_PAUSE_S: Final = 5e-4


class TestContext:
    """Devices, and everything that a case makes on them.

    Attributes:
        devices: One or two open devices.
        harness: What the author of the backend supplied.
        rng: Random numbers that depend on the seed and the case only.
        call_trace: The calls so far, for people.
        can_hold: Whether streams stay held by the harness's latch.
        max_examples: How many random programs to try, for cases that do.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        harness: Harness,
        name: str,
        seed: int,
        *,
        can_hold: bool = True,
        max_examples: int = MAX_EXAMPLES,
        echo: Callable[[str], None] | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.harness = harness
        self.seed = seed
        self.max_examples = max_examples
        self.can_hold = can_hold
        self.rng = np.random.default_rng([seed, crc32(name.encode())])
        self.call_trace = CallTrace(echo)
        self._open: list[Any] = []
        self._holds: list[Hold] = []
        for device in self.devices:
            self.call_trace.add(device, "d", f"open {device.facts.name}")

    @property
    def program(self) -> list[str]:
        """The calls so far, for people."""
        return self.call_trace.lines

    @property
    def device(self) -> Device:
        """The device under test."""
        return self.devices[0]

    @property
    def other(self) -> Device:
        """The second device, for cases that need a ``pair``."""
        return self.devices[1]

    @property
    def timeout_s(self) -> float:
        """How long to wait for what has to come."""
        return self.harness.timeout_s

    def draws(self, count: int, least: int) -> int:
        """Return ``count`` in proportion to the examples requested, ``least`` at least."""
        return max(least, count * self.max_examples // MAX_EXAMPLES)

    # --- things -----------------------------------------------------------------------------

    def stream(self, device: Device | None = None) -> Stream:
        """Make a stream."""
        d = device or self.device
        return self._make(d, "q", "create_stream()", d.create_stream)

    def event(self, device: Device | None = None) -> Event:
        """Make an event."""
        d = device or self.device
        return self._make(d, "e", "create_event()", d.create_event)

    def buffer(self, nbytes: int = NBYTES, device: Device | None = None) -> Buffer:
        """Allocate a buffer."""
        d = device or self.device
        return self._make(d, "b", f"allocate({nbytes})", lambda: d.allocate(nbytes))

    def buffers(self, count: int, nbytes: int = NBYTES) -> list[Buffer]:
        """Allocate several buffers on the device under test."""
        return [self.buffer(nbytes) for _ in range(count)]

    def foreign(self, **facts: Any) -> Device:
        """Return a device of another backend."""
        device = elsewhere(**facts)
        self.call_trace.add(device, "d", "a device of another backend")
        return device

    def bytes(self, nbytes: int = NBYTES) -> Bytes:
        """Return random host bytes."""
        data: Bytes = self.rng.integers(1, 256, nbytes, dtype=np.uint8)
        return data

    def numbers(self, count: int = COUNT) -> Floats:
        """Return random whole numbers from 1 to 99 as f32."""
        return self.rng.integers(1, 100, count).astype(np.float32)

    # --- programs ---------------------------------------------------------------------------

    @property
    def exact(self) -> ExactOp:
        """An op whose result is the same to the bit on every device; needs ``launch``."""
        op = exact_op(self.device.facts)
        assert op is not None
        return op

    def compute(
        self, stream: Stream, inputs: Sequence[Place], out: Place, count: int = COUNT
    ) -> Program:
        """Compile the exact op over vectors; see ``node``."""
        operands = [vector(*place, count) for place in inputs]
        return self.compile([self.node(0, operands, vector(*out, count))], stream)

    def computation(self, stream: Stream) -> tuple[Buffer, Buffer, Floats, Program]:
        """Return an operand, a result, what the operand holds, and the program."""
        operand, result = self.buffers(2)
        numbers = self.numbers()
        self.put(stream, operand, numbers)
        return operand, result, numbers, self.compute(stream, [(operand, 0)], (result, 0))

    def node(self, number: int, inputs: Sequence[Operand], out: Operand) -> BoundNode:
        """Return a node of the exact op; operands that are missing repeat the last."""
        op = self.exact
        operands = [inputs[min(i, len(inputs) - 1)] for i in range(op.arity)]
        operands += [out] * op.through
        params, label = full_params(op.name, op.params), f"n{number} {op.name}"
        return BoundNode(number, op.name, tuple(operands), out, params, label)

    def result(self, *inputs: Floats) -> Floats:
        """Return what the exact op makes of host numbers."""
        op = self.exact
        out: Floats = op.apply(*(inputs[min(i, len(inputs) - 1)] for i in range(op.arity)))
        return out.astype(np.float32)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> Program:
        """Compile nodes for a stream."""
        device = stream.device
        what = "; ".join(self._text_of(n) for n in nodes) or "nothing"
        text = f"compile([{what}], {self.name(stream)})"
        return self._make(device, "p", text, lambda: device.compile(nodes, stream))

    # --- commands ---------------------------------------------------------------------------

    def upload(
        self, stream: Stream, source: "Bytes | Floats", buffer: Buffer, offset: int = 0
    ) -> None:
        """Enqueue an upload of an array."""
        self.call_trace.add_host(source)
        text = f"upload({self.name(source)}, {self.name(buffer)}, {offset})"
        self._call(stream, text, lambda: stream.upload(_view(source), buffer, offset))

    def download(
        self, stream: Stream, buffer: Buffer, offset: int = 0, nbytes: int | None = None
    ) -> Bytes:
        """Enqueue a download; return the array that it fills."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        target = np.full(n, 0xA5, np.uint8)
        self.download_to(stream, buffer, offset, target)
        return target

    def download_to(self, stream: Stream, buffer: Buffer, offset: int, target: Bytes) -> None:
        """Enqueue a download into an array."""
        self.call_trace.add_host(target)
        text = f"download({self.name(buffer)}, {offset}, {self.name(target)})"
        self._call(stream, text, lambda: stream.download(buffer, offset, _view(target)))

    def copy(
        self, stream: Stream, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, n: int
    ) -> None:
        """Enqueue a copy."""
        text = f"copy({self.name(src)}, {src_offset}, {self.name(dst)}, {dst_offset}, {n})"
        self._call(stream, text, lambda: stream.copy(src, src_offset, dst, dst_offset, n))

    def fill(
        self, stream: Stream, buffer: Buffer, offset: int, nbytes: int, pattern: Pattern
    ) -> None:
        """Enqueue a fill."""
        text = f"fill({self.name(buffer)}, {offset}, {nbytes}, {pattern!r})"
        self._call(stream, text, lambda: fill(stream, buffer, offset, nbytes, pattern))

    def launch(self, stream: Stream, program: Program) -> None:
        """Enqueue a launch."""
        self._call(stream, f"launch({self.name(program)})", lambda: stream.launch(program))

    def record(self, stream: Stream, event: Event | None = None) -> Event:
        """Record an event, a fresh one unless given."""
        e = event or self.event(stream.device)
        self._call(stream, f"record({self.name(e)})", lambda: stream.record(e))
        return e

    def wait(self, stream: Stream, event: Event) -> None:
        """Let a stream wait for an event."""
        self._call(stream, f"wait({self.name(event)})", lambda: stream.wait(event))

    def capture(self, *streams: Stream) -> Capture:
        """Begin a capture of streams; needs ``capture``."""
        device: Any = streams[0].device
        text = f"begin_capture([{', '.join(map(self.name, streams))}])"
        begin: Callable[[], Capture] = lambda: device.begin_capture(streams)  # noqa: E731
        return self._make(device, "c", text, begin, abort=True)

    def end(self, capture: Capture) -> DeviceGraph:
        """End a capture; the case closes the graph, or the world does."""
        return self._make(capture, "g", "end()", capture.end)

    def captured(self, stream: Stream, enqueue: Callable[[], object]) -> DeviceGraph:
        """Return a graph of what a call enqueues on a stream."""
        capture = self.capture(stream)
        enqueue()
        return self.end(capture)

    def replay(self, stream: Any, graph: DeviceGraph) -> None:
        """Enqueue a graph."""
        self._call(stream, f"replay({self.name(graph)})", lambda: stream.replay(graph))

    def order(self, stream: Stream) -> None:
        """Put copies and launches of a stream in order, as its device needs it (STR-1)."""
        match stream.device.facts.copy_order:
            case "barrier":
                self._call(stream, "barrier()", stream.barrier)
            case "host":
                self.sync(stream)
            case "stream":
                pass

    def sync(self, thing: Stream | Event, timeout_s: float | None = None) -> None:
        """Let the host wait for a stream or an event."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._call(thing, f"sync({limit:g})", lambda: thing.sync(limit))

    def put(self, stream: Stream, buffer: Buffer, data: "Bytes | Floats", offset: int = 0) -> None:
        """Upload and wait for it."""
        self.upload(stream, data, buffer, offset)
        self.sync(stream)

    def get(self, stream: Stream, buffer: Buffer, offset: int = 0, n: int | None = None) -> Bytes:
        """Download, behind launches too, and wait for it."""
        self.order(stream)
        target = self.download(stream, buffer, offset, n)
        self.sync(stream)
        return target

    def filled(self, stream: Stream) -> tuple[Buffer, Bytes]:
        """Return a buffer of random bytes, and a copy of them."""
        buffer, data = self.buffer(NBYTES, stream.device), self.bytes()
        self.put(stream, buffer, data)
        return buffer, data.copy()

    def works(self, stream: Stream, what: str) -> None:
        """Insist that a stream moves bytes."""
        buffer, data = self.filled(stream)
        self.equal(self.get(stream, buffer), data, what)

    def close(self, *things: Any) -> None:
        """Close anything."""
        for thing in things:
            self._call(thing, "close()", thing.close)

    # --- holding ----------------------------------------------------------------------------

    def hold(self, stream: Stream) -> Hold:
        """Hold a stream until the case releases it, if there is a way to do so."""
        latch = self.harness.hold(stream) if self.can_hold else None
        if latch is not None:
            self.call_trace.note(f"hold {self.name(stream)}")
        hold = Hold(latch is not None, latch, self.call_trace.note)
        self._holds.append(hold)
        return hold

    def still_held(self, hold: Hold, *things: Stream | Event) -> None:
        """Insist that things are not done, after a moment that a correct device does not use."""
        if hold.is_real:
            self.not_done(*things)

    def release_held(self, hold: Hold, *things: Stream | Event) -> None:
        """Insist that things are held, and let them go."""
        self.still_held(hold, *things)
        hold.release()

    def sync_held(self, hold: Hold, thing: Stream | Event, *others: Stream | Event) -> None:
        """Insist that things are held, let them go, and wait for the first."""
        self.release_held(hold, thing, *others)
        self.sync(thing)

    def not_done(self, *things: Stream | Event) -> None:
        """Insist that things are not done, now and for the moment."""
        deadline = monotonic() + self.harness.grace_s
        while True:
            for thing in things:
                if thing.is_done:
                    name = self.name(thing)
                    self.call_trace.note(f"{name}.is_done -> True")
                    raise BrokenRule(f"{name} is done while what it has to follow is held")
            if monotonic() >= deadline:
                return
            _pause()

    def uploading(self, stream: Stream) -> tuple[Buffer, Bytes, Hold]:
        """Return a buffer, what a stream uploads to it when it is no longer held, and the hold."""
        (buffer, _), data, hold = self.filled(stream), self.bytes(), self.hold(stream)
        self.upload(stream, data, buffer)
        return buffer, data, hold

    # --- checking ----------------------------------------------------------------------------

    def refused(self, kind: type[E], call: Callable[..., object], *args: Any) -> E:
        """Insist that a call raises an error of a kind; return it."""
        try:
            call(*args)
        except kind as error:
            return error
        except Exception as error:
            other = f"{type(error).__name__} instead of {kind.__name__}"
            raise BrokenRule(f"{self.call_trace.last()} raises {other}: {error}") from error
        last = self.call_trace.last()
        raise BrokenRule(f"{last} is accepted; {kind.__name__} was to be raised")

    def equal(self, actual: "Bytes | Floats", expected: "Bytes | Floats", what: str) -> None:
        """Insist that two arrays have the same bytes."""
        a, b = flat(actual), flat(expected)
        if a.size != b.size:
            raise BrokenRule(f"{what}: {a.size} bytes instead of {b.size}")
        wrong = np.flatnonzero(a != b)
        if wrong.size:
            i = int(wrong[0])
            raise BrokenRule(
                f"{what}: {wrong.size} of {a.size} bytes are wrong, the first at {i}: "
                f"{a[i : i + 8].tobytes().hex(' ')} instead of {b[i : i + 8].tobytes().hex(' ')}"
            )

    def require(self, truth: object, what: str) -> None:
        """Insist on something."""
        if not truth:
            raise BrokenRule(what)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until a condition holds, or break the rule."""
        deadline = monotonic() + self.timeout_s
        while not condition():
            if monotonic() >= deadline:
                raise BrokenRule(f"{what}, even after {self.timeout_s:g} s")
            _pause()

    def pause(self) -> None:
        """Wait for a moment that a correct device does not use."""
        _pause()

    def log(self, text: str) -> None:
        """Write down something that is not a call of a device."""
        self.call_trace.note(text)

    def name(self, thing: object) -> str:
        """Return the short name of a thing."""
        return self.call_trace.name(thing)

    # --- the end ----------------------------------------------------------------------------

    def forget(self, thing: object) -> None:
        """Drop the references to a thing, so that only a device can keep it alive."""
        self.call_trace.forget(thing)
        self._open = [o for o in self._open if o is not thing]

    def release(self) -> None:
        """Release every latch."""
        for hold in self._holds:
            hold.release()
        self._holds.clear()

    def finish(self, *, failed: bool) -> None:
        """Release latches, then close all; errors count only where the case passed.

        The devices come first: they may be closed at any time, and buffers may not (BUF-2).
        """
        self.release()
        for thing in (*self.devices, *reversed(self._open)):
            if failed:
                with suppress(Exception):
                    thing.close()
            else:
                thing.close()

    # --- helpers ----------------------------------------------------------------------------

    def _make(
        self, maker: object, letter: str, text: str, make: Callable[[], T], *, abort: bool = False
    ) -> T:
        line = f"{self.call_trace.next_name(letter)} = {self.name(maker)}.{text}"
        thing = self.call_trace.run(line, make)
        self.call_trace.add(thing, letter)
        self._open.append(Aborted(thing) if abort else thing)
        return thing

    def _call(self, thing: object, text: str, call: Callable[[], object]) -> None:
        self.call_trace.run(f"{self.name(thing)}.{text}", call)

    def _text_of(self, node: BoundNode) -> str:
        def place(o: Operand) -> str:
            return f"{self.name(o.buffer)}[{o.offset}:{o.offset + o.nbytes}]"

        return f"{node.op} {', '.join(map(place, node.inputs))} > {place(node.output)}"


def vector(buffer: Buffer, offset: int = 0, count: int = COUNT) -> Operand:
    """Return an f32 vector in a buffer."""
    return Operand(buffer, offset, 4 * count, F32, (count,), (4,))


def _view(array: "Bytes | Floats") -> HostMemory:
    return flat(array).data


def _pause() -> None:
    threading.Event().wait(_PAUSE_S)
