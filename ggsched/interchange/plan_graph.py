"""Plans as networkx graphs: commands with what orders them, splits with what flows between."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.splits import Transfer
from ggsched.plan.stats import device_name
from ggsched.plan.text import action_text

if TYPE_CHECKING:
    import networkx as nx

HOST_NODE: Final = "host"

Edge = tuple[str, str, dict[str, Any]]


def plan_to_networkx(plan: Plan) -> "nx.MultiDiGraph":
    """Return the commands of a plan, with what orders them and why.

    Nodes are printed command ids (``c42``) with attributes ``kind`` (``launch``, ``copy``,
    ``wait``, ...), ``engine`` (``compute``, ``copy`` or empty), ``label``, ``stream`` (``q0``) and
    ``device``. Edges have a ``kind``:

    * ``stream``: the next command of the same stream (STR-1);
    * ``event``: from the record to whoever waits for the event (EVT-2, EVT-5);
    * ``host``: from a host sync to the next command of each other stream, which the host enqueues
      after it (STR-5);
    * ``hazard``: from the earlier to the later of two commands that touch the same bytes, with
      ``hazard`` (``RAW``, ``WAR``, ``WAW``), ``arena``, ``start``, ``end``, ``by`` (the wait,
      barrier or host sync that discharges it) and ``next_run``. The host itself is ``"host"``.

    Within a run nothing is ordered but what the first three kinds order; on a device of
    ``copy_order`` ``barrier`` or ``host`` a copy and a launch need the barrier between them too.
    """
    import networkx as nx

    out = nx.MultiDiGraph(name=plan.name)
    for command in plan.commands:
        device = plan.streams.streams[command.stream].device
        out.add_node(
            show("command", command.id),
            kind=_kind(command),
            engine=command.effects.engine or "",
            label=action_text(plan, command),
            stream=show("stream", command.stream),
            device=device_name(plan, device),
        )
    for edges in (_stream_edges(plan), _event_edges(plan), _host_edges(plan), _hazard_edges(plan)):
        for src, dst, attributes in edges:
            if HOST_NODE in (src, dst) and HOST_NODE not in out:
                out.add_node(
                    HOST_NODE, kind="host", engine="", label="the host", stream="", device="host"
                )
            out.add_edge(src, dst, **attributes)
    return out


def splits_to_networkx(plan: Plan) -> "nx.MultiDiGraph":
    """Return the splits of a plan and what flows between them.

    Nodes are printed split ids (``s3``) with ``label``, ``device`` and ``nodes``, their number.
    An edge is a value (``value``, e.g. ``v9``) that one split makes and a later one reads, with
    ``nbytes`` and ``copied``: whether it is copied to another device. What a launch reads from a
    peer crosses without a copy.
    """
    import networkx as nx

    out = nx.MultiDiGraph(name=plan.name)
    for s in plan.splits.splits:
        label = f"nodes {show('node', s.first)}..{show('node', s.end - 1)}"
        name = device_name(plan, s.device)
        out.add_node(show("split", s.id), label=label, device=name, nodes=s.end - s.first)
    for src, dst, attributes in _flows(plan):
        out.add_edge(src, dst, **attributes)
    return out


def _kind(command: Command) -> str:
    return str(type(command).__struct_config__.tag)


def _stream_edges(plan: Plan) -> Iterator[Edge]:
    last: dict[int, Command] = {}
    for command in plan.commands:
        before = last.get(command.stream)
        if before is not None:
            yield _name(before.id), _name(command.id), {"kind": "stream"}
        last[command.stream] = command


def _event_edges(plan: Plan) -> Iterator[Edge]:
    recorded: dict[int, int] = {}
    for command in plan.commands:
        effects = command.effects
        recorded |= dict.fromkeys(effects.records, command.id)
        for event in effects.waits:
            if event in recorded:
                names = _name(recorded[event]), _name(command.id)
                yield *names, {"kind": "event", "event": show("event", event)}


def _host_edges(plan: Plan) -> Iterator[Edge]:
    """Yield an edge to each other stream's first command after a host sync."""
    pending: dict[int, int] = {}
    for command in plan.commands:
        sync = pending.pop(command.stream, None)
        if sync is not None:
            yield _name(sync), _name(command.id), {"kind": "host"}
        if command.effects.blocks_host:
            others = (s.id for s in plan.streams.streams if s.id != command.stream)
            pending |= dict.fromkeys(others, command.id)


def _hazard_edges(plan: Plan) -> Iterator[Edge]:
    for command in plan.commands:
        h = command.effects.hazard
        if h is not None:
            yield (
                _name(h.earlier),
                _name(h.later),
                {
                    "kind": "hazard",
                    "hazard": h.kind,
                    "arena": show("arena", h.arena),
                    "start": h.start,
                    "end": h.end,
                    "by": _name(command.id),
                    "next_run": h.next_run,
                },
            )


def _name(command: int) -> str:
    return HOST_NODE if command < 0 else show("command", command)


def _flows(plan: Plan) -> Iterator[Edge]:
    """Yield what each split reads of what an earlier one wrote; several reads are one edge."""
    splits = plan.splits
    filled: dict[int, list[Transfer]] = {}
    for transfer in splits.transfers:
        filled.setdefault(transfer.before, []).append(transfer)
    made: dict[int, tuple[int, bool]] = {}  # by value: who wrote its bytes, and whether elsewhere
    for split in splits.splits:
        for t in filled.get(split.id, ()):
            if t.src in made:
                made[t.dst] = made[t.src][0], True
            else:
                made.pop(t.dst, None)
        seen: set[int] = set()
        for node in range(split.first, split.end):
            *operands, result = splits.bindings[node]
            for value in operands:
                there, is_copied = made.get(value, (split.id, False))
                if there != split.id and value not in seen:
                    seen.add(value)
                    sizes = {"nbytes": splits.values[value].nbytes, "copied": is_copied}
                    names = show("split", there), show("split", split.id)
                    yield *names, {"value": show("value", value), **sizes}
            made[result] = split.id, False
