"""Which command of its plan each record of a run comes from."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from ggsched.plan.bundle import Plan
from ggsched.trace.schema import Entry, Run, Trace, Work
from ggsched.trace.unroll import unroll


class Origin(NamedTuple):
    """Where a record comes from.

    Attributes:
        run: Index in ``Trace.runs``, or -1.
        command: Id of the command in the run's plan, or -1 for what the host does by itself.
    """

    run: int = -1
    command: int = -1


_NOWHERE = Origin()
_IDS: Final = "read ids: "


def origins(trace: Trace) -> list[Origin]:
    """Return for each record of a trace the run and the command that it comes from.

    The records of a run stand in the order of the plan's commands, so they are laid beside what
    the plan would leave in a trace. A run that was cut short is the beginning of that. Rows that
    ids name come in as many copies as the record says that stands before them.
    """
    kinds = partial(_kind, trace)
    stencils = [_stencil(traced.plan) for traced in trace.plans]
    found = [_NOWHERE] * len(trace.entries)
    for number, run in enumerate(trace.runs):
        stencil, at = stencils[run.plan], 0
        following = 0
        for i in _records_of(trace, run):
            found[i] = Origin(number)
            if following and kinds(trace.entries[i]) == "work copy":
                following -= 1
                found[i] = Origin(number, stencil[at - 1][1])
                continue
            copies = _copies(trace.entries[i])
            if copies >= 0 and at < len(stencil) and stencil[at][0] == "ids":
                found[i] = Origin(number, stencil[at][1])
                at, following = at + 2, copies
                continue
            if at < len(stencil) and kinds(trace.entries[i]) == stencil[at][0]:
                found[i] = Origin(number, stencil[at][1])
                at += 1
    return found


def _records_of(trace: Trace, run: Run) -> Sequence[int]:
    entries = trace.entries
    return [
        i
        for i in range(run.first, min(run.end, len(entries)))
        if run.actor in (entries[i].actor, getattr(entries[i], "by", run.actor))
    ]


def _stencil(plan: Plan) -> list[tuple[str, int]]:
    """Return kind and command of each record that one run of a plan leaves."""
    trace, commands = unroll(plan, 1)
    pairs = zip(trace.entries, commands, strict=True)
    return [(_kind(trace, entry), command) for entry, command in pairs if command >= 0]


def ids_label(copies: int) -> str:
    """Return the label of a read of ids by the host, after which that number of copies follows."""
    return f"{_IDS}{copies} copies"


def _copies(entry: Entry) -> int:
    """Return how many copies follow the host's read of ids that a record is; -1 for none such."""
    if isinstance(entry, Work) and entry.label.startswith(_IDS):
        return int(entry.label.removeprefix(_IDS).split(" ", maxsplit=1)[0])
    return -1


def _kind(trace: Trace, entry: Entry) -> str:
    """Return what distinguishes records that follow each other in one order anyway."""
    name = str(type(entry).__struct_config__.tag)
    if isinstance(entry, Work):
        if trace.actors[entry.actor].kind == "host":
            if entry.label.startswith(_IDS):
                return "ids"
            # What the host does around a run is none of the plan's commands.
            is_source = "upload" in entry.label and not entry.writes
            return "source" if is_source else ""
        return f"{name} copy" if entry.is_copy else name
    return name
