"""What a run of the kit found, as data and as text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from ggsched.errors import GgschedError
from ggsched_testing.conformance.case import Case
from ggsched_testing.conformance.rules import RULES

Verdict = Literal["pass", "fail", "skip", "xfail", "unsupported"]

DEVICE_LOST: Final = "device lost"
"""What reasons of results begin with that lost their device, or did not get one any more."""


class ContractBroken(GgschedError):
    """A backend that breaks rules of the contract; the message names the first cases."""

    code = "CONTRACT"
    exit_code = 1


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case.

    Attributes:
        verdict: ``pass``; ``fail``, a finding; ``skip``, a need is not met; ``xfail``, failed as
            its waiver says; ``unsupported``, not run because of a waiver.
        reason: What was found, or why it did not count.
        program: The calls that show it, for a failure.
        seed: With which it ran.
        seconds: How long it took.
        error: What was raised, with its traceback, for whoever looks closer.
    """

    case: Case
    verdict: Verdict
    reason: str = ""
    program: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 0.0
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def is_lost(self) -> bool:
        """Whether the device was lost in the case, or before it."""
        return self.reason.startswith(DEVICE_LOST)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON data."""
        return {
            "case": self.case.name,
            "rule": self.case.rule,
            "statement": self.case.statement,
            "verdict": self.verdict,
            "reason": self.reason,
            "program": list(self.program),
            "seed": self.seed,
            "seconds": round(self.seconds, 4),
        }


class CaseOutcome(NamedTuple):
    """A ``CaseResult`` without case and exception, to be sent between processes."""

    verdict: Verdict
    reason: str
    program: tuple[str, ...]
    seed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What a run of the kit found.

    Attributes:
        name: Of the harness, e.g. ``"opencl:0"``.
        seed: With which it ran.
        results: One for each case, in the order of the rules.
        stale: Waivers that are of no use any more, each with why; they count as findings.
    """

    name: str
    seed: int
    results: tuple[CaseResult, ...]
    stale: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[CaseResult, ...]:
        """The cases that failed."""
        return tuple(r for r in self.results if r.verdict == "fail")

    @property
    def ok(self) -> bool:
        """Whether no case failed and no waiver is stale."""
        return not self.findings and not self.stale

    @property
    def broken_rules(self) -> tuple[str, ...]:
        """The rules that are broken, in order."""
        broken = {r.case.rule for r in self.findings}
        return tuple(rule for rule in RULES if rule in broken)

    def by_rule(self) -> dict[str, list[CaseResult]]:
        """Return the results of each rule that has any."""
        found: dict[str, list[CaseResult]] = {}
        for result in self.results:
            found.setdefault(result.case.rule, []).append(result)
        return found

    def raise_if_findings(self) -> None:
        """Raise where something was found.

        Raises:
            ContractBroken: with the first findings as details.
        """
        if self.ok:
            return
        broken = ", ".join(self.broken_rules) or "no rule"
        details = [line for r in self.findings[:3] for line in explain(r, self.name)]
        error = ContractBroken(
            f"breaks {broken}" if self.findings else "has stale waivers",
            where=self.name,
            why="; ".join([f"{r.case.name}: {r.reason}" for r in self.findings[:3]] or self.stale),
            details=details,
        )
        for line in details:
            error.add_note(line)
        raise error

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON data."""
        return {
            "format": "ggsched-conformance/1",
            "name": self.name,
            "seed": self.seed,
            "ok": self.ok,
            "broken_rules": list(self.broken_rules),
            "stale_waivers": list(self.stale),
            "cases": [r.to_json() for r in self.results],
        }


def summary(results: Sequence[CaseResult]) -> str:
    """Return the verdict on a rule in a few words, e.g. ``"ok"`` or ``"2 of 5 FAILED"``."""
    count = {v: sum(r.verdict == v for r in results) for v in ("fail", "xfail", "pass")}
    waived = count["xfail"] + sum(r.verdict == "unsupported" for r in results)
    if count["fail"]:
        text = f"{count['fail']} of {len(results)} FAILED"
    elif count["pass"]:
        text = "ok"
    elif waived:
        text = "waived"
    else:
        reasons = dict.fromkeys(r.reason for r in results)
        return f"skipped: {next(iter(reasons))}"
    skipped = sum(r.verdict == "skip" for r in results)
    extra = [f"{waived} waived"] if waived and text != "waived" else []
    extra += [f"{skipped} skipped"] if skipped else []
    return ", ".join([text, *extra])


def explain(result: CaseResult, name: str, options: str = "") -> Iterator[str]:
    """Yield the lines that describe a failure: rule, statement, program, replay.

    Args:
        result: The failure.
        name: Of the device.
        options: Others that the replay needs, each behind a space.
    """
    yield f"{result.case.rule} {result.case.name} FAILED"
    yield f"  rule: {RULES[result.case.rule]}"
    yield f"  case: {result.case.statement}"
    yield f"  found: {result.reason}"
    if result.program:
        yield "  program:"
        for line in result.program:
            yield f"    {line}"
    replay = f"ggsched conform {name} --rules {result.case.name} --seed {result.seed}"
    yield f"  replay: {replay}{options}"
