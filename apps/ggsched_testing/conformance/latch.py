"""Holding a stream until a case lets it go, always with an end.

A stream is held by letting it wait for an event of a made-up device of another backend, which the
case completes. That needs a device which waits for foreign events without blocking the caller
(``wait_path`` other than ``host``, ``is_async``); other devices bring a latch of their own, or are
decided by the bytes alone.
"""

import threading
from typing import Final, Protocol

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.protocols import Device, Stream
from ggsched.errors import SyncTimeout
from ggsched.topology.caps import DeviceFacts

ELSEWHERE: Final = "elsewhere"
"""Name of the made-up backend."""


class Latch(Protocol):
    """What holds a stream. Made in one go with holding it."""

    def release(self) -> None:
        """Let the stream go on; legal twice."""


class HostEvent:
    """An event of the made-up device: recorded from the start, done when the case says so."""

    def __init__(self) -> None:
        self.device: Device = elsewhere()
        self.is_closed = False
        self._done = threading.Event()
        self._error: Exception | None = None

    @property
    def is_recorded(self) -> bool:
        """True."""
        return True

    @property
    def is_done(self) -> bool:
        """Whether it was released."""
        return self._done.is_set()

    def sync(self, timeout_s: float) -> None:
        """Block until it is released; raises what it was released with."""
        if not self._done.wait(min(timeout_s, threading.TIMEOUT_MAX)):
            raise SyncTimeout(f"the case holds this event, for {timeout_s:g} s by now")
        if self._error is not None:
            raise self._error

    def release(self, error: Exception | None = None) -> None:
        """Complete it, or let it fail; legal twice."""
        if not self._done.is_set():
            self._error = error
            self._done.set()

    def close(self) -> None:
        """Note it; waits continue."""
        self.is_closed = True


def elsewhere(**facts: object) -> Device:
    """Return a device of a backend that nobody knows, with host memory."""
    return BaseDevice(elsewhere_facts(**facts), {})


def elsewhere_facts(**facts: object) -> DeviceFacts:
    """Return its facts."""
    return host_facts(ELSEWHERE, (), **facts)


def can_wait_for_host_events(device: Device) -> bool:
    """Whether a stream can be held by a ``HostEvent`` while the caller goes on."""
    facts = device.facts
    if not (facts.has_events and facts.is_async):
        return False
    return device.wait_path(elsewhere_facts()) != "host"


def hold_by_event(stream: Stream) -> Latch:
    """Hold a stream by a foreign event (EVT-4)."""
    event = HostEvent()
    stream.wait(event)
    return event
