"""Progress messages of devices, such as ``compiling kernels: 3 of 12``.

Outside the contract, like times: a device may report nothing. A caller of a method that may take
seconds sets with ``stages_reported_to`` which function gets the messages of its own thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_LISTENER: Final[ContextVar[Callable[[str], object] | None]] = ContextVar("stage", default=None)


@contextmanager
def stages_reported_to(listener: Callable[[str], object]) -> Iterator[None]:
    """Pass messages of ``report_stage`` to a listener, for calls of this thread in the block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report_stage(what: str) -> None:
    """Report what is being done to the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what)
