"""The exception tree.

Every error says what happened, to which object, why, and what to do about it. ``code`` is
stable and documented in ``docs/reference/errors.md``; ``exit_code`` is what the command line
returns: 2 where what was requested cannot be had (usage, bad input, a defective plug-in, too
little memory), 3 where the environment fails (no library or driver, a fault, a timeout, a defect).

After an exception a documented state holds: nothing was half created, and a second failure is
attached as a note (PEP 678), never swallowed.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from ggsched.printable import printable

_MAX_LINE: Final = 1600


class GgschedError(Exception):
    """Base of all errors raised by ggsched.

    Attributes:
        what: What happened, in a phrase.
        where: The object concerned (an id, a file, a device), or "".
        why: The reason, where known.
        hint: What to do next.
        details: Recent events of the object, oldest first.

    Examples:
        >>> from ggsched import GgschedError, open_devices
        >>> try:
        ...     open_devices(["cpu"], allow=["no such backend"])
        ... except GgschedError as error:
        ...     print(error.exit_code, error.what)
        2 no backend 'no such backend' is installed
    """

    code: ClassVar[str] = "GGSCHED"
    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        why: str = "",
        hint: str = "",
        details: Sequence[str] = (),
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint
        self.details = tuple(details)
        super().__init__(self.one_line())

    def one_line(self) -> str:
        """Return the message on one line: ``where: what: why (hint)``.

        Names in files may hold anything; what acts on a terminal is written out.

        Examples:
            >>> GgschedError("too small", where="x", why="8 bytes", hint="give 16").one_line()
            'x: too small: 8 bytes (give 16)'
        """
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            text += f": {self.why}"
        if self.hint:
            text += f" ({self.hint})"
        text = printable(" ".join(text.split()))
        if len(text) > _MAX_LINE:  # names in files may have any length
            half = _MAX_LINE // 2
            text = f"{text[:half]} ... {text[-half:]}"
        return text


class GraphError(GgschedError):
    """A graph that is not well formed: shapes, types, views, names.

    Common causes: operand shapes that do not fit the op, a view outside its base, a reshape of
    a strided tensor (call ``cont`` first), a text form that does not parse.
    """

    code = "GRAPH"


class PlanError(GgschedError):
    """A plan that cannot be made, or an artifact that breaks an invariant.

    Common causes: no device supports a node, a pin that contradicts another, a write through a
    view whose storage lives where the op is not supported, a plan file of another version.
    """

    code = "PLAN"


class ModelError(GgschedError):
    """A model file that is broken or of an architecture that is not known."""

    code = "MODEL"


class UsageError(GgschedError):
    """A call or a command line that makes no sense: wrong order, wrong argument.

    Rules: EVT-3 (wait before record, second record), BUF-3 (region outside its buffer), CPY-3
    (overlap), ERR-3 (use after close).
    """

    code = "USAGE"


class InterchangeError(UsageError, BufferError):
    """An array that cannot be taken from, or given to, another library as it was requested.

    A ``BufferError`` as well, which is what DLPack's consumers expect of a producer that refuses.
    """

    code = "INTERCHANGE"


class BackendUnavailable(GgschedError):
    """A backend that cannot be used here, for one of four reasons.

    Its library is not installed, its library cannot be loaded, there is no driver, or there is
    no device. Anything else that a plug-in raises is a defect and shown as broken.
    """

    code = "UNAVAILABLE"
    exit_code = 3


class BackendBroken(GgschedError):
    """A plug-in that raised something else, lied about itself, or is of another version."""

    code = "BROKEN"
    exit_code = 2


class OutOfDeviceMemory(GgschedError):
    """More memory was requested than the device has (BUF-1). The device stays usable."""

    code = "MEMORY"
    exit_code = 2


class DeviceFault(GgschedError):
    """A command failed after it was accepted; its stream is poisoned (ERR-2)."""

    code = "FAULT"
    exit_code = 3


class TaskFailed(GgschedError):
    """A task of a task graph raised; what it raised is the cause. The runner stays usable.

    Examples:
        >>> from ggsched_task import TaskFailed, TaskGraph, TaskRunner
        >>> g = TaskGraph()
        >>> bad = g.add(int, g.input("text"), name="parse")
        >>> with TaskRunner() as runner:
        ...     try:
        ...         runner.run(g, {"text": "seven"}, [bad])
        ...     except TaskFailed as error:
        ...         print(type(error.__cause__).__name__)
        ValueError
    """

    code = "TASK"
    exit_code = 3


class TaskCancelled(GgschedError):
    """A run of a task graph was cancelled before it was done. The runner stays usable.

    Examples:
        >>> from ggsched_task import TaskCancelled, TaskGraph, TaskRunner
        >>> g, runner = TaskGraph(), TaskRunner()
        >>> first = g.add(runner.cancel)
        >>> second = g.add(print, first)
        >>> try:
        ...     runner.run(g, {}, [second])
        ... except TaskCancelled:
        ...     print("cancelled")
        cancelled
        >>> runner.close()
    """

    code = "CANCELLED"
    exit_code = 3


class SyncTimeout(GgschedError):
    """A wait of the host took longer than its timeout (STR-5). The stream stays usable."""

    code = "TIMEOUT"
    exit_code = 3


class RaceFound(GgschedError):
    """The sanitizer found a race or another defect in a plan."""

    code = "RACE"
    exit_code = 1


class InternalError(GgschedError):
    """A defect of ggsched itself. Please report it, with the plan."""

    code = "INTERNAL"
    exit_code = 3
