"""CAP: rules for devices that offer capture. No call for it is in the contract yet.

The cases are here so that the rules are listed with what will be checked; they are skipped until
the protocols have the calls, and are then written against those.
"""

from ggsched.testing.conformance.case import case
from ggsched.testing.conformance.world import World


@case(
    "CAP-1", "A graph that is replayed does what its commands did, on the same regions.", "capture"
)
def cap1_replay_equals_enqueueing(w: World) -> None:
    _needs_a_call(w)


@case("CAP-2", "A call that may not be captured raises, and the capture goes on.", "capture")
def cap2_refused_during_capture(w: World) -> None:
    _needs_a_call(w)


@case("CAP-2", "Nothing runs while commands are captured.", "capture")
def cap2_nothing_runs(w: World) -> None:
    _needs_a_call(w)


@case("CAP-3", "Host memory of a captured upload is read when the graph is replayed.", "capture")
def cap3_host_memory_at_replay(w: World) -> None:
    _needs_a_call(w)


def _needs_a_call(w: World) -> None:
    raise NotImplementedError("no device can offer capture before the protocols have calls for it")
