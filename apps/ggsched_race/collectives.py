"""Collectives of ``torch.distributed``: which group, and whether all ranks call the same ones.

Ranks have memory of their own, so that none races with another one as far as a recording sees. What
goes wrong between them is the order: a collective that some ranks call while others call another
one, or none, never ends, or mixes tensors.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from ggsched.errors import UsageError
from ggsched_race.call_sites import Stack
from ggsched_race.report import RaceFinding, RaceReport


class Called(msgspec.Struct, frozen=True):
    """A collective that a rank has called.

    Attributes:
        of: Name of the group.
        number: How many collectives of the group the rank has called before.
        name: Of the op.
        nbytes: Of the tensors that it was given.
        at: Number of the stack of the call.
    """

    of: str
    number: int
    name: str
    nbytes: int
    at: int = -1


class _Header(msgspec.Struct, frozen=True):
    name: str = ""
    sites: tuple[Stack, ...] = ()
    rank: int = 0
    groups: dict[str, tuple[int, ...]] = {}
    collectives: tuple[Called, ...] = ()


class Rank(NamedTuple):
    """A recorded rank.

    Attributes:
        number: Its rank; 0 if no collective was recorded.
        report: What is wrong with it by itself.
    """

    number: int
    header: _Header
    report: RaceReport


def rank_of(data: bytes, report: RaceReport) -> Rank:
    """Return what a trace of a rank says of collectives.

    Raises:
        UsageError: a field of the wrong type.
    """
    try:
        header = msgspec.json.decode(data.lstrip().partition(b"\n")[0], type=_Header)
    except msgspec.MsgspecError as error:
        what = "not a trace of 'ggsched race'"
        raise UsageError(what, where=report.name, why=str(error)) from error
    return Rank(header.rank, header, report)


def merged(ranks: Sequence[Rank]) -> RaceReport:
    """Return one report of several ranks of a program: races of each, and collectives that differ.

    Raises:
        UsageError: two traces are of one rank, or of different programs.
    """
    numbers = [rank.number for rank in ranks]
    if len(set(numbers)) < len(numbers):
        what = f"two traces are of rank {max(numbers, key=numbers.count)}"
        hint = "name one trace for each rank of one run, written by -o 'trace-{rank}.jsonl'"
        raise UsageError(what, where=" ".join(rank.report.name for rank in ranks), hint=hint)
    programs = sorted({rank.header.name for rank in ranks})
    if len(programs) > 1:
        raise UsageError(
            "the traces are of different programs",
            where=" ".join(rank.report.name for rank in ranks),
            why=" and ".join(programs),
            hint="name the traces of one run",
        )
    by_text: dict[str, tuple[RaceFinding, list[int]]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.number):
        for finding in rank.report.findings:
            by_text.setdefault(finding.to_text(0), (finding, []))[1].append(rank.number)
    findings = [
        msgspec.structs.replace(found, what=f"{_ranks(who)}: {found.what}")
        for found, who in by_text.values()
    ]
    reports = [rank.report for rank in ranks]
    return RaceReport(
        " ".join(report.name for report in reports),
        sum(report.records for report in reports),
        (*_differences(ranks), *findings),
        sum(report.suppressed for report in reports),
        is_cut_off=any(report.is_cut_off for report in reports),
        notices=tuple(dict.fromkeys(note for report in reports for note in report.notices)),
    )


def _differences(ranks: Sequence[Rank]) -> Iterable[RaceFinding]:
    """Yield for each group the first number at which ranks of it do not call the same."""
    by_rank = {rank.number: rank for rank in ranks}
    groups = {name: who for rank in ranks for name, who in rank.header.groups.items()}
    for name, members in sorted(groups.items()):
        present = [by_rank[number] for number in members if number in by_rank]
        calls = [[c for c in rank.header.collectives if c.of == name] for rank in present]
        for number in range(max(map(len, calls), default=0)):
            made = [mine[number] if number < len(mine) else None for mine in calls]
            facts = {None if call is None else (call.name, call.nbytes) for call in made}
            if len(facts) > 1:
                yield _difference(name, number, present, made)
                break


def _difference(
    group: str, number: int, ranks: Sequence[Rank], made: Sequence[Called | None]
) -> RaceFinding:
    said = []
    for rank, call in zip(ranks, made, strict=True):
        if call is None:
            said.append(f"rank {rank.number} calls none")
            continue
        sites = rank.header.sites
        stack = sites[call.at] if 0 <= call.at < len(sites) else ()
        where = f" at {stack[0].to_text()}" if stack else ""
        said.append(f"rank {rank.number} calls {call.name} of {call.nbytes} bytes{where}")
    what = f"collective {number + 1} of group {group!r} differs: {'; '.join(said)}"
    mend = "let all ranks of a group call the same collectives, of equal size, in one order"
    return RaceFinding("collective", "", what, "", mend)


def _ranks(numbers: Sequence[int]) -> str:
    names = ", ".join(map(str, numbers))
    return f"rank {names}" if len(numbers) == 1 else f"ranks {names}"


def group_of(arguments: Iterable[Any]) -> tuple[str, list[int], int] | None:
    """Return name and ranks of the process group among the arguments of an op, and this rank."""
    from torch import ScriptObject, distributed

    for value in arguments:
        group = value
        if isinstance(value, ScriptObject):
            try:
                group = distributed.ProcessGroup.unbox(value)
            except RuntimeError:  # something else
                continue
        elif isinstance(value, str):
            try:
                group = distributed.distributed_c10d._resolve_process_group(value)
            except (LookupError, RuntimeError, ValueError):  # the name of the reduction
                continue
        if isinstance(group, distributed.ProcessGroup):
            ranks = distributed.get_process_group_ranks(group)
            return group.group_name, ranks, distributed.get_rank()
    return None
