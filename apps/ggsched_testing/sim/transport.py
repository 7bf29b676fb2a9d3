"""Sockets, threads and a clock in simulated time, and what goes wrong with a message.

    net = SimTransport(Fault("cut", 17))
    with net:                           # this thread is the first one of the simulation
        Link("here", token, net)        # links, workers and drivers as on machines

One thread runs at a time. It goes on until it waits for a socket, an event or another thread; then
the next one that can go on does, in the order in which they began to wait. Where none can, time
goes to the next arrival or the next end of a wait. So a program sends the same messages in the same
order in each run, and a fault is named by the number of the message that it concerns.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

LATENCY_S: Final = 1e-4
FaultKind = Literal["lose", "twice", "late", "swap", "cut", "cut inside", "half-open"]
"""What happens to a message: it is lost; comes twice; comes late, and all behind it; is overtaken
by the next one of its connection; is lost with its connection, in whole or in part; or is lost with
all that follow on its connection, of which the sender learns nothing."""


class Fault(NamedTuple):
    """What goes wrong.

    Attributes:
        kind: What happens.
        number: Number of the message, from 0, in order of sending.
        delay_s: For ``late``.
    """

    kind: FaultKind
    number: int
    delay_s: float = 0.0


class Stuck(BaseException):
    """Every thread waits for something that cannot come, or the simulation is over."""


@dataclass(eq=False, slots=True)
class _Task:
    """A thread.

    Attributes:
        ready: Whether it can go on.
        until_s: When it goes on in any case.
    """

    ready: Callable[[], bool] = bool
    until_s: float = float("inf")
    is_waiting: bool = False
    is_done: bool = False


class SimTransport:
    """See ``ggsched_cluster.transport.Transport``.

    Args:
        fault: What goes wrong; None for nothing.
        latency_s: How long each message is under way.
        end_s: When every wait ends with ``Stuck``: threads that wake each other for ever do not
            get on.

    Attributes:
        messages: Number of messages that were sent.
    """

    spin_s = 0.0

    def __init__(
        self, fault: Fault | None = None, *, latency_s: float = LATENCY_S, end_s: float = 1000.0
    ) -> None:
        self.messages = 0
        self._latency_s, self._end_s = latency_s, end_s
        self._fault = fault
        self._now_s = 0.0
        self._changed = threading.Condition()
        self._waiting: list[_Task] = []
        self._local = threading.local()
        self._running: _Task | None = None
        self._arrivals: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._doors: dict[int, SimDoor] = {}
        self._is_stuck = False

    def __enter__(self) -> "SimTransport":
        self._local.task = self._running = _Task()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let the other threads go on until each has ended; after an error, end them.

        Raises:
            Stuck: one waits for what cannot come.
        """
        if kind is None:
            first = self._local.task
            self.wait(lambda: all(task is first for task in self._waiting))
        with self._changed:
            self._is_stuck = True
            self._changed.notify_all()

    # --- Transport ----------------------------------------------------------------------------

    def listen(self, host: str) -> "SimDoor":
        """See ``Transport``."""
        door = SimDoor(self, 1 + len(self._doors))
        self._doors[door.port] = door
        return door

    def connect(self, host: str, port: int) -> "SimSocket":
        """See ``Transport``."""
        door = self._doors.get(port)
        if door is None or door.is_closed:
            raise ConnectionRefusedError(port)
        here, there = SimSocket(self), SimSocket(self)
        here.peer, there.peer = there, here
        self.at(self._latency_s, lambda: door.waiting.append(there))
        return here

    def selector(self) -> "SimSelector":
        """See ``Transport``."""
        return SimSelector(self)

    def now(self) -> float:
        """See ``Transport``."""
        return self._now_s

    def event(self) -> "SimEvent":
        """See ``Transport``."""
        return SimEvent(self)

    def thread(self, target: Callable[[], None], name: str) -> "SimThread":
        """See ``Transport``."""
        task = _Task(ready=lambda: True, is_waiting=True)
        self._waiting.append(task)

        def run() -> None:
            self._local.task = task
            try:
                self._await_turn(task)
                target()
            except Stuck:  # the first thread knows
                pass
            finally:
                with self._changed:
                    task.is_done = True
                    if self._running is task:
                        self._pass_on()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return SimThread(self, task, thread)

    # --- threads and time ---------------------------------------------------------------------

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after a time."""
        self._numbers += 1
        heappush(self._arrivals, (self._now_s + seconds, self._numbers, act))

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Let others go on until something is so, or for a time; return whether it is so."""
        if not ready() and (timeout_s is None or timeout_s > 0):
            task: _Task = self._local.task
            task.ready, task.is_waiting = ready, True
            task.until_s = self._now_s + (float("inf") if timeout_s is None else timeout_s)
            with self._changed:
                self._waiting.append(task)
                self._pass_on()
            self._await_turn(task)
        return ready()

    def _await_turn(self, task: _Task) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._running is task or self._is_stuck)
            if self._is_stuck:
                raise Stuck

    def _pass_on(self) -> None:
        """Let the next thread run; time goes on where none can."""
        while True:
            for task in self._waiting:
                if task.until_s <= self._now_s or task.ready():
                    self._waiting.remove(task)
                    task.is_waiting = False
                    self._running = task
                    self._changed.notify_all()
                    return
            ends = [task.until_s for task in self._waiting]
            self._now_s = min(ends + [at for at, _, _ in self._arrivals[:1]], default=float("inf"))
            if self._now_s > self._end_s:
                self._is_stuck = bool(self._waiting)
                self._running = None
                self._changed.notify_all()
                return
            while self._arrivals and self._arrivals[0][0] <= self._now_s:
                heappop(self._arrivals)[2]()

    # --- messages -----------------------------------------------------------------------------

    def transmit(self, source: "SimSocket", data: bytes) -> None:
        """Put a message on its way."""
        number, fault = self.messages, self._fault
        self.messages += 1
        kind = fault.kind if fault is not None and fault.number == number else ""
        if kind == "half-open":
            source.is_mute = True
        if source.is_mute or kind == "lose":
            return
        if fault is not None and kind == "late":
            source.delay_s = fault.delay_s
        if kind == "swap":
            source.held = data
            return
        pieces = [data, *([data] if kind == "twice" else []), source.held]
        source.held = b""
        if kind in ("cut", "cut inside"):
            pieces = [data[: len(data) // 2]] if kind == "cut inside" else []
        for piece in filter(None, pieces):
            self.leave(source, piece)
        if kind in ("cut", "cut inside"):
            for end in filter(None, (source, source.peer)):
                self.at(self._latency_s + source.delay_s, end.reset)

    def leave(self, source: "SimSocket", data: bytes) -> None:
        """Let bytes arrive at the other end; none for the end of the connection."""
        target = source.peer
        assert target is not None
        self.at(self._latency_s + source.delay_s, lambda: target.arrive(data))


class SimSocket:
    """One end of a connection.

    Attributes:
        peer: The other end.
        is_mute: Whether what it sends is lost.
        delay_s: By how much its messages are late.
        held: A message that the next one overtakes.
    """

    def __init__(self, net: SimTransport) -> None:
        self._net = net
        self.peer: SimSocket | None = None
        self.is_mute, self.delay_s, self.held = False, 0.0, b""
        self._inbox: deque[bytes] = deque()
        self._is_reset = self._is_ended = self._is_closed = False

    def is_ready(self) -> bool:
        """Whether a read would not block."""
        return bool(self._inbox) or self._is_reset or self._is_ended

    def arrive(self, data: bytes) -> None:
        """Take bytes; none for the end."""
        if self._is_reset:
            return
        if data:
            self._inbox.append(data)
        else:
            self._is_ended = True

    def reset(self) -> None:
        """Lose the connection, with what has not been read."""
        self._inbox.clear()
        self._is_reset = True

    def setblocking(self, _: bool) -> None:
        """Do nothing: reads never block, and writes need not."""

    def sendmsg(self, views: Iterable[Any], *_: object) -> int:
        """See ``socket``: everything is taken at once."""
        if self._is_reset or self._is_closed:
            raise ConnectionResetError
        data = b"".join(map(bytes, views))
        self._net.transmit(self, data)
        return len(data)

    def recvmsg_into(self, targets: Sequence[memoryview]) -> tuple[int]:
        """See ``socket``."""
        if self._is_reset:
            raise ConnectionResetError
        if not self._inbox:
            if self._is_ended:
                return (0,)
            raise BlockingIOError
        count = 0
        for target in targets:
            while count < sum(map(len, targets)) and self._inbox and len(target):
                data = self._inbox.popleft()
                some = data[: len(target)]
                target[: len(some)] = some
                target, count = target[len(some) :], count + len(some)
                if some != data:
                    self._inbox.appendleft(data[len(some) :])
        return (count,)

    def shutdown(self, _: int) -> None:
        """See ``socket``."""

    def close(self) -> None:
        """Close it; the other end reads what was sent, and then the end."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self.is_mute and not self._is_reset:
            if self.held:
                self._net.leave(self, self.held)
            self._net.leave(self, b"")


class SimDoor:
    """A socket that listens.

    Attributes:
        port: Its number.
        waiting: Connections that were not accepted.
    """

    def __init__(self, net: SimTransport, port: int) -> None:
        self.port = port
        self.waiting: deque[SimSocket] = deque()
        self.is_closed = False

    def is_ready(self) -> bool:
        """Whether a connection waits."""
        return bool(self.waiting)

    def getsockname(self) -> tuple[str, int]:
        """See ``socket``."""
        return "", self.port

    def accept(self) -> tuple[SimSocket, None]:
        """See ``socket``."""
        return self.waiting.popleft(), None

    def close(self) -> None:
        """Accept nothing any more."""
        self.is_closed = True


class _Key(NamedTuple):
    data: Any


class SimSelector:
    """See ``selectors``."""

    def __init__(self, net: SimTransport) -> None:
        self._net = net
        self._watched: dict[Any, _Key] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> None:
        """See ``selectors``."""
        self._watched[fileobj] = _Key(data)

    def unregister(self, fileobj: Any) -> None:
        """See ``selectors``."""
        del self._watched[fileobj]

    def select(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """See ``selectors``."""
        self._net.wait(lambda: any(s.is_ready() for s in self._watched), timeout)
        return [(key, 1) for s, key in self._watched.items() if s.is_ready()]

    def close(self) -> None:
        """See ``selectors``."""
        self._watched.clear()


class SimEvent:
    """See ``threading.Event``."""

    def __init__(self, net: SimTransport) -> None:
        self._net, self._is_set = net, False

    def set(self) -> None:
        """See ``threading.Event``."""
        self._is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Event``."""
        return self._net.wait(lambda: self._is_set, timeout)


class SimThread:
    """See ``threading.Thread``."""

    def __init__(self, net: SimTransport, task: _Task, thread: threading.Thread) -> None:
        self._net, self._task, self._thread = net, task, thread

    def is_alive(self) -> bool:
        """See ``threading.Thread``."""
        return not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        """See ``threading.Thread``."""
        if self._net.wait(lambda: self._task.is_done, timeout):
            self._thread.join()
