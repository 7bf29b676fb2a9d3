"""What the checker reports, as data, as text and as JSON."""

import re
from collections.abc import Sequence
from textwrap import fill, wrap
from typing import Final, Literal

import msgspec

from ggsched.errors import RaceFound
from ggsched.ids import show

FindingKind = Literal[
    "race",
    "disorder",
    "undefined",
    "reuse",
    "stale",
    "event",
    "region",
    "declared",
    "launch",
    "hazard",
    "graph",
    "fusion",
    "weight",
    "relation",
    "id",
    "content",
    "freed",
    "progress",
    "capture",
    "waste",
]
"""``race``: two accesses without an order. ``disorder``: commands listed against the order of the
program, which touch the same bytes. ``undefined``: reads bytes that nothing has written.
``reuse``: reads bytes that hold another value. ``stale``: reads a replica older than its storage.
``event``: an event or barrier that is misused. ``region``: bytes outside their place, or a copy
onto itself. ``declared``: a launch that touches more than it says. ``launch``: a node or transfer
that is not carried out once, where the plan says. ``hazard``: a wait that names a hazard which it
does not discharge. ``graph``: a plan that does not compute its graph. ``fusion``: a group that is
not launched as one, or that overwrites what it reads. ``weight``: writes a weight. ``relation``:
artifacts of a plan that disagree, see ``ggsched.sanitize.relations``. ``id``: names what does not
exist. ``progress``: a wait that can never end. Of traces also ``content``: reads
other content than it needs. ``freed``: uses memory that has been freed. ``capture``: a call that a
capture does not stand. As advice ``waste``: nobody needs it."""

Hazard = Literal["", "RAW", "WAR", "WAW"]

WIDTH = 80


class Touch(msgspec.Struct, frozen=True):
    """One of the two accesses of a race.

    Attributes:
        command: Id of the command, or -1 for the host itself; of a trace the number of the record.
        run: Run of the plan, from 0; -1 for traces.
        actor: Stream and device, or ``"host"``.
        action: What is done there: the command, and the node that touches the bytes.
        mode: Whether the bytes are read or written.

    Examples:
        >>> from ggsched.sanitize import Touch
        >>> touch = Touch(12, 0, "q0 opencl:0", "launch s3, n40 mul_mat", "write")
    """

    command: int
    run: int
    actor: str
    action: str
    mode: Literal["read", "write"]

    def to_text(self) -> str:
        """Return e.g. ``c12 q0 opencl:0  run 0  launch s3, n40 mul_mat writes``.

        Examples:
            >>> touch.to_text()
            'c12 q0 opencl:0  run 0  launch s3, n40 mul_mat writes'
        """
        if self.run < 0:
            return f"#{self.command} {self.actor}  {self.action} {self.mode}s"
        name = f"{show('command', self.command)} " if self.command >= 0 else ""
        return f"{name}{self.actor}  run {self.run}  {self.action} {self.mode}s"


class Finding(msgspec.Struct, frozen=True):
    """One defect.

    Attributes:
        kind: What sort of defect.
        what: What is wrong, on one line.
        command: Id of the command where it shows, or number of the record, or -1.
        fix: The shortest repair.
        arena: Arena, or memory object of a trace, of the bytes concerned, or -1.
        start: First byte.
        end: One past the last.
        hazard: For a race ``RAW``, ``WAR`` or ``WAW``.
        earlier: For a race the access that is enqueued first.
        later: The other one.
        relation: For ``relation`` the name of the relation that does not hold.

    Examples:
        >>> from ggsched.sanitize import Finding
        >>> finding = Finding("waste", "a wait that nobody needs", command=3, fix="leave it out")
    """

    kind: FindingKind
    what: str
    command: int
    fix: str = ""
    arena: int = -1
    start: int = 0
    end: int = 0
    hazard: Hazard = ""
    earlier: Touch | None = None
    later: Touch | None = None
    relation: str = ""

    def to_text(self, number: str = "", width: int = WIDTH) -> str:
        """Return the finding in a few lines, the first of which begins with a number.

        Args:
            number: Such as ``"1. "``.
            width: Columns.

        Examples:
            >>> print(finding.to_text("1. "))
            1. waste: a wait that nobody needs
              fix: leave it out
        """
        kind = f"{self.kind} {self.relation}".rstrip()
        lines = [f"{number}{kind}: {self.what}"]
        lines += [f"  {touch.to_text()}" for touch in (self.earlier, self.later) if touch]
        lines += [f"  fix: {self.fix}"] if self.fix else []
        return "\n".join(fill(line, width, subsequent_indent="      ") for line in lines)


def instead(
    kind: FindingKind,
    says: str,
    found: object,
    due: object,
    command: int = -1,
    fix: str = "",
    at: tuple[int, int, int] = (-1, 0, 0),
    relation: str = "",
) -> Finding:
    """Return that something is not what it has to be.

    Args:
        kind: What sort of defect.
        says: Subject and verb, e.g. ``c3 reads``.
        found: What it says.
        due: What it has to say.
        command: Id of the command where it shows, or -1.
        fix: The shortest repair.
        at: Arena, first byte and end of the bytes concerned.
        relation: See ``Finding``.
    """
    what = f"{says} {found} instead of {due}"
    return Finding(kind, what, command, fix, *at, relation=relation)


_ID: Final = re.compile(r"#\d+|\b[a-z]\d+\b")
_SHOWN: Final = 12


def _alike(advice: Sequence[Finding]) -> list[list[Finding]]:
    """Return advice by what it says, ids apart, in the order in which each first comes."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in advice:
        key = finding.kind, _ID.sub("", finding.what), finding.fix
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _advice_lines(group: Sequence[Finding], width: int) -> list[str]:
    """Return advice, merged where it is the same for several commands."""
    first, *others = group
    if not others:
        return [first.to_text(width=width)]
    ids = [found[0] for f in others if (found := _ID.search(f.what))]
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    alike = f"  the same for {', '.join(ids[:_SHOWN])}{more}"
    said, *fix = first.to_text(f"{len(group)} times ", width).split("\n  fix: ")
    return [said, *wrap(alike, width, subsequent_indent="      "), *(f"  fix: {f}" for f in fix)]


class Report(msgspec.Struct, frozen=True):
    """All findings about a plan or a trace.

    Attributes:
        plan: Name of the plan or the trace.
        commands: Number of its commands or records.
        runs: Number of consecutive runs that were looked at; 0 for a trace.
        findings: What is wrong; empty if nothing is.
        advice: What is not wrong but costs time for nothing, where that was requested.

    Examples:
        >>> from ggsched.sanitize import Finding, Report
        >>> finding = Finding("race", "two writes without an order", command=3)
        >>> report = Report("small", 12, 2, (finding,))
        >>> report.is_clean
        False
    """

    plan: str
    commands: int
    runs: int
    findings: tuple[Finding, ...] = ()
    advice: tuple[Finding, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_text(self, width: int = WIDTH) -> str:
        """Return the report for people.

        Args:
            width: Columns.

        Examples:
            >>> report.to_text().splitlines()[0]
            'small: 12 commands, 2 runs: 1 finding'
        """
        size = (
            f"{self.commands} commands, {self.runs} runs"
            if self.runs
            else f"{self.commands} records"
        )
        count = len(self.findings)
        verdict = f"{count} finding{'s' if count > 1 else ''}" if count else "clean"
        lines = wrap(f"{self.plan}: {size}: {verdict}", width, subsequent_indent="  ")
        lines += [f.to_text(f"{i} ", width) for i, f in enumerate(self.findings, 1)]
        lines += [text for group in _alike(self.advice) for text in _advice_lines(group, width)]
        return "\n".join(lines) + "\n"

    def to_json(self) -> bytes:
        """Return the report as JSON.

        Examples:
            >>> report.to_json()[:16]
            b'{"plan":"small",'
        """
        return msgspec.json.encode(self, order="deterministic")

    def raise_if_findings(self) -> None:
        """Raise if anything is wrong.

        Raises:
            RaceFound: names the first finding and counts the others.

        Examples:
            >>> from ggsched.errors import RaceFound
            >>> try:
            ...     report.raise_if_findings()
            ... except RaceFound as error:
            ...     print(error.what)
            race: two writes without an order
        """
        if self.is_clean:
            return
        first, count = self.findings[0], len(self.findings)
        more = f", and {count - 1} more" if count > 1 else ""
        raise RaceFound(
            f"{first.kind}: {first.what}{more}",
            where=self.plan,
            hint=first.fix,
            details=first.to_text().splitlines(),
        )
