"""Settings: one prefix, one table, one parser.

``VARIABLES`` names every ``GGSCHED_*`` variable with its values and its meaning, and the page
``docs/reference/environment.md`` is its copy. A variable that is set and not in the table is an
error, so that a misspelt one does not go unnoticed. Setting a variable to nothing is the same as
not setting it; its mere presence never means true.

This module keeps no state. The command line and the facade read the settings once
and hand them down. Plug-ins do not import this module: a variable of a plug-in is in the table,
so that it is checked and listed, and the plug-in reads it by itself when it opens.
"""

import difflib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from ggsched.errors import UsageError

PREFIX: Final = "GGSCHED_"

Sanitize = Literal["off", "plan"]
Streams = int | Literal["auto", "autotune"]
Budget = tuple[tuple[str, int], ...]
"""(device name, bytes); the empty name stands for every device."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set from outside. The defaults here are the defaults everywhere.

    Attributes:
        backends: Names of the backends that may be used, in order of preference; None for all.
        timeout_s: How long the host waits for devices that make no progress.
        sanitize: ``plan`` checks every new plan for races before it runs.
        verify: Whether each plan is compared with its graph and the machine before it runs.
        fuse: Whether nodes that a device can compile as one run as one.
        debug: Level of messages on stderr: 0 nothing, 1 devices and sizes (and tracebacks),
            2 placement and splits with reasons, 3 commands with hazards, 4 each executed command.
        cpu_sync: Whether the backend ``cpu`` runs without worker threads.
        memory_budget: Bytes of intermediate results by device name, which waits may be added to
            keep.
        packing_effort: How long to look for a tighter packing of memory.
        streams: Streams per device: a number is the most that is used, wherever nodes are
            independent; ``auto`` uses several where the cost model predicts a gain; ``autotune``
            times both on real runs and keeps the better.
        seed: Decides what the simulator runs when.
        checked: Whether devices check their callers, see ``ggsched.backend.checked``.
        capture: Whether plans that run again are captured where devices offer it.
        ops: Modules that register user-defined ops, imported by the command line.
        activations: Whether products round their activations, see ``ggsched.backend.precision``;
            None for the default of each backend.
        threads: How many threads of the backend ``cpu`` compute; None for a physical core each.
        models: Folder in which a node of a cluster looks for files of models by their names.
        weight_cache: Folder in which a node of a cluster keeps weights that were sent to it.
        cpu_kernels: ``numpy`` lets the backend ``cpu`` compute by the reference arithmetic alone.
        rates: File of calibrated rates; ``auto`` is the one in the user's cache folder, if it is
            there, ``off`` none.

    Examples:
        >>> from ggsched import Scheduler, Settings
        >>> with Scheduler(["cpu:0"], settings=Settings(streams=1, timeout_s=5.0)) as scheduler:
        ...     scheduler.settings.streams
        1
    """

    backends: tuple[str, ...] | None = None
    timeout_s: float = 30.0
    sanitize: Sanitize = "plan"
    verify: bool = True
    fuse: bool = True
    debug: int = 0
    cpu_sync: bool = False
    memory_budget: Budget = ()
    packing_effort: int = 0
    streams: Streams = "auto"
    seed: int = 0
    checked: bool = False
    capture: bool = True
    ops: tuple[str, ...] = ()
    rates: str = "auto"
    activations: Literal["auto", "f32"] | None = None
    threads: int | None = None
    models: str | None = None
    weight_cache: str | None = None
    cpu_kernels: Literal["auto", "numpy"] = "auto"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **changes: Any) -> Self:
        """Read the environment once; ``changes`` win over it.

        Args:
            environ: Variables to read instead of the process's.
            **changes: Fields that the caller decides, e.g. from options of the command line.

        Raises:
            UsageError: a ``GGSCHED_*`` variable that does not exist, or a value that it does not
                take.

        Examples:
            >>> Settings.from_environment({"GGSCHED_TIMEOUT_S": "5"}, streams=1).timeout_s
            5.0
        """
        given = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name in sorted(n for n in given if n.startswith(PREFIX)):
            variable = _variable(name)
            if given[name].strip():
                values[variable.field] = variable.read(given[name].strip())
        return cls(**{**values, **changes})


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        name: Its name.
        field: The field of ``Settings`` that it sets.
        values: What it takes, in words for people.
        meaning: What it does.
        parse: Turns text into the value, or raises ``ValueError``.
        owner: ``ggsched``, or the name of the backend that reads the variable itself.
        unset: What applies where it is not set, in words, if that is not a value of the variable.
    """

    name: str
    field: str
    values: str
    meaning: str
    parse: Callable[[str], Any]
    owner: str = "ggsched"
    unset: str = ""

    @property
    def default(self) -> str:
        """The default as one would write it."""
        if self.unset:
            return self.unset
        value = getattr(Settings(), self.field)
        if isinstance(value, bool):
            return str(int(value))
        if value == ():
            return "none"
        return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def read(self, text: str) -> Any:
        """Parse a value.

        Raises:
            UsageError: the variable does not take it.
        """
        try:
            return self.parse(text)
        except ValueError:
            raise UsageError(
                f"invalid value {text!r}", where=self.name, hint=f"it takes {self.values}"
            ) from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(text)
    return names


def _names_or_none(text: str) -> tuple[str, ...]:
    return () if text == "none" else _names(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**64:
        raise ValueError(text)
    return value


def read_streams(text: str) -> Streams:
    """Read ``auto``, ``autotune`` or a number of streams.

    Raises:
        ValueError: it is none of these.
    """
    match text:
        case "auto":
            return "auto"
        case "autotune" | "measure":  # the old name is accepted for one release
            return "autotune"
    value = int(text)
    if not 1 <= value <= MAX_STREAMS:
        raise ValueError(text)
    return value


def read_threads(text: str) -> int:
    """Read a number of threads.

    Raises:
        ValueError: it is none.
    """
    value = int(text)
    if not 1 <= value <= MAX_THREADS:
        raise ValueError(text)
    return value


def read_budget(text: str) -> Budget:
    """Read ``64MiB`` or ``opencl:0=64MiB,cpu:0=1GiB``; ``none`` is not a budget.

    Raises:
        ValueError: it is neither, or names a device twice.
    """
    if text == "none":
        return ()
    budget: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().rpartition("=")
        if name in budget or ("=" in part and not name):
            raise ValueError(text)
        budget[name] = read_size(size)
    return tuple(sorted(budget.items()))


def read_size(text: str) -> int:
    """Read a number of bytes such as ``65536``, ``1.5KiB`` or ``64MiB``.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(text)
    nbytes = float(found[1]) * _UNITS[found[2]]
    if not nbytes.is_integer():
        raise ValueError(text)
    return int(nbytes)


def _one_of(*choices: Any) -> Callable[[str], Any]:
    table = {str(choice): choice for choice in choices}

    def parse(text: str) -> Any:
        if text not in table:
            raise ValueError(text)
        return table[text]

    return parse


def _flag(text: str) -> bool:
    return bool(_one_of(0, 1)(text))


MAX_STREAMS: Final = 64
MAX_THREADS: Final = 512
_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)(|[KMG]iB)")

VARIABLES: Final[tuple[Variable, ...]] = (
    Variable(
        "GGSCHED_ACTIVATIONS",
        "activations",
        "auto or f32",
        "auto: activations are rounded where the weights of a product are: cuda rounds them to 16 "
        "bits in products of many rows, cpu to 8 bits beside packed weights "
        "and to bf16 beside bf16 where processors multiply such pairs; "
        "f32: they keep what f32 results need.",
        _one_of("auto", "f32"),
        owner="cuda and cpu",
        unset="auto on cpu and cuda",
    ),
    Variable(
        "GGSCHED_BACKENDS",
        "backends",
        "names with commas between them, e.g. opencl,cpu",
        "Which backends may be used, in order of preference.",
        _names,
    ),
    Variable(
        "GGSCHED_CAPTURE",
        "capture",
        "0 or 1",
        "1: a plan that runs again is captured as graphs on devices that offer it, such as GPUs; "
        "0: its commands are enqueued one by one.",
        _flag,
    ),
    Variable(
        "GGSCHED_CHECKED",
        "checked",
        "0 or 1",
        "1: every call on a device is checked against the contract: order, lifetimes, regions, "
        "host memory that is borrowed.",
        _flag,
    ),
    Variable(
        "GGSCHED_CPU_KERNELS",
        "cpu_kernels",
        "auto or numpy",
        "auto: the backend cpu computes with kernels that LLVM compiles for the processor; numpy: "
        "it runs every node by the reference arithmetic, which is exact and slow.",
        _one_of("auto", "numpy"),
        owner="cpu",
    ),
    Variable(
        "GGSCHED_CPU_SYNC",
        "cpu_sync",
        "0 or 1",
        "1: the backend cpu runs everything in the calling thread, without worker threads.",
        _flag,
        owner="cpu",
    ),
    Variable(
        "GGSCHED_DEBUG",
        "debug",
        "0 to 4",
        "Messages on stderr: 1 devices, sizes and the traceback of an error, 2 placement and "
        "splits with reasons, 3 commands with hazards, 4 each executed command.",
        _one_of(0, 1, 2, 3, 4),
    ),
    Variable(
        "GGSCHED_FUSE",
        "fuse",
        "0 or 1",
        "0: every node runs by itself, also where a device can compile groups of nodes as one.",
        _flag,
    ),
    Variable(
        "GGSCHED_MEMORY_BUDGET",
        "memory_budget",
        "none, bytes such as 64MiB, or opencl:0=64MiB,cpu:0=1GiB",
        "Most bytes of intermediate results on each device or on those that are named; waits are "
        "added where that is needed to keep it.",
        read_budget,
    ),
    Variable(
        "GGSCHED_MODELS",
        "models",
        "a folder",
        "Where a node of a cluster looks for the file of a model, by its name, before its weights "
        "are sent; the path that the driver has is tried too.",
        str,
        unset="none",
    ),
    Variable(
        "GGSCHED_OPS",
        "ops",
        "names of modules with commas between them",
        "Modules that register user-defined ops; the command line imports them first.",
        _names_or_none,
    ),
    Variable(
        "GGSCHED_PACKING_EFFORT",
        "packing_effort",
        "a whole number from 0 on",
        "How long to look for a tighter packing of memory; each step takes 0.1 to 0.2 s at most, "
        "and only where the bound is not met.",
        _whole,
    ),
    Variable(
        "GGSCHED_RATES",
        "rates",
        "auto, off or a file",
        "Where rates that `ggsched calibrate` measured are kept; auto: rates.json in "
        "`$XDG_CACHE_HOME/ggsched`, off: planning goes by guesses.",
        str,
    ),
    Variable(
        "GGSCHED_SANITIZE",
        "sanitize",
        "off or plan",
        "plan: each new plan is checked for races before it runs.",
        _one_of("off", "plan"),
    ),
    Variable(
        "GGSCHED_SEED",
        "seed",
        "a whole number from 0 on",
        "Decides what the backend sim, which simulates devices, runs when.",
        _whole,
    ),
    Variable(
        "GGSCHED_STREAMS",
        "streams",
        f"auto, autotune or a number from 1 to {MAX_STREAMS}",
        "Streams per device. auto: several where the cost model predicts a gain; autotune: the "
        "first runs of each graph are timed with one and with several, and the better is kept; a "
        "number: at most that many, wherever nodes are independent, 1 being sequential.",
        read_streams,
    ),
    Variable(
        "GGSCHED_THREADS",
        "threads",
        f"a number from 1 to {MAX_THREADS}",
        "How many threads of the backend cpu compute, for all its devices and streams together.",
        read_threads,
        owner="cpu",
        unset="the physical cores that the process may use",
    ),
    Variable(
        "GGSCHED_TIMEOUT_S",
        "timeout_s",
        "a positive number of seconds",
        "How long a wait for a device goes on without any progress before it is given up. "
        "Progress is a command that any stream completes, and on cpu and opencl a node or kernel "
        "of a launch, or that it computes.",
        _seconds,
    ),
    Variable(
        "GGSCHED_VERIFY",
        "verify",
        "0 or 1",
        "1: each plan is compared with its graph and the machine before it runs.",
        _flag,
    ),
    Variable(
        "GGSCHED_WEIGHT_CACHE",
        "weight_cache",
        "a folder",
        "Where a node of a cluster keeps the weights that were sent to it, by their digests; "
        "nothing is removed there.",
        str,
        unset="none",
    ),
)


@contextmanager
def exported(settings: Settings) -> Iterator[None]:
    """Let plug-ins that are opened meanwhile read their own settings from the environment."""
    plain = Settings()
    wanted = {
        v.name: str(int(value) if isinstance(value, bool) else value)
        for v in VARIABLES
        if v.owner != "ggsched" and (value := getattr(settings, v.field)) != getattr(plain, v.field)
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def _variable(name: str) -> Variable:
    known = {variable.name: variable for variable in VARIABLES}
    if name in known:
        return known[name]
    ends = [n.removeprefix(PREFIX) for n in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), ends, n=1, cutoff=0.6)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known: {', '.join(known)}"
    raise UsageError("there is no such variable", where=name, hint=hint)
