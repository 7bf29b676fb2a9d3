"""Which stream each node and each transfer runs on."""

import msgspec


class StreamSpec(msgspec.Struct, frozen=True, gc=False):
    """A stream that the plan needs on a device."""

    id: int
    device: int


class Gain(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the cost model says of several streams for one split.

    Attributes:
        streams: Streams that were considered.
        sequential_s: Predicted seconds on one stream.
        concurrent_s: Predicted seconds on these streams, events included.
        is_taken: Whether the split runs on several streams.
        proposed_s: Predicted seconds on the lanes that the device proposes; ``concurrent_s`` where
            they are the streams. None where it proposes none for the split.
    """

    split: int
    streams: int
    sequential_s: float
    concurrent_s: float
    is_taken: bool
    proposed_s: float | None = None


class Streams(msgspec.Struct, frozen=True):
    """Streams, and the nodes and transfers on them.

    Attributes:
        streams: All streams, by id.
        of_node: Stream of each node, on the device of its split.
        of_transfer: Stream of each transfer, on the device that executes it.
        gains: Predictions for the splits for which several streams were considered.
    """

    streams: tuple[StreamSpec, ...]
    of_node: tuple[int, ...]
    of_transfer: tuple[int, ...]
    gains: tuple[Gain, ...] = ()
