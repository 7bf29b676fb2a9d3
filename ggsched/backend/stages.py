"""Who wants to know what is being done: a device tells it, as ``compiling kernels: 3 of 12``.

Outside the contract, like times: a device that says nothing is as right. Whoever asks something of
a device that may take seconds says with ``telling`` where the words go, in its own thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_LISTENER: Final[ContextVar[Callable[[str], object] | None]] = ContextVar("stage", default=None)


@contextmanager
def telling(listener: Callable[[str], object]) -> Iterator[None]:
    """Let ``tell`` reach a listener from calls that this thread makes in the block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(what: str) -> None:
    """Say what is being done, to whoever listens."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what)
