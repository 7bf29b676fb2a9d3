"""Litmus programs: small programs of host threads and queues, with a verdict to be proved.

``docs/reference/litmus.md`` defines the notation. Each program has a broken and a fixed variant.
Two judges that share no code look at each: the sanitizer, by clocks, at the program as a trace;
and the explorer, which runs all interleavings.
"""

from ggsched.testing.litmus.judge import Judgement, check_variant, judge_block
from ggsched.testing.litmus.notation import parse_litmus
from ggsched.testing.litmus.program import Block, Op, Range, Variant

__all__ = [
    "Block",
    "Judgement",
    "Op",
    "Range",
    "Variant",
    "check_variant",
    "judge_block",
    "parse_litmus",
]
