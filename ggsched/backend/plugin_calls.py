"""Calls into devices of plug-ins whose faults are reported as theirs.

What the contract names passes: errors of ggsched. Anything else that a call raises, ``sys.exit``
included, and a result that is not what the contract says, is a defect of the plug-in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ggsched.backend.interrupts import is_interrupt
from ggsched.backend.plugins import REPORT, require_members
from ggsched.errors import BackendBroken, GgschedError, OutOfDeviceMemory

T = TypeVar("T")


def plugin_call(where: str, what: str, call: Callable[[], T], protocol: type | None = None) -> T:
    """Return what a call into a plug-in returns.

    Args:
        where: The device, for messages.
        what: The call, e.g. ``"allocate"``.
        protocol: What the result has to be, if it has members.

    Raises:
        BackendBroken: it raised what the contract does not name, or the result is something else.
        OutOfDeviceMemory: the host has no memory for it.
    """
    try:
        made = call()
    except GgschedError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise broken_by(where, what, error) from error
    if protocol is not None:
        require_members(where, f"the result of {what}", made, protocol)
    return made


@contextmanager
def plugin_faults(where: str, what: str) -> Iterator[None]:
    """Report errors of a block that moves bytes or runs kernels as faults of the plug-in.

    It may take long, so ``SystemExit`` and the like are taken for what a handler of a signal
    raises, and pass.

    Args:
        where: The device, for messages.
        what: What the block does, e.g. ``"upload"``.

    Raises:
        BackendBroken: it raised what the contract does not name.
        OutOfDeviceMemory: the host has no memory for it.
    """
    try:
        yield
    except GgschedError:
        raise
    except Exception as error:
        if is_interrupt(error):
            raise
        raise broken_by(where, what, error) from error


def broken_by(where: str, what: str, error: BaseException) -> GgschedError:
    """Return the error that says what a plug-in raised."""
    if isinstance(error, MemoryError):
        return OutOfDeviceMemory(
            f"{what}: the host has no memory for it", where=where, why=str(error)
        )
    text = " ".join(str(error).split())
    return BackendBroken(
        f"{what} raised {type(error).__name__}" + (f": {text}" if text else ""),
        where=where,
        hint=REPORT,
    )


def name_of(device: object) -> str:
    """Return the name of a device, for messages."""
    return str(getattr(getattr(device, "facts", None), "name", "a device"))
