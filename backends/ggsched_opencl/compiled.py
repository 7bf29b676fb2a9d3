"""Contexts with what was compiled in them, kept for the next device when one is closed.

Even where its caches have everything, PoCL takes 35 ms of the processor for a program. Programs
belong to a context, so it is contexts that are kept. Each is one open device's alone.
"""

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from ggsched_opencl import driver
from ggsched_opencl.driver import Handle
from ggsched_opencl.locked_memory import LockedMemory

_KEPT: Final = 4
"""Contexts that are kept of each OpenCL device; those of a plan over several logical ones."""

_lock: Final = threading.Lock()
_contexts: Final[defaultdict[Handle, list["Compiled"]]] = defaultdict(list)


@dataclass(eq=False, slots=True)
class Compiled:
    """A context of one OpenCL device, its programs, and kernels that nobody uses.

    Attributes:
        programs: By name of the source and defines, which tell the text.
        idle: Kernel objects by name of the source, defines and name of the kernel.
        locked: Locked host memory.
        is_sound: Whether nothing went wrong in it; only then the next device takes it.
    """

    context: Handle
    programs: dict[tuple[object, ...], Handle] = field(default_factory=dict)
    idle: defaultdict[tuple[object, ...], list[Handle]] = field(
        default_factory=lambda: defaultdict(list)
    )
    is_sound: bool = True
    locked: LockedMemory = field(init=False)

    def __post_init__(self) -> None:
        """Begin without locked memory."""
        self.locked = LockedMemory(self.context)


def take(device: Handle) -> Compiled:
    """Return the context of a closed device, the newest that is kept, or else a fresh one."""
    with _lock:
        if kept := _contexts[device]:
            return kept.pop()
    return Compiled(driver.make_context(device))


def give_back(device: Handle, compiled: Compiled) -> None:
    """Keep the context of a device that is closed and drained, unless something went wrong."""
    with _lock:
        if compiled.is_sound and len(_contexts[device]) < _KEPT:
            _contexts[device].append(compiled)


def forget() -> None:
    """Let the next devices compile for themselves."""
    with _lock:
        _contexts.clear()
