"""Settings: one prefix, one table, one parser.

Each field of ``Settings`` declares its variable, and its option of the command line if it has one.
``VARIABLES`` is the table of them, and the page ``docs/reference/environment.md`` is its copy. A
variable that is set and not in the table is an error, so that a misspelt one does not go unnoticed.
Setting a variable to nothing is the same as not setting it; its mere presence never means true.

This module keeps no state. The command line and the facade read the settings once
and hand them down. Plug-ins do not import this module: a variable of a plug-in is in the table,
so that it is checked and listed, and the plug-in reads it by ``ggsched.backend.settings``.
"""

import difflib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self

from ggsched.errors import UsageError
from ggsched.flags import HOMES, PIPELINES, Flag, read_size

PREFIX: Final = "GGSCHED_"

Sanitize = Literal["off", "plan"]
MAX_STREAMS: Final = 64
MAX_THREADS: Final = 512

Streams = int | Literal["auto", "autotune"]
Budget = tuple[tuple[str, int], ...]
"""(device name, bytes); the empty name stands for every device."""


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


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return parse


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
    return _whole(1, MAX_STREAMS)(text)


_threads: Final = _whole(1, MAX_THREADS)


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


def _one_of(*choices: Any) -> Callable[[str], Any]:
    table = {str(choice): choice for choice in choices}

    def parse(text: str) -> Any:
        if text not in table:
            raise ValueError(text)
        return table[text]

    return parse


def _flag(text: str) -> bool:
    return bool(_one_of(0, 1)(text))


def _variable(
    default: Any,
    values: str,
    parse: Callable[[str], Any],
    meaning: str,
    *,
    owner: str = "ggsched",
    unset: str = "",
    flag: Flag | None = None,
) -> Any:
    """Return a field of ``Settings`` with its variable, and perhaps its option of a command."""
    said = {"values": values, "meaning": meaning, "parse": parse, "owner": owner, "unset": unset}
    return field(default=default, metadata={"variable": said, "flag": flag})


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set from outside. The defaults here are the defaults everywhere.

    What each field means is said by its metadata, ``VARIABLES``, and
    ``docs/reference/environment.md``.

    Examples:
        >>> from ggsched import Scheduler, Settings
        >>> with Scheduler(["cpu:0"], settings=Settings(streams=1, timeout_s=5.0)) as scheduler:
        ...     scheduler.settings.streams
        1
    """

    backends: tuple[str, ...] | None = _variable(
        None, "names with commas between them, e.g. opencl,cpu", _names,
        "Which backends may be used, in order of preference.",
    )  # fmt: skip
    timeout_s: float = _variable(
        30.0, "a positive number of seconds", _seconds,
        "How long a wait for a device goes on without any progress before it is given up. "
        "Progress is a command that any stream completes, and on cpu and opencl a node or kernel "
        "of a launch, or that it computes.",
    )  # fmt: skip
    sanitize: Sanitize = _variable(
        "plan", "off or plan", _one_of("off", "plan"),
        "plan: each new plan is checked for races before it runs.",
    )  # fmt: skip
    verify: bool = _variable(
        True, "0 or 1", _flag,
        "1: each plan is compared with its graph and the machine before it runs.",
    )  # fmt: skip
    fuse: bool = _variable(
        True, "0 or 1", _flag,
        "0: every node runs by itself, also where a device can compile groups of nodes as one.",
    )  # fmt: skip
    debug: int = _variable(
        0, "0 to 4", _one_of(0, 1, 2, 3, 4),
        "Messages on stderr: 1 devices, sizes and the traceback of an error, 2 placement and "
        "splits with reasons, 3 commands with hazards, 4 each executed command.",
    )  # fmt: skip
    cpu_sync: bool = _variable(
        False, "0 or 1", _flag,
        "1: the backend cpu runs everything in the calling thread, without worker threads.",
        owner="cpu",
    )  # fmt: skip
    memory_budget: Budget = _variable(
        (), "none, bytes such as 64MiB, or opencl:0=64MiB,cpu:0=1GiB", read_budget,
        "Most bytes of intermediate results on each device or on those that are named; waits are "
        "added where that is needed to keep it.",
        flag=Flag(
            "--memory-budget", read_budget,
            "Most bytes of intermediate results, e.g. 64MiB; waits are added to keep it.",
            "is not a number of bytes such as 64MiB, or opencl:0=64MiB,cpu:0=1GiB",
            heading=HOMES, metavar="BYTES|DEVICE=BYTES,...",
        ),
    )  # fmt: skip
    packing_effort: int = _variable(
        0, "a whole number from 0 on", _whole(0, 2**64 - 1),
        "How long to look for a tighter packing of memory; each step takes 0.1 to 0.2 s at most, "
        "and only where the bound is not met.",
        flag=Flag(
            "--packing-effort", 0,
            "Look for a tighter packing of memory, 0.1 to 0.2 s a step. [default: 0]",
            heading=PIPELINES, old="--memory-effort",
        ),
    )  # fmt: skip
    streams: Streams = _variable(
        "auto", f"auto, autotune or a number from 1 to {MAX_STREAMS}", read_streams,
        "Streams per device. auto: several where the cost model predicts a gain; autotune: the "
        "first runs of each graph are timed with one and with several, and the better is kept; a "
        "number: at most that many, wherever nodes are independent, 1 being sequential.",
        flag=Flag(
            "--streams", read_streams,
            "Streams per device: several where a gain is predicted, at most N wherever nodes are "
            "independent, or what is faster on the first runs. [default: as GGSCHED_STREAMS says,"
            " auto]",
            f"is neither auto, autotune nor a number from 1 to {MAX_STREAMS}",
            heading=PIPELINES, metavar="auto|N|autotune",
        ),
    )  # fmt: skip
    seed: int = _variable(
        0, "a whole number from 0 on", _whole(0, 2**64 - 1),
        "Decides what the backend sim, which simulates devices, runs when.",
    )  # fmt: skip
    checked: bool = _variable(
        False, "0 or 1", _flag,
        "1: every call on a device is checked against the contract: order, lifetimes, regions, "
        "host memory that is borrowed.",
    )  # fmt: skip
    capture: bool = _variable(
        True, "0 or 1", _flag,
        "1: a plan that runs again is captured as graphs on devices that offer it, such as GPUs; "
        "0: its commands are enqueued one by one.",
    )  # fmt: skip
    ops: tuple[str, ...] = _variable(
        (), "names of modules with commas between them", _names_or_none,
        "Modules that register user-defined ops; the command line imports them first.",
    )  # fmt: skip
    rates: str = _variable(
        "auto", "auto, off or a file", str,
        "Where rates that `ggsched calibrate` measured are kept; auto: rates.json in "
        "`$XDG_CACHE_HOME/ggsched`, off: planning goes by guesses.",
    )  # fmt: skip
    activations: Literal["auto", "f32"] | None = _variable(
        None, "auto or f32", _one_of("auto", "f32"),
        "auto: activations are rounded where the weights of a product are: cuda, and opencl on "
        "matrix units, round them to 16 bits in products of many rows, cpu to 8 bits beside packed "
        "weights and to bf16 beside bf16 where processors multiply such pairs; f32: they keep what "
        "f32 results need.",
        owner="cuda, opencl and cpu", unset="auto on cpu, cuda and opencl",
        flag=Flag(
            "--activations", ("auto", "f32"),
            "Round activations where weights are rounded more coarsely, or keep them. [default: "
            "as GGSCHED_ACTIVATIONS says; auto on cpu, cuda and opencl]",
            heading=PIPELINES,
        ),
    )  # fmt: skip
    precision: Literal["f32", "tf32", "bf16"] = _variable(
        "f32", "f32, tf32 or bf16", _one_of("f32", "tf32", "bf16"),
        "What cuda may round the factors of products and convolutions of f32 to, on tensor cores; "
        "sums are made in f32. f16 would be no finer than tf32 and overflow beyond 65,504.",
        owner="cuda",
        flag=Flag(
            "--precision", ("f32", "tf32", "bf16"),
            "Round factors of products and convolutions of f32 on cuda. [default: as "
            "GGSCHED_PRECISION says; f32]",
            heading=PIPELINES,
        ),
    )  # fmt: skip
    threads: int | None = _variable(
        None, f"a number from 1 to {MAX_THREADS}", _threads,
        "How many threads of the backend cpu compute, for all its devices and streams together, "
        "and on the host for each stream of the backend ggml.",
        owner="cpu", unset="the physical cores that the process may use",
        flag=Flag(
            "-t --threads", lambda text: None if text == "-1" else _threads(text),
            "Threads of the backend cpu that compute. [default: as GGSCHED_THREADS says, a "
            "physical core each]",
            f"is not a number of threads from 1 to {MAX_THREADS}",
            heading=PIPELINES, metavar="N",
        ),
    )  # fmt: skip
    ggml: str | None = _variable(
        None, "a folder", str,
        "Where the library of ggml is whose devices the backend ggml offers.",
        owner="ggml", unset="llama-cpp-python or ggml-python, where installed, or the system",
    )  # fmt: skip
    ggml_rpc: str | None = _variable(
        None, "addresses with commas between them, e.g. 10.0.0.2:50052", str,
        "Servers of ggml's RPC whose devices the backend ggml offers, as ggml:RPC0.",
        owner="ggml", unset="none",
    )  # fmt: skip
    models: str | None = _variable(
        None, "a folder", str,
        "Where a node of a cluster looks for the file of a model, by its name, before its weights"
        " are sent; the path that the driver has is tried too.",
        unset="none",
    )  # fmt: skip
    weight_cache: str | None = _variable(
        None, "a folder", str,
        "Where a node of a cluster keeps the weights that were sent to it, by their digests; "
        "nothing is removed there.",
        unset="none",
    )  # fmt: skip
    cpu_kernels: Literal["auto", "numpy"] = _variable(
        "auto", "auto or numpy", _one_of("auto", "numpy"),
        "auto: the backend cpu computes with kernels that LLVM compiles for the processor; numpy:"
        " it runs every node by the reference arithmetic, which is exact and slow.",
        owner="cpu",
    )  # fmt: skip

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
            variable = _known(name)
            if given[name].strip():
                values[variable.field] = variable.read(given[name].strip())
        return cls(**{**values, **changes})


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        field: The field of ``Settings`` that it sets.
        values: What it takes, in words for people.
        meaning: What it does.
        parse: Turns text into the value, or raises ``ValueError``.
        owner: ``ggsched``, or the name of the backend that reads the variable itself.
        unset: What applies where it is not set, in words, if that is not a value of the variable.
    """

    field: str
    values: str
    meaning: str
    parse: Callable[[str], Any]
    owner: str = "ggsched"
    unset: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return PREFIX + self.field.upper()

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


VARIABLES: Final = tuple(
    sorted(
        (Variable(f.name, **f.metadata["variable"]) for f in fields(Settings)), key=lambda v: v.name
    )
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


def _known(name: str) -> Variable:
    known = {variable.name: variable for variable in VARIABLES}
    if name in known:
        return known[name]
    ends = [n.removeprefix(PREFIX) for n in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), ends, n=1, cutoff=0.6)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known: {', '.join(known)}"
    raise UsageError("there is no such variable", where=name, hint=hint)
