"""Assign: choose the stream of each split and each transfer.

For now each device runs everything on one stream, copies included, in the order of the program.
"""

from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams, StreamSpec


def assign(splits: Splits) -> Streams:
    """Return one stream for each device that runs anything."""
    used = sorted({s.device for s in splits.splits} | {t.by for t in splits.transfers})
    stream_of = {device: i for i, device in enumerate(used)}
    return Streams(
        tuple(StreamSpec(i, device) for i, device in enumerate(used)),
        tuple(stream_of[s.device] for s in splits.splits),
        tuple(stream_of[t.by] for t in splits.transfers),
    )
