"""What one device can do, as facts that were probed and can be written down.

A capability is a promise in both directions (TRU-1): what is declared works, and what is not
declared is refused. Each is declared once, as a field of ``DeviceFacts``: its name, its type, its
default, its meaning, and its place in the conformance kit. Topology files, plans, the reference
page, the probe, the simulator's configuration, random topologies and the kit's needs follow.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from ggsched.errors import UsageError

CopyOrder = Literal["stream", "barrier", "host"]
Kind = Literal["cpu", "gpu", "integrated", "accelerator"]
WaitPath = Literal["native", "thread", "host"]
Need = tuple[object, str]

_NONE: Final[Mapping[Any, Any]] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Capability:
    """The declaration of a capability, an annotation of a field of ``DeviceFacts``.

    The default is the conservative value: it is correct for a backend that says nothing. A fact
    without one is known to the device only.

    Attributes:
        meaning: What a device promises, as the reference page says it.
        rules: Rules of the contract that the promise is part of; the kit has cases for each.
        needs: Needs that conformance cases can name: the value that meets one, and what to report
            of a device with another value.
        shown: What the printed plan says of a device, by value; nothing for values left out.
        drawn: Values that random topologies take. By default all values of a type that has few
            (``bool``, ``Literal``); the default of the field for other types.
        name: Of the field.
        type: Of the field.
        default: Of the field; ``dataclasses.MISSING`` for a fact that has to be given.
    """

    meaning: str
    rules: tuple[str, ...]
    needs: Mapping[str, Need] = field(default_factory=lambda: _NONE)
    shown: Mapping[object, str] = field(default_factory=lambda: _NONE)
    drawn: tuple[object, ...] | None = None
    name: str = ""
    type: Any = None
    default: object = None

    def drawn_values(self) -> tuple[object, ...]:
        """Return the values that random topologies choose from; empty for the default alone."""
        if self.drawn is not None:
            return self.drawn
        if self.type is bool:
            return (False, True)
        return get_args(self.type) if get_origin(self.type) is Literal else ()


HOST_PROCESSOR: Final = "host"
"""``DeviceFacts.processor`` of devices that compute on the cores of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Facts about a device: who it is, and its capabilities.

    ``docs/reference/capabilities.md`` says what each of them means.

    Attributes:
        name: As on the command line, e.g. ``"opencl:0"``.
        backend: Name of the plug-in, e.g. ``"opencl"``.
        description: For people, e.g. the name of the processor.
        processor: Name of the processor that computes, e.g. ``"host"``; devices of one name take
            turns on its cores, which predictions count. "" for one of the device's own.
    """

    name: str
    backend: str
    memory_nbytes: Annotated[int, Capability("Total memory", ("TRU-1", "BUF-1"))]
    description: str = ""
    processor: str = ""
    kind: Annotated[
        Kind,
        Capability(
            "The kind of device; `integrated` is a GPU that computes in the memory of the host. "
            "`-ngl` counts layers onto devices that are not `cpu`",
            ("TRU-1",),
        ),
    ] = "accelerator"
    max_allocation_nbytes: Annotated[
        int, Capability("Largest single buffer; 0 stands for all of the memory", ("BUF-1",))
    ] = 0
    alignment: Annotated[
        int,
        Capability(
            "Alignment in bytes that buffers have and that regions in them get, a power of two",
            ("BUF-1",),
            drawn=(1, 16, 64, 256),
        ),
    ] = 16
    max_streams: Annotated[
        int, Capability("Streams that can exist at once", ("TRU-1", "STR-4"))
    ] = 1
    proposes_lanes: Annotated[
        bool,
        Capability(
            "`propose_lanes` names a lane for each node of a graph. The planner uses the lanes as "
            "streams where it predicts no gain from others; this is a hint, and no plan depends "
            "on it",
            ("STR-7",),
            needs={"lanes": (True, "it proposes no lanes")},
            drawn=(False,),
        ),
    ] = False
    copy_order: Annotated[
        CopyOrder,
        Capability(
            "How copies and launches of one stream are kept in order: by the `stream` itself, by a "
            "`barrier` between them, or by the `host`, which waits",
            ("STR-1",),
            shown={order: f"copies {order}" for order in get_args(CopyOrder)},
        ),
    ] = "host"
    has_events: Annotated[
        bool,
        Capability(
            "Streams can record and wait for events; otherwise the host waits",
            ("EVT-1", "EVT-2", "EVT-3", "EVT-4", "EVT-5", "EVT-6"),
            needs={
                "events": (True, "it declares no events"),
                "no events": (False, "it declares events"),
            },
            shown={False: "no events"},
        ),
    ] = False
    is_host: Annotated[
        bool,
        Capability(
            "Its memory is host memory: buffers offer `host_view`",
            ("BUF-4",),
            needs={
                "host memory": (True, "its memory is not host memory"),
                "no host memory": (False, "its memory is host memory"),
            },
            shown={True: "host memory"},
        ),
    ] = False
    is_async: Annotated[
        bool,
        Capability(
            "Enqueueing normally returns before the work is done; nothing may rely on it",
            ("STR-2",),
            needs={"async": (True, "it declares that enqueueing takes as long as the work")},
        ),
    ] = False
    snapshots_uploads: Annotated[
        bool,
        Capability(
            "Uploads read their host source while they are being enqueued and not later: it may be "
            "reused when `upload` returns, and it must be complete before `upload` is called, "
            "whatever the stream waits for",
            ("CPY-4",),
            needs={
                "snapshots": (True, "uploads borrow their source"),
                "no snapshots": (False, "uploads are snapshots of their source"),
            },
            shown={True: "snapshots uploads"},
        ),
    ] = False
    is_deterministic: Annotated[
        bool,
        Capability(
            "The same launch on the same inputs gives the same bytes",
            ("LCH-4",),
            needs={"deterministic": (True, "it does not declare itself deterministic")},
            drawn=(True,),
        ),
    ] = False
    rounds_to_8_bits: Annotated[
        bool,
        Capability(
            "Products of packed weights round activations to 8 bits, in blocks of 32 elements with "
            "a scale each; results differ by what LCH-3 allows for it",
            ("LCH-3",),
            drawn=(False,),
        ),
    ] = False
    precision: Annotated[
        Literal["f32", "tf32", "bf16"],
        Capability(
            "What factors of products and convolutions of f32 may be rounded to; sums are made in "
            "f32. Results differ by what LCH-3 allows for it",
            ("LCH-3",),
            drawn=("f32",),
        ),
    ] = "f32"
    takes_expert_ranges: Annotated[
        bool,
        Capability(
            "`mul_mat_id` and `add_id` take `first` and `of`: a table of some of the rows",
            ("LCH-3",),
            needs={"expert ranges": (True, "its tables have all the rows that ids name")},
            drawn=(True,),
        ),
    ] = False
    imports_host_memory: Annotated[
        bool,
        Capability(
            "`import_host` makes a read-only buffer of host memory without a copy",
            ("TRU-1",),
            needs={
                "import": (True, "it does not import host memory"),
                "no import": (False, "it imports host memory"),
            },
            drawn=(False,),
        ),
    ] = False
    reads_peers: Annotated[
        bool,
        Capability(
            "Launches may read buffers of other devices of the same backend that declare it too; "
            "otherwise bytes of another device are copied first",
            ("COL-1", "COL-2", "COL-3", "COL-4"),
            needs={"undeclared reads": (False, "it reads buffers of other devices")},
            shown={True: "reads peers"},
        ),
    ] = False
    ops: Annotated[
        frozenset[str],
        Capability(
            "Supported ops as `op:dtype`, with the type of the first operand; `nd.*` for every op "
            "of the library `nd` on any type",
            ("LCH-3",),
        ),
    ] = frozenset()
    reference_ops: Annotated[
        frozenset[str],
        Capability(
            "Supported ops without a kernel of the device, by name; nodes of them run by the "
            "reference arithmetic of the op, exact and slow. `nd.*` for every op of the library "
            "`nd` that `ops` does not name",
            ("LCH-3",),
        ),
    ] = frozenset()
    fusions: Annotated[
        frozenset[str],
        Capability(
            "Patterns of nodes that `compile` can run as one, see `ggsched.ir.fusion`; the planner "
            "ignores names that it does not know",
            ("LCH-6",),
        ),
    ] = frozenset()
    neighbours: Annotated[
        frozenset[str],
        Capability(
            "Sequences of adjacent patterns and ops, as `rope, rope+set_rows`, that `compile` may "
            "fuse into one kernel where none writes what another one accesses. The planner does "
            "not reuse the memory of small values that they access until the last of them has "
            "run; this is a hint, and no plan depends on it",
            ("LCH-6",),
        ),
    ] = frozenset()

    def __post_init__(self) -> None:
        if self.max_allocation_nbytes == 0:
            object.__setattr__(self, "max_allocation_nbytes", self.memory_nbytes)
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise UsageError(
                f"alignment {self.alignment} is not a power of two",
                where=self.name,
                hint="declare the alignment of the buffers that the device allocates",
            )
        if self.max_streams < 1:
            raise UsageError("a device needs at least one stream", where=self.name)


def processors(devices: Sequence[DeviceFacts]) -> tuple[int, ...]:
    """Return for each device the first one that computes on the same processor."""
    first: dict[str, int] = {}
    return tuple(
        first.setdefault(facts.processor, i) if facts.processor else i
        for i, facts in enumerate(devices)
    )


def reads_peer(reader: DeviceFacts, owner: DeviceFacts) -> bool:
    """Whether launches of a device may read buffers of another one (COL-1)."""
    is_pair = reader.backend == owner.backend and reader.name != owner.name
    return is_pair and reader.reads_peers and owner.reads_peers


@cache
def capabilities() -> Mapping[str, Capability]:
    """Return the declaration of each capability by name, in the order of the fields."""
    hints = get_type_hints(DeviceFacts, include_extras=True)
    return {
        f.name: replace(found, name=f.name, type=get_args(hints[f.name])[0], default=f.default)
        for f in fields(DeviceFacts)
        for found in getattr(hints[f.name], "__metadata__", ())
    }


def facts_to_json(facts: DeviceFacts) -> dict[str, Any]:
    """Return facts as plain JSON data, without those that have their default.

    A capability that a device does not declare leaves no mark, so that one that is added later
    changes neither files nor digests of machines that do not have it.
    """
    plain = asdict(facts)
    if facts.max_allocation_nbytes == facts.memory_nbytes:
        del plain["max_allocation_nbytes"]
    for f in fields(facts):
        if f.name in plain and plain[f.name] == f.default:
            del plain[f.name]
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in plain.items()}


def offers(ops: frozenset[str], op: str, dtype: str) -> bool:
    """Whether ``DeviceFacts.ops`` contains an op on a first operand of this type.

    ``nd.*`` stands for every op of the library ``nd`` on any type.
    """
    if op_key(op, dtype) in ops:
        return True
    library, dot, _ = op.partition(".")
    return bool(dot) and f"{library}.*" in ops


def lacking(facts: DeviceFacts, op: str, dtype: str, of: object) -> str:
    """Return what a device does not declare of what a node needs; see ``mul_mat_id`` for ``of``."""
    if not offers(facts.ops, op, dtype):
        return op_key(op, dtype)
    is_range = of and op in ("mul_mat_id", "add_id")
    return "takes_expert_ranges" if is_range and not facts.takes_expert_ranges else ""


def runs_by_reference(facts: DeviceFacts, op: str) -> bool:
    """Whether a device has no kernel of its own for any node of an op that it supports."""
    if op in facts.reference_ops:
        return True
    library, dot, _ = op.partition(".")
    if not dot or f"{library}.*" not in facts.reference_ops:
        return False
    return all(key.partition(":")[0] != op for key in facts.ops)


def op_key(op: str, dtype: str) -> str:
    """Return the key of ``DeviceFacts.ops`` for an op on a first operand of this type."""
    return f"{op}:{dtype}"
