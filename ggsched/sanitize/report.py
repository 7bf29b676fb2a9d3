"""What the judge has to say, as data, as text and as JSON."""

from textwrap import wrap
from typing import Literal

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
    "weight",
    "id",
]
"""``race``: two accesses without an order. ``disorder``: commands listed against the order of the
program, which touch the same bytes. ``undefined``: reads bytes that nothing has written.
``reuse``: reads bytes that hold another value. ``stale``: reads a replica older than its storage.
``event``: an event or barrier that is misused. ``region``: bytes outside their place, or a copy
onto itself. ``declared``: a launch that touches more than it says. ``weight``: writes a weight.
``id``: names what does not exist."""

WIDTH = 80


class Touch(msgspec.Struct, frozen=True):
    """One of the two accesses of a race.

    Attributes:
        command: Id of the command, or -1 for the host itself.
        run: Run of the plan, from 0.
        actor: Stream and device, or ``"host"``.
        action: What is done there: the command, and the node that touches the bytes.
        mode: Whether the bytes are read or written.
    """

    command: int
    run: int
    actor: str
    action: str
    mode: Literal["read", "write"]

    def to_text(self) -> str:
        """Return e.g. ``c12 q0 opencl:0  run 0  launch s3, n40 mul_mat writes``."""
        name = f"{show('command', self.command)} " if self.command >= 0 else ""
        return f"{name}{self.actor}  run {self.run}  {self.action} {self.mode}s"


class Finding(msgspec.Struct, frozen=True):
    """One defect.

    Attributes:
        kind: What sort of defect.
        what: What is wrong, on one line.
        command: Id of the command where it shows, or -1.
        fix: The shortest repair.
        arena: Arena of the bytes concerned, or -1.
        start: First byte.
        end: One past the last.
        hazard: For a race ``RAW``, ``WAR`` or ``WAW``.
        earlier: For a race the access that is enqueued first.
        later: The other one.
    """

    kind: FindingKind
    what: str
    command: int
    fix: str = ""
    arena: int = -1
    start: int = 0
    end: int = 0
    hazard: Literal["", "RAW", "WAR", "WAW"] = ""
    earlier: Touch | None = None
    later: Touch | None = None

    def to_text(self) -> str:
        """Return the finding in a few lines."""
        lines = [f"{self.kind}: {self.what}"]
        lines += [f"  {touch.to_text()}" for touch in (self.earlier, self.later) if touch]
        lines += [f"  fix: {self.fix}"] if self.fix else []
        folded = (wrap(line, WIDTH, subsequent_indent="      ") for line in lines)
        return "\n".join(part for parts in folded for part in parts)


class Report(msgspec.Struct, frozen=True):
    """All findings about a plan.

    Attributes:
        plan: Name of the plan.
        commands: Number of its commands.
        runs: Number of consecutive runs that were looked at.
        findings: What is wrong; empty if nothing is.
    """

    plan: str
    commands: int
    runs: int
    findings: tuple[Finding, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_text(self) -> str:
        """Return the report for people, 80 columns wide."""
        head = f"{self.plan}: {self.commands} commands, {self.runs} runs"
        if self.is_clean:
            return f"{head}: clean\n"
        count = len(self.findings)
        lines = [f"{head}: {count} finding{'s' if count > 1 else ''}"]
        lines += [f"{i} {f.to_text()}" for i, f in enumerate(self.findings, 1)]
        return "\n".join(lines) + "\n"

    def to_json(self) -> bytes:
        """Return the report as JSON."""
        return msgspec.json.encode(self, order="deterministic")

    def raise_if_findings(self) -> None:
        """Raise if anything is wrong.

        Raises:
            RaceFound: names the first finding and counts the others.
        """
        if self.is_clean:
            return
        first, count = self.findings[0], len(self.findings)
        more = f", and {count - 1} more" if count > 1 else ""
        raise RaceFound(
            f"{first.kind}: {first.what}{more}",
            where=self.plan,
            hint=first.fix,
            story=first.to_text().splitlines(),
        )
