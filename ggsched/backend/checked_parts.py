"""Buffers and events behind checks; see ``ggsched.backend.checked``."""

from collections.abc import Sequence
from typing import Final, Protocol

from ggsched.backend import checks
from ggsched.backend.call_log import Call, misuse, new_call_log, with_call_log
from ggsched.backend.host_borrow import digest
from ggsched.backend.ledger import Clock, Ledger
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory
from ggsched.errors import GgschedError, UsageError

Ranges = Sequence[tuple[int, int]]

MANY: Final = 64
"""Entries of a buffer after which those that are known to be complete are dropped."""


class CheckingDevice(Device, Protocol):
    """What its parts use of a device behind checks."""

    @property
    def name(self) -> str:
        """Name of the device."""

    @property
    def ledger(self) -> Ledger:
        """What the host knows to be complete."""

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed."""


def overlap(one: Ranges, other: Ranges) -> bool:
    """Whether two sets of ranges have a byte in common."""
    return any(a < d and c < b for a, b in one for c, d in other)


class Uses:
    """Commands that use bytes of one buffer in one way."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: dict[tuple[int, object], tuple[int, Call, Ranges]] = {}

    def note(self, name: object, ranges: Ranges, stream: int, position: int, called: Call) -> None:
        """Take note of a command; a name stands for the same bytes of the same command."""
        if len(self._last) >= MANY:
            known = self._ledger.is_known
            self._last = {k: v for k, v in self._last.items() if not known(k[0], v[0])}
        self._last[stream, name] = (position, called, ranges)

    def under_way(self, ranges: Ranges) -> Call | None:
        """Return a command that is not known to be complete and uses some of these bytes."""
        for (stream, _), (position, called, theirs) in self._last.items():
            if not self._ledger.is_known(stream, position) and overlap(ranges, theirs):
                return called
        return None


class CheckedBuffer:
    """A buffer that knows which commands use it (BUF-2, LCH-7).

    Args:
        inner: The backend's buffer.
        device: The device behind checks.
        name: For messages.
        lent: Host memory that it was made of, with its checksum.
    """

    def __init__(
        self,
        inner: Buffer,
        device: CheckingDevice,
        name: str,
        *,
        lent: tuple[HostMemory, int] | None = None,
    ) -> None:
        self.inner = inner
        self.device = device
        self.name = name
        self.is_closed = False
        self.call_log = new_call_log()
        self._lent = lent
        self.writes, self.constants = Uses(device.ledger), Uses(device.ledger)
        self._uses: dict[int, tuple[int, Call]] = {}

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.inner.nbytes

    def __getattr__(self, name: str) -> object:
        """Offer what the inner buffer offers for interop (INT-1, INT-2)."""
        if name.startswith("__") and name.endswith("__"):
            return getattr(self.inner, name)
        raise AttributeError(name)

    def host_view(self) -> HostMemory:
        """Return the bytes themselves (BUF-4)."""
        self.require_open("host_view")
        self.call_log.append(self.device.ledger.call(self.name, "host_view"))
        return self.inner.host_view()

    def close(self) -> None:
        """Release the memory; legal twice (ERR-3).

        Raises:
            UsageError: a command may still use it (BUF-2), and it stays open; or it was made of
                host memory that somebody has changed since (CPY-4).
        """
        if self.is_closed:
            return
        ledger = self.device.ledger
        called = ledger.call(self.name, "close")
        if not self.device.is_closed:
            for stream, (position, use) in self._uses.items():
                if not ledger.is_known(stream, position):
                    raise misuse(
                        "BUF-2",
                        "the buffer is closed while a command may still use it",
                        where=self.name,
                        why=f"the host does not know that {use} is complete",
                        hint="sync that stream, or an event behind the command, before close()",
                        call_log=(*self.call_log, called),
                    )
        self.is_closed = True
        self.inner.close()
        if self._lent is not None and digest(self._lent[0]) != self._lent[1]:
            raise misuse(
                "CPY-4",
                "imported host memory changed while it was borrowed",
                where=self.name,
                call_log=self.call_log,
            )

    # --- for streams ---------------------------------------------------------------------------

    def require_open(self, command: Call | str) -> None:
        """Refuse a buffer that was closed (ERR-3)."""
        if self.is_closed or self.device.is_closed:
            error = UsageError(
                f"buffer {self.name} is closed",
                where=str(command),
                hint="nothing can be called after close()",
            )
            raise with_call_log(error, self.name, self.call_log)

    def use(self, stream: int, position: int, called: Call) -> None:
        """Take note of a command that uses it."""
        self._uses[stream] = (position, called)
        self.call_log.append(called)


class CheckedEvent:
    """An event that knows what it stands for (EVT-1..6)."""

    def __init__(self, inner: Event, device: CheckingDevice, name: str) -> None:
        self.inner = inner
        self.device = device
        self.name = name
        self.is_closed = False
        self.call_log = new_call_log()
        self.clock: Clock | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether a stream has recorded it."""
        self._require_open()
        return self.inner.is_recorded

    @property
    def is_done(self) -> bool:
        """Whether it is done; if so the host knows that its work is complete (EVT-5)."""
        self._require_open()
        done = self.inner.is_done
        if done and self.clock is not None:
            self.device.ledger.learn(self.clock)
        return done

    def sync(self, timeout_s: float) -> None:
        """Block until done (EVT-5)."""
        self._require_open()
        self.call_log.append(self.device.ledger.call(self.name, "sync", (timeout_s,)))
        if self.clock is None:
            raise misuse(
                "EVT-3",
                "the event was not recorded",
                where=self.name,
                why="waiting for it would never end",
                hint="record it on a stream first",
                call_log=self.call_log,
            )
        try:
            self.inner.sync(timeout_s)
        except GgschedError as error:
            with_call_log(error, self.name, self.call_log)
            raise
        self.device.ledger.learn(self.clock)

    def close(self) -> None:
        """Release it; legal twice (ERR-3)."""
        if not self.is_closed:
            self.is_closed = True
            self.call_log.append(self.device.ledger.call(self.name, "close"))
        self.inner.close()

    def _require_open(self) -> None:
        if self.is_closed:
            raise with_call_log(checks.closed_error(f"event {self.name}"), self.name, self.call_log)
