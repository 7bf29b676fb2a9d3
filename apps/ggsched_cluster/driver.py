"""The driver's side of a session: sends requests to workers, and waits for all answers at once.

Whatever goes wrong on one machine gives up the request on all of them, so that nobody waits for
messages that will not come, and one error is raised here. Each worker says with its beats which
request it carries out, how far it is and which message it waits for; ``_Answers._look`` decides
by these alone. A request ends within the timeout after the last progress:

* A machine whose worker has ended, has not been heard of, or is busy without progress and without
  waiting for a message, is lost.
* A machine that is not busy with the request has not got it, or its answer was lost:
  ``SyncTimeout``.
* Machines that all wait for messages: one was lost, or they wait for each other: ``SyncTimeout``.

A beat says what was so up to two periods ago, so that a worker's own timeout comes first.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

import ggsched.errors
from ggsched.errors import BackendUnavailable, DeviceFault, GgschedError, SyncTimeout, UsageError
from ggsched.plan.parts import Part
from ggsched.topology.codec import topology_to_text
from ggsched.topology.model import Topology
from ggsched_calibrate.machine import Calibration
from ggsched_cluster import messages as m
from ggsched_cluster.link import Link
from ggsched_cluster.members import Member, Start
from ggsched_cluster.pings import ClockOffset, LinkSample, Pinger
from ggsched_cluster.recorded import MachineRecord
from ggsched_cluster.stream import TOKEN_NBYTES
from ggsched_cluster.weights import offer_of

_LOG: Final = logging.getLogger("ggsched")
LOOK_S: Final = 0.1
"""How often the driver looks whether all workers are there, while it waits."""

END_S: Final = 5.0
"""How long workers may take to release everything when a session ends."""

MAX_TAKEN: Final = 1000
"""Messages that are read before the driver looks at the machines again."""

Frames = Sequence[memoryview]


class Driver:
    """The workers of a session. For one thread at a time.

    Args:
        start: Starts the workers.
        backends: Backends that may be used on the machines; None for all.
        timeout_s: How long something may go on without progress.

    Raises:
        BackendUnavailable: this process cannot listen, or no worker could be started.
    """

    def __init__(self, start: Start, *, backends: tuple[str, ...] | None, timeout_s: float) -> None:
        token = secrets.token_bytes(TOKEN_NBYTES)
        self.scheme, self.timeout_s = start.scheme, timeout_s
        self.source: Callable[[str], np.ndarray] | None = None
        self.sent: Callable[[str, int], None] | None = None
        self._backends = backends
        self._link = Link(start.host, token, start.transport)
        self._members: list[Member] = []
        self._lost: DeviceFault | None = None
        self._requests = 0
        self.last_run = 0
        self._is_closed = False
        self.opened: list[m.Opened] = []
        try:
            self._members = list(start.members(token))
        except BaseException:
            self._link.close()
            raise

    @property
    def names(self) -> list[str]:
        """Names of the machines, by number."""
        return [member.name for member in self._members]

    def open(self, wanted: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """Let the workers open devices; see ``open_group``.

        Raises:
            BackendUnavailable: a machine that is not there, or of another version.
            GgschedError: what a machine says of its devices.
        """
        names = {member.name: member for member in self._members}
        for name, _ in wanted:
            if name not in names:
                raise BackendUnavailable(
                    "no such machine",
                    where=f"{self.scheme}://{name}",
                    hint=f"machines: {', '.join(names)}",
                )
        if wanted:
            kept = [names[name] for name, _ in wanted]
            for member in self._members:
                if member not in kept:
                    self._link.send(member.address, m.Close())
                    member.end(END_S)
            self._members = kept
        devices = dict(wanted)
        number = self._next()
        found = self._request(
            {
                machine: (self._open(number, devices.get(member.name, ())), ())
                for machine, member in enumerate(self._members)
            }
        )
        by_machine = {k: message for k, (message, _) in found.items()}
        self.opened = [o for _, o in sorted(by_machine.items()) if isinstance(o, m.Opened)]
        for machine, message in enumerate(self.opened):
            if message.version != m.version():
                raise self._other_version(machine, message.version)

    def _open(self, number: int, names: tuple[str, ...]) -> m.Open:
        address, timeout_s = self._link.address, self.timeout_s
        return m.Open(number, m.version(), address, names, self._backends, timeout_s)

    def _other_version(self, machine: int, version: str) -> BackendUnavailable:
        return BackendUnavailable(
            f"has {version}",
            where=self.where(machine),
            why=f"the driver has {m.version()}",
            hint="install the same version on all machines",
        )

    def join(self, topology: Topology, first: Sequence[int]) -> None:
        """Tell the workers of each other.

        Args:
            topology: All devices.
            first: Number of the first device of each machine.
        """
        self._topology, self._first = topology_to_text(topology), tuple(first)

    def configure(self, *, timeout_s: float, capture: bool, checked: bool, records: bool) -> None:
        """Restart the workers, with nothing on their devices."""
        self.timeout_s = timeout_s
        addresses = tuple(member.address for member in self._members)
        settings = (timeout_s, capture, checked, records)
        number = self._next()
        self._request(
            {
                k: (m.Join(number, k, f, addresses, self._topology, *settings), ())
                for k, f in enumerate(self._first)
            }
        )

    def bind(
        self, key: int, digest: str, graph: bytes, plan: bytes, parts: Mapping[int, Part]
    ) -> None:
        """Let each machine make what its part of a plan needs; they request weights meanwhile."""
        number = self._next()
        self._request(
            {k: (m.Bind(number, key, digest, p), (graph, plan)) for k, p in parts.items()}
        )

    def run(self, key: int, inputs: Mapping[int, Frames]) -> dict[int, Frames]:
        """Run the parts of a plan; return the outputs that each machine hands over."""
        number = self.last_run = self._next()
        found = self._request({k: (m.Run(number, key), f) for k, f in inputs.items()})
        return {machine: frames for machine, (_, frames) in found.items()}

    def manage(
        self, what: str, *, key: int = -1, names: Sequence[str] = ()
    ) -> dict[int, dict[str, dict[str, int]]]:
        """Send ``messages.Manage`` to all machines; return the sizes that they report."""
        number = self._next()
        asked = m.Manage(number, what, key, tuple(names))
        found = self._request(dict.fromkeys(range(len(self._members)), (asked, ())))
        return {k: done.sizes for k, (done, _) in found.items() if isinstance(done, m.Done)}

    def calibrate(self, machine: int, seconds: float) -> Calibration:
        """Let a machine measure its devices; nothing else should run there."""
        asked = m.Calibrate(self._next(), seconds)
        _, frames = self._request({machine: (asked, ())})[machine]
        with self.reading(machine):
            return msgspec.msgpack.decode(frames[0], type=Calibration)

    def probe(self, machine: int, other: int, seconds: float) -> list[LinkSample]:
        """Let a machine measure messages to another."""
        asked = m.Probe(self._next(), self._members[other].address, seconds)
        _, frames = self._request({machine: (asked, ())})[machine]
        with self.reading(machine):
            return msgspec.msgpack.decode(frames[0], type=list[LinkSample])

    def clock_offsets(self) -> list[ClockOffset]:
        """Return how far the clock of each machine is ahead of the one here."""
        pinger = Pinger(self._link, self.timeout_s)
        return [pinger.offset(member.address) for member in self._members]

    def recorded(self) -> dict[int, MachineRecord]:
        """Return what the machines have recorded so far, by machine."""
        asked = m.Manage(self._next(), "recorded")
        found = self._request(dict.fromkeys(range(len(self._members)), (asked, ())))
        records: dict[int, MachineRecord] = {}
        for k, (_, frames) in sorted(found.items()):
            with self.reading(k):
                record = msgspec.msgpack.decode(frames[0], type=MachineRecord | None)
            if record is not None:
                records[k] = record
        return records

    @property
    def is_over(self) -> bool:
        """Whether a machine was lost or the session was closed: no request can be sent any more."""
        return self._lost is not None or self._is_closed

    def close(self) -> None:
        """End all workers; legal twice and after a fault."""
        if self._is_closed:
            return
        self._is_closed = True
        for member in self._members:
            if not member.why_gone():
                self._link.send(member.address, m.Close())
        until = self._link.now() + END_S
        for member in self._members:
            member.end(max(0.1, until - self._link.now()))
        self._link.close()

    @contextmanager
    def reading(self, machine: int) -> Iterator[None]:
        """Name the machine whose answer the block cannot read.

        Raises:
            DeviceFault: the block raised an error that data causes.
        """
        try:
            yield
        except (
            GgschedError,
            msgspec.MsgspecError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            text = error.one_line() if isinstance(error, GgschedError) else str(error)
            raise DeviceFault(
                "its answer cannot be read",
                where=self.where(machine),
                why=text or type(error).__name__,
                hint="this is a defect: report it",
            ) from error

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def where(self, machine: int) -> str:
        """Return the name of a machine for people."""
        return f"{self.scheme}://{self._members[machine].name}"

    def _request(
        self, asked: Mapping[int, tuple[m.Request, Frames | tuple[bytes, ...]]]
    ) -> dict[int, tuple[m.Any_, Frames]]:
        """Send a request to machines and wait for all answers.

        Raises:
            GgschedError: the first error of a machine, all others having been given up.
        """
        if self._is_closed:
            raise UsageError("its devices have been closed", where=f"{self.scheme}://")
        if self._lost is not None:
            raise self._lost
        for machine, (message, frames) in asked.items():
            self._link.send(self._members[machine].address, message, *frames)
        request = next(message for message, _ in asked.values())
        kind = m.Opened if isinstance(request, m.Open) else m.Done
        return _Answers(self, request.id, kind, list(asked)).collect()


@dataclass(slots=True)
class _Seen:
    """What is known of a machine that has not answered.

    Attributes:
        heard_s: When something came of it.
        moved_s: When its progress changed.
        beat: Its last beat.
    """

    heard_s: float
    moved_s: float
    beat: m.Beat | None = None


class _Answers:
    """The answers to one request, as they come."""

    def __init__(self, driver: Driver, number: int, kind: type, machines: Sequence[int]) -> None:
        self._d, self._link, self._number, self._kind = driver, driver._link, number, kind
        self._pending = set(machines)
        self._found: dict[int, tuple[m.Any_, Frames]] = {}
        self._errors: list[GgschedError] = []
        self._echoes: list[GgschedError] = []
        self._source_failure: Exception | None = None
        self._is_given_up, self._given_up_at = False, 0.0
        now = self._link.now()
        self._seen = {machine: _Seen(now, now) for machine in machines}

    def collect(self) -> dict[int, tuple[m.Any_, Frames]]:
        """Wait for all; raise the first error."""
        try:
            self._wait()
        except BaseException:  # a signal: whoever waits for messages must not go on
            self._abort("the driver was interrupted")
            raise
        if self._source_failure is not None:
            raise self._source_failure
        if self._errors:
            first, *others = self._errors
            for other in others:
                first.add_note(f"then: {other}")
            raise first
        if self._echoes:
            raise self._echoes[0]
        return self._found

    def _wait(self) -> None:
        look = self._link.now() + LOOK_S
        while self._pending:
            now = self._link.now()
            found = self._link.poll(max(0.0, look - now))
            if found is not None:
                self._take(*found)
            if self._link.now() >= look:
                self._look(is_quiet=self._drain())
                look = self._link.now() + LOOK_S

    def _drain(self) -> bool:
        """Take what has come; return whether that is all."""
        for _ in range(MAX_TAKEN):
            found = self._link.poll(0.0)
            if found is None:
                return True
            self._take(*found)
        return False

    def _take(self, message: m.Any_, frames: Frames) -> None:
        addresses = [member.address for member in self._d._members]
        worker = getattr(message, "worker", "")
        if worker not in addresses:
            return
        machine = addresses.index(worker)
        if isinstance(message, m.Warned):
            for text in message.texts:
                _LOG.warning("%s: %s", self._d.where(machine), text)
        if machine not in self._pending:
            if isinstance(message, m.Wanted):
                self._give(machine, message)
            return
        seen = self._seen[machine]
        seen.heard_s = self._link.now()
        if isinstance(message, m.Beat):
            if seen.beat is None or message.progress != seen.beat.progress:
                seen.moved_s = seen.heard_s
            seen.beat = message
        elif isinstance(message, m.Wanted):
            self._give(machine, message)
            seen.moved_s = self._link.now()
        elif isinstance(message, m.Failed) and message.id == self._number:
            self._pending.discard(machine)
            error = self._error(machine, message)
            (self._echoes if message.is_echo else self._errors).append(error)
            self._give_up(error)
        elif (
            isinstance(message, m.Done | m.Opened)
            and isinstance(message, self._kind)
            and message.id == self._number
        ):
            self._pending.discard(machine)
            self._found[machine] = (message, frames)

    def _give(self, machine: int, wanted: m.Wanted) -> None:
        """Say what a weight is that a machine requests, and send it where it has none."""
        link, address, name = self._link, self._d._members[machine].address, wanted.name
        try:
            if self._d.source is None:
                raise KeyError(name)
            offer, data = offer_of(self._d.source(name), with_digest=wanted.keeps)
        except KeyError:
            link.send(address, m.Weight(name, why="no data for this weight"))
        except Exception as error:  # raised here when the machines know
            link.send(address, m.Weight(name, why=str(error)))
            self._source_failure = self._source_failure or error
        else:
            is_sent = wanted.sent or not (offer.path or offer.digest)
            if is_sent and self._d.sent is not None:
                self._d.sent(name, offer.nbytes)
            link.send(address, m.Weight(name, offer), *([data] if is_sent else []))

    def _look(self, *, is_quiet: bool) -> None:
        """Look for machines that are gone, do not answer, or make no progress.

        Silence counts only where everything that was sent has been read.
        """
        now, timeout_s = self._link.now(), self._d.timeout_s
        for machine in sorted(self._pending):
            why = self._d._members[machine].why_gone()
            if not why and is_quiet and now - self._seen[machine].heard_s > timeout_s:
                why = f"nothing was heard of it for {timeout_s:g} s"
            if not why and self._is_given_up and now - self._given_up_at > 2 * timeout_s:
                why = f"it did not give up the run within {2 * timeout_s:g} s"
            if why:
                self._lose(machine, why)
        if is_quiet and self._pending and not self._is_given_up:
            self._look_for_progress(now)

    def _look_for_progress(self, now: float) -> None:
        """Give up a request that does not get on; see the module."""
        limit_s = self._d.timeout_s + 2 * m.beat_period_s(self._d.timeout_s)
        waiting: list[str] = []
        for machine in sorted(self._pending):
            seen, where = self._seen[machine], self._d.where(machine)
            if now - seen.moved_s <= limit_s or seen.beat is None:
                continue
            if seen.beat.request != self._number:
                why = f"{where} is idle: the request or its answer was lost on the way"
                self._stalled(why, "look at the network, and run it again")
                return
            if not seen.beat.waits_for:
                why = f"no progress for {self._d.timeout_s:g} s, and it waits for no message"
                self._lose(machine, why, "wait longer (GGSCHED_TIMEOUT_S), or look at the machine")
                return
            waiting.append(f"{where} for {seen.beat.waits_for}")
        if len(waiting) == len(self._pending):
            self._stalled(
                f"machines wait for each other: {', '.join(waiting)}",
                "a message was lost: look at the network; else report it with the plan",
            )

    def _stalled(self, why: str, hint: str) -> None:
        what, where = f"no progress for {self._d.timeout_s:g} s", f"{self._d.scheme}://"
        error = SyncTimeout(what, where=where, why=why, hint=hint)
        self._errors.append(error)
        self._link.renew()
        self._give_up(error)

    def _lose(self, machine: int, why: str, remedy: str = "") -> None:
        self._pending.discard(machine)
        hint = "reset() goes on with the machines that are left"
        error = DeviceFault(
            "the machine was lost",
            where=self._d.where(machine),
            why=why,
            hint=f"{hint}; {remedy}" if remedy else hint,
        )
        self._d._lost = error
        self._errors.append(error)
        self._give_up(error)

    def _give_up(self, error: GgschedError) -> None:
        """Tell the others that they wait in vain."""
        if self._is_given_up:
            return
        self._is_given_up, self._given_up_at = True, self._link.now()
        self._abort(error.one_line())

    def _abort(self, why: str) -> None:
        for machine in self._pending:
            self._link.send(self._d._members[machine].address, m.Abort(self._number, why))

    def _error(self, machine: int, failed: m.Failed) -> GgschedError:
        """Return the error of a machine as one of this process."""
        kind = getattr(ggsched.errors, failed.kind, DeviceFault)
        if not (isinstance(kind, type) and issubclass(kind, GgschedError)):
            kind = DeviceFault
        where = self._d.where(machine)
        if failed.where:
            where = failed.where if failed.where.startswith(where) else f"{where}: {failed.where}"
        error: GgschedError = kind(failed.what, where=where, why=failed.why, hint=failed.hint)
        for note in failed.notes:
            error.add_note(note)
        return error
