"""Serves the devices of one machine to one driver: binds parts of plans and runs them.

    python -m ggsched_cluster.worker HOST   # token (hex) on stdin; its address on stdout

A worker ends when the driver closes it, or when the process that started it is gone.
"""

import logging
import os
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final

import msgspec
import numpy as np

from ggsched.backend.checked import checked
from ggsched.backend.free_memory import free_nbytes
from ggsched.backend.offline_device import OfflineDevice
from ggsched.backend.probe import probe
from ggsched.backend.progress import progress_of
from ggsched.backend.protocols import Device, HostMemory
from ggsched.backend.registry import open_devices
from ggsched.cli.user_ops import import_modules
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, DeviceFault, GgschedError, UsageError
from ggsched.ir.text import parse_graph
from ggsched.plan.bundle import Plan
from ggsched.plan.codec import plan_from_json
from ggsched.plan.parts import Part, local_plan
from ggsched.run.executor import Executor
from ggsched.run.release import close_all
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.topology.codec import topology_from_text, topology_to_text
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import TracedPlan
from ggsched.trace.tracing import traced
from ggsched_calibrate.machine import calibrate
from ggsched_calibrate.timing import others_of_this_process
from ggsched_cluster import messages as m
from ggsched_cluster.link import Link
from ggsched_cluster.pings import Pinger
from ggsched_cluster.recorded import MessageTime, WorkerRecord
from ggsched_cluster.stream import TOKEN_NBYTES
from ggsched_cluster.weights import Offer, Sources

POLL_S: Final = 0.2
"""How often a worker that waits looks whether its driver is still there."""

MAX_WARNINGS: Final = 100
MAX_WARNING_CHARS: Final = 1000

EXCLUDED: Final = ("local", "ray", "sim")
"""Backends that are no devices of a machine."""


class Ended(BaseException):
    """The driver closed a busy worker. Not an ``Exception``, so that nobody catches it."""


class Worker:
    """A worker. ``serve`` returns when the driver closes it.

    Args:
        link: Its end.
        is_alone: Whether the process that started it is gone.
        warnings: Keeps what the process warns of, for the driver; None where that is the driver's.
    """

    def __init__(
        self,
        link: Link,
        is_alone: Callable[[], bool] = lambda: False,
        warnings: "Warnings | None" = None,
    ) -> None:
        self._link, self._is_alone, self._warnings = link, is_alone, warnings
        self._driver = ""
        self._devices: list[Device] = []
        self._store: TensorStore | None = None
        self._bound: dict[int, tuple[Part, Executor, dict[str, tuple[Any, ...]]]] = {}
        self._record: WorkerRecord | None = None
        self._recorded_as: dict[int, Plan] = {}
        self._last: Executor | None = None
        self._early: dict[tuple[int, int, int], HostMemory] = {}
        self._run, self._is_given_up = -1, False
        self._request, self._over = -1, 0
        self._steps, self._waits_for = _Steps(), ""
        self._marks: tuple[object, ...] = ()
        self._progress = 0
        self._beats: _Beats | None = None
        settings = Settings.from_environment()
        self._sources = Sources(settings.models or "", settings.weight_cache or "")
        self._stash: list[tuple[m.Any_, Sequence[memoryview]]] = []

    def serve(self) -> None:
        """Do what the driver says until it says that this is all."""
        try:
            while True:
                message, frames = self._next()
                if isinstance(message, m.Close):
                    break
                if isinstance(message, m.Abort):
                    self._give_up_unknown(message)
                else:
                    self._answer(message, frames)
        except Ended:
            pass
        finally:
            self._end()

    def send(self, machine: int, tag: int, source: HostMemory) -> None:
        """Send the bytes of a message of the run that is under way."""
        began = time.perf_counter()
        self._link.send(self._addresses[machine], m.Data(self._run, self._me, tag), source)
        self._note(machine, tag, source.nbytes, began, is_sent=True)

    def receive(self, machine: int, tag: int, target: HostMemory) -> None:
        """Wait for a message of the run that is under way."""
        key, began = (self._run, machine, tag), time.perf_counter()
        if key not in self._early:
            with self._waiting(f"message #{tag}"):
                while key not in self._early:
                    self._take(*self._next_of_run())
        source = self._early[key]
        if source is _TWICE:
            raise self._twice(machine, tag)
        if source.nbytes != target.nbytes:
            what = f"message #{tag} has {source.nbytes} bytes instead of {target.nbytes}"
            raise DeviceFault(what, where=self._where(machine), hint="this is a defect: report it")
        target[:] = source
        self._early[key] = _TAKEN
        self._note(machine, tag, target.nbytes, began, is_sent=False)

    def _note(self, machine: int, tag: int, nbytes: int, began: float, *, is_sent: bool) -> None:
        if self._record is not None:
            times = (began, time.perf_counter())
            self._record.message(MessageTime(self._run, tag, machine, nbytes, is_sent, *times))

    def _take(self, message: m.Any_, frames: Sequence[memoryview]) -> None:
        """Deal with what comes in the middle of a run."""
        if isinstance(message, m.Data):
            key = (message.run, message.sender, message.tag)
            if message.run == self._run and key in self._early:
                raise self._twice(message.sender, message.tag)
            if message.run >= self._run:
                self._early[key] = frames[0]
        else:
            self._take_request(message, frames)

    def _take_request(self, message: m.Any_, frames: Sequence[memoryview]) -> None:
        """Deal with what the driver says while a request is carried out.

        Raises:
            Ended: it closes the worker.
            DeviceFault: it gave up the request, or sent another one: it does not wait any more.
        """
        if isinstance(message, m.Close):
            raise Ended
        if isinstance(message, m.Abort) and message.id == self._request:
            self._is_given_up = True
            self._link.renew()
            raise DeviceFault("the run was given up", why=message.why)
        if isinstance(message, m.Abort | m.Request) and message.id > self._request:
            self._stash.append((message, frames))
            raise DeviceFault("the driver was interrupted")

    def _give_up_unknown(self, message: m.Abort) -> None:
        """Answer for a request that never came, or whose answer was lost."""
        self._over = max(self._over, message.id)
        self._link.renew()
        self._is_given_up = True
        self._fail(message.id, DeviceFault("the request was given up", why=message.why))

    def _next(self) -> tuple[m.Any_, Sequence[memoryview]]:
        """Return the next request; data of runs to come is kept.

        Requests have rising numbers: one that comes late or twice is not carried out.
        """
        while True:
            message, frames = self._stash.pop(0) if self._stash else self._next_of_run()
            if isinstance(message, m.Data):
                key = (message.run, message.sender, message.tag)
                if message.run > self._run:
                    self._early[key] = _TWICE if key in self._early else frames[0]
            elif isinstance(message, m.Close) or (
                isinstance(message, m.Abort | m.Request)
                and (message.id > self._over or isinstance(message, m.Abort))
            ):
                return message, frames

    def _next_of_run(self) -> tuple[m.Any_, Sequence[memoryview]]:
        while True:
            found = self._link.poll(POLL_S)
            if found is not None and isinstance(found[0], m.Ping):
                ping = found[0]
                pong = m.Pong(self._link.address, ping.number, time.perf_counter())
                self._link.send(ping.sender, pong)
            elif found is not None:
                self._steps()
                return found
            if self._is_alone():
                raise Ended

    def _answer(self, message: Any, frames: Sequence[memoryview]) -> None:
        self._is_given_up = False
        self._request = message.id
        try:
            _HANDLERS[type(message)](self, message, frames)
        except GgschedError as error:
            self._fail(message.id, error)
        except Exception as error:  # the driver has to know, and the worker goes on
            found = DeviceFault(
                f"{type(error).__name__}: {error}", hint="this is a defect: report it"
            )
            self._fail(message.id, found)
        finally:
            self._over, self._request = max(self._over, message.id), -1

    def _fail(self, request: int, error: GgschedError) -> None:
        notes = tuple(getattr(error, "__notes__", ()))
        said = (error.what, error.where, error.why, error.hint, notes, self._is_given_up)
        kind = type(error).__name__
        self._reply(m.Failed(request, self._link.address, kind, *said))

    def _reply(self, answer: m.Any_, *frames: Any) -> None:
        """Send an answer, behind the warnings so far."""
        texts = () if self._warnings is None else self._warnings.taken()
        if texts:
            self._link.send(self._driver, m.Warned(self._link.address, texts))
        self._link.send(self._driver, answer, *frames)

    def _open(self, message: m.Open, _frames: Sequence[memoryview]) -> None:
        self._driver = message.driver
        if message.version != m.version():
            raise BackendUnavailable(
                f"has {m.version()}",
                why=f"the driver has {message.version}",
                hint="install the same version on all machines",
            )
        self._timeout_s = message.timeout_s
        if self._beats is None:
            self._beats = _Beats(self._link, message.driver, message.timeout_s, self._beat)
        self._devices = _opened(message)
        self._steps()
        free = tuple(free_nbytes(d) for d in self._devices)
        topology = topology_to_text(probe(self._devices))
        self._reply(m.Opened(message.id, self._link.address, m.version(), topology, free))

    def _join(self, message: m.Join, _frames: Sequence[memoryview]) -> None:
        self._release()
        self._me, self._first = message.machine, message.first
        self._addresses, self._capture = message.addresses, message.capture
        self._timeout_s = message.timeout_s
        self._require_beats().set_pace(message.timeout_s)
        self.topology = topology_from_text(message.topology)
        own = checked(self._devices) if message.checked else self._devices
        self._record = None
        if message.records:
            self._record = WorkerRecord(Recorder())
            own = traced(own, self._record.recorder)
        devices: list[Device] = [
            OfflineDevice(self.topology, i) for i in range(len(self.topology.devices))
        ]
        devices[self._first : self._first + len(own)] = own
        self._store = TensorStore(
            devices, self._weight, timeout_s=self._timeout_s, progress=self._steps
        )
        self._done(message.id)

    def _bind(self, message: m.Bind, frames: Sequence[memoryview]) -> None:
        store = self._require_store()
        graph = parse_graph(bytes(frames[0]).decode())
        if graph.digest != message.digest:
            raise UsageError(
                f"the graph has the digest {graph.digest}",
                where=graph.name,
                why=f"the driver has {message.digest}",
                hint="the machines differ in ops or versions: install the same on all",
            )
        facts = [d.facts for d in store.devices]
        plan = local_plan(plan_from_json(bytes(frames[1])), message.part, facts)
        self._drain()
        resources = Resources(graph, plan, store)
        executor = Executor(
            graph,
            plan,
            resources,
            timeout_s=self._timeout_s,
            captures=self._capture,
            network=self,
            recorder=None if self._record is None else self._record.recorder,
        )
        if self._record is not None:
            self._recorded_as[message.key] = self._record.plan_of(message.part, plan)
        shapes = {s.name: m.host_form(graph.named(s.name)) for s in plan.inputs}
        self._bound[message.key] = (message.part, executor, shapes)
        self._done(message.id)

    def _run_part(self, message: m.Run, frames: Sequence[memoryview]) -> None:
        part, executor, shapes = self._bound[message.key]
        store = self._require_store()
        self._run = message.id
        self._early = {k: v for k, v in self._early.items() if k[0] == self._run}
        inputs = {
            name: np.frombuffer(frame, shapes[name][1]).reshape(shapes[name][0])
            for name, frame in zip(part.inputs, frames, strict=True)
        }
        if executor is not self._last:
            self._drain()
        self._last = None
        store.require_files()
        try:
            with self._recorded(message):
                outputs = executor.run(inputs, copy=False)
        finally:
            self._early.clear()
        self._last = executor
        self._done(message.id, *(np.ascontiguousarray(outputs[t]) for t in part.outputs))

    def _recorded(self, message: m.Run) -> AbstractContextManager[None]:
        """Return a context in which a run is recorded, if anybody wants that."""
        if self._record is None:
            return nullcontext()
        plan = self._recorded_as[message.key]
        self._record.begins(message.id, plan)
        return self._record.recorder.run_of(plan, TracedPlan)

    def _calibrate(self, message: m.Calibrate, _frames: Sequence[memoryview]) -> None:
        others = others_of_this_process()
        found = calibrate(self._devices, message.seconds, self._steps, others=others)
        self._done(message.id, msgspec.msgpack.encode(found))

    def _probe(self, message: m.Probe, _frames: Sequence[memoryview]) -> None:
        pinger = Pinger(self._link, self._timeout_s, self._take_request, self._steps)
        with self._waiting(f"an answer of {message.address}"):
            samples = pinger.samples(message.address, message.seconds)
        self._done(message.id, msgspec.msgpack.encode(samples))

    def _manage(self, message: m.Manage, _frames: Sequence[memoryview]) -> None:
        if message.what == "recorded":
            taken = None if self._record is None else self._record.taken()
            self._done(message.id, msgspec.msgpack.encode(taken))
            return
        store, sizes = self._require_store(), {}
        if message.what == "sizes":
            sizes = {k: store.nbytes_by_device(k) for k in ("weight", "state", "cache")}
            sizes["read"] = dict(self._sources.nbytes)
        else:
            self._drain()
            self._last = None
        if message.what == "drop" and message.key in self._bound:
            self._bound.pop(message.key)[1].close()
        elif message.what == "release":
            store.release([n for n in message.names if n in store.names])
        elif message.what == "clear":
            store.clear_states()
        self._reply(m.Done(message.id, self._link.address, sizes))

    def _weight(self, name: str) -> np.ndarray:
        """Return a weight from where this machine has it, or else as the driver sends it."""
        offer, data = self._asked(name, sent=False)
        if data is None:
            found = self._sources.find(name, offer)
            if found is not None:
                return found
            offer, data = self._asked(name, sent=True)
        if data is None or zlib.crc32(data) != offer.checksum:
            raise DeviceFault("was damaged on its way", where=name, hint="load it again")
        self._sources.sent(offer, data)
        return offer.array(data)

    def _asked(self, name: str, *, sent: bool) -> tuple[Offer, memoryview | None]:
        """Ask the driver what a weight is; with it come its bytes, if they are sent."""
        wanted = m.Wanted(self._link.address, name, self._sources.keeps, sent)
        self._link.send(self._driver, wanted)
        with self._waiting(f"weight {name!r}"):
            while True:
                message, frames = self._next_of_run()
                if not isinstance(message, m.Weight):
                    self._take_request(message, frames)
                elif message.name == name and (frames or message.offer is None or not sent):
                    break
        if message.offer is None:
            raise UsageError(message.why, where=name)
        return message.offer, frames[0] if frames else None

    def _drain(self) -> None:
        failures = self._require_store().drain()
        for _, executor, _ in self._bound.values():
            executor.drained()
        if failures:
            raise failures[0]

    def _done(self, request: int, *frames: Any) -> None:
        self._reply(m.Done(request, self._link.address), *frames)

    def _require_store(self) -> TensorStore:
        if self._store is None:
            raise UsageError("the worker has not joined a session")
        return self._store

    def _twice(self, machine: int, tag: int) -> DeviceFault:
        what = f"message #{tag} came twice"
        return DeviceFault(what, where=self._where(machine), hint="this is a defect: report it")

    def _where(self, machine: int) -> str:
        return f"the message from machine {machine}"

    def _require_beats(self) -> "_Beats":
        if self._beats is None:
            raise UsageError("the worker has opened no devices")
        return self._beats

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Let the beats say what is waited for."""
        self._waits_for = what
        try:
            yield
        finally:
            self._waits_for = ""

    def _beat(self) -> m.Beat:
        """Return what is under way and how far it is; called by the thread of the beats."""
        streams = () if self._store is None else self._store.streams
        marks: list[object] = [self._request, self._steps.count, self._link.moved_nbytes]
        with suppress(Exception):  # a stream that is being closed
            marks += [progress_of(stream) for stream in streams]
        if tuple(marks) != self._marks:
            self._marks = tuple(marks)
            self._progress += 1
        return m.Beat(self._link.address, self._request, self._progress, self._waits_for)

    def _end(self) -> None:
        """Release everything, whatever fails."""
        beats = [] if self._beats is None else [self._beats]
        try:
            self._release()
        finally:
            try:
                close_all([*self._devices, *beats])
            finally:
                self._link.close(0.2)

    def _release(self) -> None:
        """Release all plans and tensors."""
        executors = [executor for _, executor, _ in self._bound.values()]
        store, self._store = self._store, None
        self._bound, self._last = {}, None
        if store is not None:
            store.drain(patient=False)
            close_all([*executors, store])


_HANDLERS: Final[dict[Any, Callable[[Worker, Any, Sequence[memoryview]], None]]] = {
    m.Open: Worker._open,
    m.Join: Worker._join,
    m.Bind: Worker._bind,
    m.Run: Worker._run_part,
    m.Manage: Worker._manage,
    m.Calibrate: Worker._calibrate,
    m.Probe: Worker._probe,
}

_TAKEN: Final = memoryview(b"")
_TWICE: Final = memoryview(b"")
"""In the place of a message that was taken, and of one that came twice before its run."""


class Warnings(logging.Handler):
    """Keeps what this process warns of, from now on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: deque[str] = deque(maxlen=MAX_WARNINGS)
        logging.getLogger("ggsched").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self._texts.append(record.getMessage()[:MAX_WARNING_CHARS])

    def taken(self) -> tuple[str, ...]:
        """Return what was kept, once."""
        return tuple(self._texts.popleft() for _ in range(len(self._texts)))


class _Steps:
    """Counts what a worker has done: the progress of its requests."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: object) -> None:
        self.count += 1

    def stage(self, _: str) -> None:
        """See ``TensorStore.stage``."""
        self.count += 1


class _Beats:
    """A thread that sends heartbeats to the driver."""

    def __init__(
        self, link: Link, driver: str, timeout_s: float, beat: Callable[[], m.Beat]
    ) -> None:
        self._link, self._driver, self._say = link, driver, beat
        self.set_pace(timeout_s)
        self._stop = link.event()
        self._thread = link.thread(self._beat, "ggsched beat")

    def set_pace(self, timeout_s: float) -> None:
        """Beat often enough for a timeout."""
        self._period_s = m.beat_period_s(timeout_s)

    def _beat(self) -> None:
        beater = self._link.beater(self._driver)
        try:
            while not self._stop.wait(self._period_s):
                beater.send(self._say())
        finally:
            beater.close()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self._stop.set()
        self._thread.join()


def _opened(message: m.Open) -> list[Device]:
    settings = Settings.from_environment()
    import_modules(settings.ops)
    allow = message.backends or settings.backends
    if message.names:
        return list(open_devices(message.names, allow=allow))
    found = list(open_devices(None, allow=allow))
    wanted = [d for d in found if d.facts.backend not in EXCLUDED]
    close_all([d for d in found if d.facts.backend in EXCLUDED])
    return wanted


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stdin is closed by the process that started this one."""
    (host,) = sys.argv[1:] if argv is None else argv
    link = Link(host, bytes.fromhex(os.read(0, 2 * TOKEN_NBYTES).decode()))
    gone = threading.Event()

    def watch() -> None:
        while os.read(0, 1):
            pass
        gone.set()

    threading.Thread(target=watch, name="ggsched parent", daemon=True).start()
    sys.stdout.write(link.address + "\n")
    sys.stdout.flush()
    Worker(link, gone.is_set, Warnings()).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
