"""Verdicts of checker and explorer on the two variants of a litmus block."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from ggsched.sanitize import check_trace
from ggsched.sanitize.report import Finding, Report
from ggsched_testing.litmus.as_trace import litmus_trace
from ggsched_testing.litmus.explorer import Explored, explore_block
from ggsched_testing.litmus.program import VARIANTS, Kind, LitmusBlock, Op, Variant

_GRAVEST_FIRST: Final[tuple[tuple[str, Kind], ...]] = (
    ("capture", "capture"),
    ("race", "race"),
    ("content", "value"),
)
"""An illegal call ends the program, so that nothing after it means anything; and contents mean
nothing where something races."""


_RECORD: Final = re.compile(r"#(\d+)((?: (?!#)\S+){0,2})")
_EVENT: Final = re.compile(r"\be(\d+)\b")


class VariantResult(NamedTuple):
    """A ``BlockVerdict`` without its block, to be sent between processes."""

    variant: Variant
    verdict: Kind
    witness: str
    fix: str
    explored: Explored


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """The verdict on one variant of a block.

    Attributes:
        verdict: The sanitizer's verdict.
        witness: What it saw, in words; "" if clean.
        fix: The shortest repair that it knows; "" if clean.
        explored: What the explorer saw.
    """

    block: LitmusBlock
    variant: Variant
    verdict: Kind
    witness: str
    fix: str
    explored: Explored

    @property
    def agree(self) -> bool:
        """Whether checker and explorer say the same."""
        return self.verdict == self.explored.verdict

    @property
    def is_as_stated(self) -> bool:
        """Whether checker and explorer say what the header says."""
        return self.agree and self.verdict == self.block.expected(self.variant)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "id": self.block.id,
            "variant": self.variant,
            "verdict": self.verdict,
            "expected": self.block.expected(self.variant),
            "ok": self.is_as_stated,
            "agree": self.agree,
            "witness": self.witness or None,
            "fix": self.fix or None,
            "explorer": {
                "verdict": self.explored.verdict,
                "witness": self.explored.what or None,
                "schedules": self.explored.schedules,
                "executions": self.explored.executions,
            },
            "file": self.block.file,
            "line": self.block.line,
        }


def block_verdict(block: LitmusBlock) -> Iterator[BlockVerdict]:
    """Yield the verdict on each variant."""
    for variant in VARIANTS:
        yield variant_verdict(block, variant)


def variant_verdict(block: LitmusBlock, variant: Variant) -> BlockVerdict:
    """Check one variant in both ways."""
    findings = check_variant(block, variant).findings
    explored = explore_block(block, variant)
    for kind, verdict in _GRAVEST_FIRST:
        finding = next((f for f in findings if f.kind == kind), None)
        if finding is not None:
            return BlockVerdict(block, variant, verdict, finding.what, finding.fix, explored)
    return BlockVerdict(block, variant, "clean", "", "", explored)


def check_variant(block: LitmusBlock, variant: Variant, *, advice: bool = False) -> Report:
    """Return what the sanitizer says about one variant, in lines of the file."""
    trace, ops, events = litmus_trace(block, variant)
    names = _Names(ops, events)
    report = check_trace(trace, advice=advice)
    return replace(
        report,
        commands=len(block.variant(variant)),
        findings=tuple(names.finding(f) for f in report.findings),
        advice=tuple(names.finding(f) for f in report.advice),
    )


class _Names:
    """Turns numbers of records and events into lines and names of the program."""

    def __init__(self, ops: Sequence[Op | None], events: Sequence[str]) -> None:
        self._ops = ops
        self._events = events

    def finding(self, finding: Finding) -> Finding:
        """Return a finding about operations; what names both accesses needs no list of them."""
        op = self._ops[finding.command]
        return replace(
            finding,
            what=self.quoted(finding.what),
            fix=self.numbered(finding.fix),
            command=op.line if op else -1,
            earlier=None,
            later=None,
        )

    def quoted(self, text: str) -> str:
        """Put operations for records."""
        return _RECORD.sub(self._quote, text)

    def numbered(self, text: str) -> str:
        """Put lines for records and names for events."""
        named = _EVENT.sub(lambda m: self._events[int(m[1])], text)
        return _RECORD.sub(lambda m: f"line {self._line(m)}{m[2]}", named)

    def _quote(self, match: re.Match[str]) -> str:
        op = self._ops[int(match[1])]
        if op is None:
            return match[0]
        rest = match[2]
        for known in (f" {op.actor} {op.verb}", f" {op.actor}", f" {op.verb}"):
            if rest == known or rest.startswith(f"{known} "):
                rest = rest[len(known) :]
                break
        return f"line {op.line} '{op.text}'{rest}"

    def _line(self, match: re.Match[str]) -> int:
        op = self._ops[int(match[1])]
        return op.line if op else 0
