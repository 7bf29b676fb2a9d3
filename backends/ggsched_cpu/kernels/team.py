"""The threads that run kernels: one team for the process, however many devices and streams it has.

A stretch of kernels that is worth several threads takes the whole team; who finds it at work waits,
so that there are never more threads computing than the team has. A stretch of small kernels runs on
its caller's thread. Members spin for a millisecond after a job and then sleep. They end when the
last user has gone, and after a fork the child has a team of its own.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ggsched_cpu.kernels import walk
from ggsched_cpu.kernels.emit import SCRATCH_NBYTES

IDLE_NS: Final = 1_000_000
"""How long a member without a job looks for one before it sleeps. Between two tokens, and between
two launches beside a GPU, 0.1 to 0.5 ms go by. To wake sleepers takes the leader a call of the
system for each, and they need 20 to 50 us to come."""

BARRIER_SPINS: Final = 2_000
"""How often a member at a barrier looks before it offers its processor to others."""

Slots = npt.NDArray[np.int64]
Native = Callable[..., None]


class Table(NamedTuple):
    """Entries of four slots each, and where they lie: numpy takes long to say it at each run."""

    slots: Slots
    address: int
    entries: int

    @classmethod
    def of(cls, slots: Slots) -> "Table":
        """Return the table of an array (entries, 4)."""
        return cls(slots, slots.ctypes.data, len(slots))


@dataclass(frozen=True, slots=True)
class Functions:
    """Addresses of the functions of ``walk``."""

    run_alone: int
    lead: int
    member: int
    stop: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What a kernel reports.

    Attributes:
        entry: Index of the entry in the table.
        row: The id that is out of range, as 32 bits.
    """

    entry: int
    row: int


def _libc_addresses() -> dict[int, int]:
    libc = ctypes.CDLL(None)
    names = {
        walk.SEM_WAIT: "sem_wait",
        walk.SEM_POST: "sem_post",
        walk.YIELD: "sched_yield",
        walk.CLOCK: "clock_gettime",
    }
    found = {}
    for slot, name in names.items():
        address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        assert address is not None
        found[slot] = address
    return found


def _aligned(slots: int) -> Slots:
    raw = np.zeros(slots + 8, np.int64)
    start = (-raw.ctypes.data % 64) // 8
    return raw[start : start + slots]


class Control:
    """A control block and scratch memory for some threads, see ``walk``."""

    def __init__(self, threads: int) -> None:
        self.slots = _aligned(walk.control_slots(threads))
        self.scratch = [_aligned(SCRATCH_NBYTES // 8) for _ in range(threads)]
        for slot, address in _libc_addresses().items():
            self.slots[slot] = address
        self.slots[[walk.THREADS, *walk.NEXT_COUNTERS]] = threads
        self.slots[walk.IDLE_NS] = IDLE_NS
        self.slots[walk.BARRIER_SPINS] = BARRIER_SPINS
        # The same memory, of which numpy would make an object for each slot that is read.
        self._words = (ctypes.c_int64 * len(self.slots)).from_buffer(self.slots.data)
        self.address = self.slots.ctypes.data
        self.scratch_address = self.scratch[0].ctypes.data

    @property
    def position(self) -> int:
        """Number of the entry that runs."""
        return self._words[walk.POSITION]

    def run(self, native: Native, table: Table, times: Slots | None) -> Fault | None:
        """Run a table by a function of ``walk``."""
        words = self._words
        words[walk.TABLE], words[walk.COUNT] = table.address, table.entries
        words[walk.TIMES] = 0 if times is None else times.ctypes.data
        native(self.address, self.scratch_address)
        at = words[walk.FAULT_AT]
        if not at:
            return None
        words[walk.FAULT_AT] = 0
        return Fault(at - 1, words[walk.FAULT] - 1)


_RUN: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_MEMBER: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


class Team:
    """Threads that compute together. Users enter and leave; without users there are no threads.

    Args:
        functions: Of ``walk``.
        threads: How many compute, the caller among them.
    """

    def __init__(self, functions: Functions, threads: int) -> None:
        self.threads = threads
        self._lead: Native = _RUN(functions.lead)
        self._stop: Native = _RUN(functions.stop)
        self._member: Any = _MEMBER(functions.member)
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._users = 0
        self._control: Control | None = None
        self._members: Sequence[threading.Thread] = ()

    def enter(self) -> None:
        """Count a user."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Forget a user; the last one ends the threads."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users -= 1
            if self._users or self._control is None:
                return
            self._stop(self._control.address, 0)
            for thread in self._members:
                thread.join()
            self._control, self._members = None, ()

    @property
    def position(self) -> int:
        """Number of the entry that runs."""
        control = self._control
        return 0 if control is None else control.position

    def run(self, table: Table, times: Slots | None) -> Fault | None:
        """Run a table on all threads; wait for the team if another stream has it."""
        with self._lock:
            control = self._control
            if control is None:
                control = self._control = Control(self.threads)
                self._members = self._start(control)
            return control.run(self._lead, table, times)

    def _start(self, control: Control) -> Sequence[threading.Thread]:
        members = []
        for i in range(1, self.threads):
            arguments = control.address, i, 0, control.scratch[i].ctypes.data
            thread = threading.Thread(
                target=self._member, args=arguments, name=f"ggsched team {i}", daemon=True
            )
            thread.start()
            members.append(thread)
        return members


class Lone:
    """Runs tables on the caller's thread.

    Args:
        functions: Of ``walk``.
    """

    threads: Final = 1

    def __init__(self, functions: Functions) -> None:
        self._native: Native = _RUN(functions.run_alone)
        self._control = Control(1)

    @property
    def position(self) -> int:
        """Number of the entry that runs."""
        return self._control.position

    def run(self, table: Table, times: Slots | None) -> Fault | None:
        """Run a table. One thread at a time may do so."""
        return self._control.run(self._native, table, times)
