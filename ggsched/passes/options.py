"""Options: what a caller decides about a plan besides where things are."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """How many streams a device may use.

    Attributes:
        limit: Streams per device at most. The gate considers no more than run at full speed
            beside each other, and none on a device that runs commands while they are enqueued.
        is_forced: Use them wherever nodes are independent, whatever the cost model says.
        has_copy_stream: Let transfers run beside launches, on a stream of their own, where a
            device has events and a stream to spare.
    """

    limit: int = 1
    is_forced: bool = False
    has_copy_stream: bool = False


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What decides between plans that are all correct. Hashable, a part of a plan's key.

    Attributes:
        streams: How many streams a device may use.
        memory_budget: Most bytes of the compute arena, as (device index, bytes), for which waits
            may be added; devices that are not named have no limit but their memory.
        packing_effort: How long to look for a tighter packing, see ``packing.pack``.
        fuse: Whether devices that can compile groups of nodes as one do so.
    """

    streams: StreamPolicy = field(default_factory=StreamPolicy)
    memory_budget: tuple[tuple[int, int], ...] = ()
    packing_effort: int = 0
    fuse: bool = True
