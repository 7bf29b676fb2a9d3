"""The rules of the contract by id, one line each. ``docs/reference/contract.md`` has the text."""

from collections.abc import Mapping
from typing import Final

from ggsched.backend.protocols import Version


class BrokenRule(AssertionError):
    """What a device did is not what the rule says."""


RULES: Final[Mapping[str, str]] = {
    "STR-1": "commands of one stream take effect in the order of enqueueing",
    "STR-2": "enqueueing returns before or after the work, and needs no later call for that",
    "STR-3": "what is enqueued runs without another call of the host",
    "STR-4": "two streams are unordered, and neither holds up the other",
    "STR-5": "sync returns when all is complete and visible; a timeout changes nothing",
    "STR-6": "is_done never blocks; different streams may be used by different threads",
    "STR-7": "a device that proposes lanes names one for each node, always the same",
    "EVT-1": "an event stands for everything enqueued before its record",
    "EVT-2": "nothing enqueued after a wait starts before the event's work is complete",
    "EVT-3": "waiting for an event that was not recorded raises, and so does recording twice",
    "EVT-4": "foreign events are waited for as the wait path says, or refused",
    "EVT-5": "a done event stays done; its sync covers its prefix and no more",
    "EVT-6": "an event whose work failed is failed, and so is whoever waits for it",
    "BUF-1": "fresh memory is aligned and apart from all other; too much is refused",
    "BUF-2": "memory that is freed too early is never reused early",
    "BUF-3": "a region outside its buffer is refused before anything is enqueued",
    "BUF-4": "a host view is the memory itself, where the device has host memory",
    "BUF-5": "an import is the host's own memory, read-only, and is kept while it is open",
    "BUF-6": "host memory of a device is the caller's own, writable, as long as a view is left",
    "CPY-1": "a copy is a command of the stream it is enqueued on, and of no other",
    "CPY-2": "a copy changes its destination and nothing else",
    "CPY-3": "overlap is refused; zero bytes are legal and keep their place",
    "CPY-4": "the host source of an upload is borrowed until the command is complete",
    "CPY-5": "the host destination of a download is the device's until it is complete",
    "CPY-6": "a pair without a copy path is refused",
    "FIL-1": "a fill sets exactly its bytes to the repeated pattern",
    "FIL-2": "a fill is a command of its stream, ordered and captured as a copy is",
    "FIL-3": "patterns have 1, 2 or 4 bytes, and ranges are whole patterns; others are refused",
    "LCH-1": "a launch writes its outputs, completely, and nothing else",
    "LCH-2": "inputs stay as they are unless declared in-place",
    "LCH-3": "every declared op compiles and agrees with the oracle",
    "LCH-4": "the same launch on the same inputs gives the same bytes, where declared",
    "LCH-5": "scratch memory and library handles belong to one stream",
    "LCH-6": "a group of nodes leaves the result of its last node, and nothing else to rely on",
    "LCH-7": "constants may be read early, nothing else is, and rewriting them while idle is seen",
    "LCH-8": "NaN, infinities, zeros, and integers out of range have one meaning",
    "COL-1": "launches read buffers of peers where both declare it, and write none of them",
    "COL-2": "what a peer holds is read when the stream comes to the launch, each time",
    "COL-3": "what a peer holds is its own again as soon as the launch is complete",
    "COL-4": "peers that offer capture take streams of each other into one graph",
    "CAP-1": "replaying a captured graph equals enqueueing its commands again",
    "CAP-2": "what may not be captured raises before it disturbs the capture",
    "CAP-3": "host memory used in a capture is read when it is replayed",
    "CAP-4": "a graph that is updated is what was captured now; one that is not is as it was",
    "ERR-1": "a refused command raises at once, names itself, and changes nothing",
    "ERR-2": "a command that fails later poisons its stream, and only that",
    "ERR-3": "close releases everything, also twice and after a fault; later calls raise",
    "TRU-1": "what is declared works, and what is not declared is refused",
    "INT-1": "DLPack shows the buffer's own bytes",
    "INT-2": "__cuda_array_interface__ describes the buffer's own bytes",
    "INT-3": "__cuda_stream__ names the stream's own queue",
    "ALL-1": "any program without a race leaves the bytes of its sequential execution",
}
"""In the order of the page."""

RULES_SINCE: Final[Mapping[str, Version]] = {
    **dict.fromkeys(("FIL-1", "FIL-2", "FIL-3"), (1, 1)),
    **dict.fromkeys(("BUF-5", "BUF-6"), (1, 2)),
    **dict.fromkeys(("COL-1", "COL-2", "COL-3", "COL-4"), (1, 3)),
    "LCH-8": (1, 4),
}
"""Version of the contract that has a rule, where it is not the first one."""
