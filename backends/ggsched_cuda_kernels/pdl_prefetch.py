"""Which calls may read some of their operands while their predecessor still runs.

A kernel that is launched with PDL waits before it reads anything (``programmatic_launch.py``),
although some of what it reads may have been there for long: caches, masks and positions, where the
predecessor computes queries. Two things make it safe to read these before:

- The predecessor waits for its own one before it lets its successor in, and for the words of other
  GPUs if it meets these (``PEERS_MET``). So all that stands further back is complete when the
  successor begins, and only the predecessor itself has to be looked at.
- The predecessor writes none of it, nor into the same lines of memory: a multiprocessor keeps what
  it has read by lines, and nothing says that it forgets them while a kernel waits.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ggsched.backend.program import Operand
from ggsched_cuda_kernels.calls import Call
from ggsched_kernels import KernelCall
from ggsched_kernels.calls import Launch

LINE: Final = 128
DEFINE: Final = ("READS_EARLY", "1")


def reading_early(call: Call, before: Call, writes: Iterable[Operand]) -> Call:
    """Return a call that reads its ``early_reads`` early, or as it was if it may not.

    Args:
        call: Any call; kernels that prefetch know the definition.
        before: The call that is enqueued before it, of the same program.
        writes: All that this one may write.
    """
    if not isinstance(call, KernelCall) or not call.early_reads:
        return call
    if not isinstance(before, KernelCall) or before.launch is not Launch.WAITS_FIRST:
        return call
    if any(_share_lines(a, b) for a in call.early_reads for b in writes):
        return call
    return replace(call, defines=tuple(sorted((*call.defines, DEFINE))))


def reads_early(call: Call, writes: Iterable[Operand]) -> bool:
    """Whether a call reads early what lies in lines of memory that a predecessor writes."""
    if not isinstance(call, KernelCall) or DEFINE not in call.defines:
        return False
    return any(_share_lines(a, b) for a in call.early_reads for b in writes)


def _share_lines(a: Operand, b: Operand) -> bool:
    def lines(o: Operand) -> range:
        return range(o.offset // LINE, -(-(o.offset + o.nbytes) // LINE))

    one, other = lines(a), lines(b)
    return a.buffer is b.buffer and one.start < other.stop and other.start < one.stop
