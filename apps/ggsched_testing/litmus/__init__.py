"""Litmus programs: small programs of host threads and queues, with a verdict to be proved.

``docs/reference/litmus.md`` defines the notation. Each program has a broken and a fixed variant.
Two checkers that share no code look at each: the sanitizer, by clocks, at the program as a trace;
and the explorer, which runs all interleavings.
"""

from ggsched_testing.litmus.notation import parse_litmus
from ggsched_testing.litmus.program import LitmusBlock, Op, Range, Variant
from ggsched_testing.litmus.verdict import BlockVerdict, block_verdict, check_variant

__all__ = [
    "BlockVerdict",
    "LitmusBlock",
    "Op",
    "Range",
    "Variant",
    "block_verdict",
    "check_variant",
    "parse_litmus",
]
