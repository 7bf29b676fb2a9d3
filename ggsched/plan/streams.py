"""Which stream each split and each transfer runs on."""

import msgspec


class StreamSpec(msgspec.Struct, frozen=True, gc=False):
    """A stream that the plan needs on a device."""

    id: int
    device: int


class Streams(msgspec.Struct, frozen=True):
    """Streams, and who uses them.

    Attributes:
        streams: All streams, by id.
        of_split: Stream of each split, on the split's device.
        of_transfer: Stream of each transfer, on the device that executes it.
    """

    streams: tuple[StreamSpec, ...]
    of_split: tuple[int, ...]
    of_transfer: tuple[int, ...]
