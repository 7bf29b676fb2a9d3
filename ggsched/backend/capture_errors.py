"""What may not be done with captures (CAP-1..4), in the same words by every plug-in."""

from ggsched.backend.protocols import Device, Stream
from ggsched.errors import UsageError


def no_streams_error(device: Device) -> UsageError:
    """Return the error for a capture of no streams."""
    return UsageError("a capture takes different streams, at least one", where=device.facts.name)


def not_capturable_error(stream: Stream, device: Device) -> UsageError:
    """Return the error for a capture of another device's stream."""
    return UsageError(
        f"a stream of {stream.device.facts.name} cannot be captured",
        where=device.facts.name,
        hint="begin with a stream of the device itself; only peers are captured together (COL-4)",
    )


def captured_already_error(where: str) -> UsageError:
    """Return the error for a second capture of a stream (CAP-2)."""
    return UsageError("the stream is being captured already", where=where, why="CAP-2")


def replayed_elsewhere_error(where: str) -> UsageError:
    """Return the error for a replay on another stream (CAP-1)."""
    return UsageError(
        "the graph was captured on another stream", where=f"{where} replay", why="CAP-1"
    )


def other_graph_error(where: str) -> UsageError:
    """Return the error for an update of a graph of another stream (CAP-4)."""
    return UsageError(
        "the graph was captured on another stream",
        where=where,
        why="an updated graph stays on its stream (CAP-4)",
        hint="end the capture in a graph of its own",
    )


def outside_error(where: str) -> UsageError:
    """Return the error for a wait, in a capture, for an event from outside (CAP-2)."""
    return UsageError(
        "wait for an event from outside a capture",
        where=where,
        why="a graph waits only for the stream that it is replayed on (CAP-2)",
        hint="wait before the capture begins, or before each replay",
    )


def captured_event_error(where: str) -> UsageError:
    """Return the error for a use, outside a capture, of an event that was recorded in it."""
    return UsageError(
        "wait for an event that was recorded in a capture",
        where=where,
        why="nothing of a capture runs before it is replayed (CAP-2)",
        hint="wait for an event that is recorded behind the replay",
    )


def capturing_error(what: str, where: str) -> UsageError:
    """Return the error for a call that a captured stream cannot answer (CAP-2)."""
    return UsageError(
        f"{what} of a stream that is being captured",
        where=where,
        why="nothing of a capture runs before it is replayed (CAP-2)",
        hint="end the capture first",
    )
