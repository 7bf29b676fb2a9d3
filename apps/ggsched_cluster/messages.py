"""What driver and workers say to each other: data, never code.

Headers are msgpack; bytes of arrays follow in frames of their own. Whoever cannot read a header, or
finds another token in front of it, drops the message.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any, Final, cast

import msgspec

from ggsched.backend.protocols import CONTRACT_VERSION
from ggsched.fingerprint import fingerprint
from ggsched.ir.tensor import Tensor
from ggsched.plan.bundle import FORMAT
from ggsched.plan.parts import Part
from ggsched_cluster.weights import Offer

PROTOCOL: Final = 3
"""Number of this set of messages."""


def version() -> str:
    """Return what has to be the same on all machines, in words."""
    contract = ".".join(map(str, CONTRACT_VERSION))
    try:
        number = installed("ggsched")
    except PackageNotFoundError:  # run from a checkout
        number = "of a checkout"
    number += f" (sources {fingerprint('ggsched_cluster')})"
    return f"ggsched {number}, messages {PROTOCOL}, {FORMAT}, contract {contract}"


class Message(msgspec.Struct, frozen=True, tag_field="is", gc=False):
    """Base of all messages, for their encoding."""


class Open(Message, frozen=True, tag="open"):
    """To a worker: open devices. The answer is ``Opened``.

    Attributes:
        id: Of the request.
        version: Of the driver.
        driver: Address of the driver.
        names: Names of devices; none for all that are usable.
        backends: Backends that may be used; None for all.
        timeout_s: How long something may go on without progress.
    """

    id: int
    version: str
    driver: str
    names: tuple[str, ...]
    backends: tuple[str, ...] | None
    timeout_s: float


class Join(Message, frozen=True, tag="join"):
    """To a worker: what the others are.

    Attributes:
        id: Of the request.
        machine: Number of the worker.
        first: Number of its first device among all.
        addresses: Of all machines, by number.
        topology: All devices, as ``ggsched.topology.codec`` writes them.
        timeout_s: How long something may go on without progress.
        capture: Whether plans are captured where devices offer it.
        checked: Whether devices check their callers.
        records: Whether runs are recorded.
    """

    id: int
    machine: int
    first: int
    addresses: tuple[str, ...]
    topology: str
    timeout_s: float
    capture: bool
    checked: bool
    records: bool = False


class Bind(Message, frozen=True, tag="bind"):
    """To a worker: make all that the part of a plan needs. In frames: graph (text), plan (JSON).

    Attributes:
        id: Of the request.
        key: Number of the plan from now on.
        digest: Of the graph.
        part: What the worker runs.
    """

    id: int
    key: int
    digest: str
    part: Part


class Run(Message, frozen=True, tag="run"):
    """To a worker: run a part. In frames: its inputs, in the order of the part.

    Attributes:
        id: Of the request, and number of the run.
        key: Number of the plan.
    """

    id: int
    key: int


class Abort(Message, frozen=True, tag="abort"):
    """To a worker: give up a request; the messages that it waits for will not come.

    It is answered by ``Failed`` even where the request never came, or where its answer was lost.

    Attributes:
        id: Number of the request.
        why: The reason.
    """

    id: int
    why: str


class Manage(Message, frozen=True, tag="manage"):
    """To a worker: anything else.

    Attributes:
        id: Of the request.
        what: ``drop`` a plan, ``release`` tensors, ``clear`` states, report ``sizes``, hand over
            what was ``recorded``.
        key: Number of the plan.
        names: Names of the tensors.
    """

    id: int
    what: str
    key: int = -1
    names: tuple[str, ...] = ()


class Calibrate(Message, frozen=True, tag="calibrate"):
    """To a worker: measure its devices. The answer has a ``Calibration`` (msgpack) in a frame.

    Attributes:
        id: Of the request.
        seconds: How long that may take, about.
    """

    id: int
    seconds: float


class Probe(Message, frozen=True, tag="probe"):
    """To a worker: measure messages to another. The answer has ``LinkSample`` s in a frame.

    Attributes:
        id: Of the request.
        address: Of the other worker.
        seconds: How long that may take, about.
    """

    id: int
    address: str
    seconds: float


class Ping(Message, frozen=True, tag="ping"):
    """To a worker, which answers at once, whatever it waits for. A frame is read and dropped.

    Attributes:
        sender: Address to answer to.
        number: Of the ping.
    """

    sender: str
    number: int


class Pong(Message, frozen=True, tag="pong"):
    """The answer.

    Attributes:
        worker: Address of the replying worker.
        number: Of the ping.
        at_s: When it was answered, by the clock of the worker (``time.perf_counter``).
    """

    worker: str
    number: int
    at_s: float


class Close(Message, frozen=True, tag="close"):
    """To a worker: release everything and end."""


class Weight(Message, frozen=True, tag="weight"):
    """To a worker: a weight that it requested, in a frame if it wants it sent.

    Attributes:
        offer: What it is; None where there is none.
        why: The error where it cannot be had.
    """

    name: str
    offer: Offer | None = None
    why: str = ""


class Data(Message, frozen=True, tag="data"):
    """Between workers: the bytes of a ``Send``, in a frame.

    Attributes:
        run: Number of the run.
        sender: Number of the machine.
        tag: Of the message.
    """

    run: int
    sender: int
    tag: int


class Opened(Message, frozen=True, tag="opened"):
    """To the driver: what a worker has.

    Attributes:
        id: Of the request.
        worker: Its address.
        version: Of the worker.
        topology: Its devices, by their names there.
        free: Free bytes of each.
    """

    id: int
    worker: str
    version: str
    topology: str
    free: tuple[int, ...]


class Done(Message, frozen=True, tag="done"):
    """To the driver: a request has been carried out. In frames: outputs, in the part's order.

    Attributes:
        id: Of the request.
        worker: Address.
        sizes: Resident bytes by kind and name of device, where they were requested.
    """

    id: int
    worker: str
    sizes: dict[str, dict[str, int]] = {}


class Failed(Message, frozen=True, tag="failed"):
    """To the driver: a request failed.

    Attributes:
        id: Of the request.
        worker: Address.
        kind: Name of the class of the error.
        what: Of the error, as the following.
        where: Object.
        why: Reason.
        hint: Remedy.
        notes: Further lines.
        is_echo: Whether it failed only because the request was given up.
    """

    id: int
    worker: str
    kind: str
    what: str
    where: str = ""
    why: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()
    is_echo: bool = False


class Wanted(Message, frozen=True, tag="wanted"):
    """To the driver: a worker needs a weight.

    Attributes:
        worker: Address.
        name: Of the weight.
        keeps: Whether the worker keeps weights, and so needs a digest.
        sent: Whether to send it at once; else the worker looks for it first.
    """

    worker: str
    name: str
    keeps: bool = False
    sent: bool = False


class Warned(Message, frozen=True, tag="warned"):
    """To the driver, in front of an answer: what the worker's process has warned of.

    Attributes:
        worker: Address.
        texts: One for each warning.
    """

    worker: str
    texts: tuple[str, ...]


class Beat(Message, frozen=True, tag="beat"):
    """To the driver, every now and then: a worker is there.

    Attributes:
        worker: Address.
        request: Number of the request that it carries out, or -1.
        progress: A number that changes with its progress, requests that it takes included.
        waits_for: The message that it waits for, or "".
    """

    worker: str
    request: int
    progress: int
    waits_for: str = ""


Request = Open | Join | Bind | Run | Manage | Calibrate | Probe
"""What a worker answers with ``Opened``, ``Done`` or ``Failed``."""

_ToDriver = Opened | Done | Failed | Wanted | Warned | Beat
Any_ = Request | Abort | Ping | Pong | Close | Weight | Data | _ToDriver
"""Every message."""

_MIN_FRAMES: Final[dict[type, int]] = {Bind: 2, Data: 1}
"""Frames that a message has at least; of answers the driver compares them with its request."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Any_)


def encode(message: Any_) -> bytes:
    """Return the header of a message."""
    return _ENCODER.encode(message)


def decode(parts: Sequence[Any]) -> Any_:
    """Read the header of a message, in the first of its parts.

    Raises:
        msgspec.MsgspecError: it is none.
        ValueError: it has no header, or lacks a frame.
    """
    if not parts:
        raise ValueError("no header")
    try:
        message = cast(Any_, _DECODER.decode(parts[0]))
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    if len(parts) - 1 < _MIN_FRAMES.get(type(message), 0):
        raise ValueError(f"{type(message).__name__} with {len(parts) - 1} frames")
    return message


def beat_period_s(timeout_s: float) -> float:
    """Return the seconds between two beats, often enough for a timeout."""
    return min(1.0, timeout_s / 8)


def host_form(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Return shape and element type of a tensor's array on the host."""
    if tensor.dtype.is_quantized:
        return (*tensor.shape[:-1], tensor.dtype.row_nbytes(tensor.shape[-1])), "uint8"
    return tensor.shape, str(tensor.dtype.host)
