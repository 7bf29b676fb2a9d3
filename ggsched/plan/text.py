"""A plan for people: what runs where, what moves, what waits for what and why."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from textwrap import wrap

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Barrier, Command, HostSync
from ggsched.plan.effects import Effects
from ggsched.plan.splits import Split
from ggsched.plan.stats import PlanStats, device_name, plan_stats
from ggsched.plan.streams import Gain
from ggsched.topology.caps import capabilities, runs_by_reference
from ggsched.units import nbytes_text, seconds_text

_MAX_ROWS = 40


def plan_text(plan: Plan, *, verbose: bool = False, width: int = 80) -> str:
    """Return the plan as text, at most ``width`` columns wide.

    Args:
        verbose: Also every weight and state, every step of every launch, and long lists whole.
        width: Columns; longer lines are folded and continue indented.
    """
    missing = list(missing_ops(plan))
    lines = [f"plan of {plan.name!r}  graph {plan.graph[:12]}  topology {plan.topology[:12]}"]
    for title, rows in (
        ("devices", _devices(plan)),
        ("placements", candidate_rows(plan) if plan.placement.candidates else None),
        ("missing kernels", missing or None),
        ("splits", _splits(plan, verbose)),
        ("streams", stream_rows(plan, verbose=verbose) if plan.streams.gains else None),
        ("memory", _memory(plan, verbose)),
        ("commands", _commands(plan, verbose)),
        ("trades", trade_rows(plan) if plan.trades else None),
        ("groups", _groups(plan, verbose) if plan.fusions else None),
        ("stats", _stats(plan_stats(plan))),
    ):
        if rows is not None:
            lines += ["", title, *(f"  {row}" for row in rows)]
    return "\n".join(folded for line in lines for folded in _fold(line, width)) + "\n"


def candidate_rows(plan: Plan) -> Iterator[str]:
    """Yield a row for each placement of the whole graph that was compared, the taken one first."""
    for c in sorted(plan.placement.candidates, key=lambda c: not c.is_taken):
        took = c.reason if c.seconds is None else f"predicted {seconds_text(c.seconds)}"
        took += f", measured {seconds_text(c.measured_s)}" if c.measured_s is not None else ""
        lacks = f", lacks {nbytes_text(c.shortage_nbytes)}" if c.shortage_nbytes else ""
        yield f"{c.name}: {took}{lacks}{'  (taken)' if c.is_taken else ''}"


def command_text(plan: Plan, command: Command) -> str:
    """Return one command on one line, e.g. ``c12 q1 opencl:0  launch s3 n40..n62 (23 nodes)``."""
    device = device_name(plan, plan.streams.streams[command.stream].device)
    return f"{show('command', command.id)} {show('stream', command.stream)} {device}  " + (
        _action(plan, command)
    )


def action_text(plan: Plan, command: Command) -> str:
    """Return what a command does, e.g. ``launch s3 n40..n62 (23 nodes)``, without its reason."""
    effects = command.effects
    if effects.transfer < 0:
        return command.text
    value = show("value", plan.splits.transfers[effects.transfer].dst)
    what = f"{value} {_storage(plan, effects.transfer)}".rstrip()
    return f"{command.text}  {what}{_chosen(effects)}"


def _action(plan: Plan, command: Command) -> str:
    hazard = command.effects.hazard
    return action_text(plan, command) + ("" if hazard is None else f"  {hazard.text}")


def _chosen(effects: Effects) -> str:
    """Return which rows are copied: by which ids, of which length, and what remembers them."""
    traffic = effects.traffic
    if traffic is None or not traffic.row_nbytes:
        return ""
    cache = "".join(f", cache {region.text}" for region in effects.writes[:-1])
    ids = "".join(region.text for region in effects.host_reads)
    return f" by {ids}, rows of {traffic.row_nbytes} B{cache}"


def _storage(plan: Plan, transfer: int) -> str:
    source = plan.splits.values[plan.splits.transfers[transfer].src]
    storage = source.storage
    if source.bound:
        return repr(source.bound)
    for slot in plan.inputs:
        if plan.splits.values[slot.value].storage == storage:
            return repr(slot.name)
    return ""


def _devices(plan: Plan) -> Iterator[str]:
    for i, d in enumerate(plan.devices):
        streams = [show("stream", s.id) for s in plan.streams.streams if s.device == i]
        said = [c.shown.get(getattr(d, c.name)) for c in capabilities().values() if c.shown]
        traits = [text for text in said if text]
        used = " ".join(streams) or "unused"
        yield f"{show('device', i)} {d.name}  {used}  ({', '.join(traits)})"


def _splits(plan: Plan, verbose: bool) -> Iterator[str]:
    shown = plan.splits.splits if verbose else plan.splits.splits[:_MAX_ROWS]
    for split in shown:
        name = device_name(plan, split.device)
        used = dict.fromkeys(plan.streams.of_node[split.first : split.end])
        stream = " ".join(show("stream", s) for s in sorted(used))
        last = show("node", split.end - 1)
        nodes = f"{show('node', split.first)}..{last} ({split.end - split.first} nodes)"
        yield f"{show('split', split.id)} {name} {stream}  {nodes}  {_causes(plan, split, verbose)}"
    yield from _more(len(plan.splits.splits) - len(shown), "splits")


def _causes(plan: Plan, split: Split, verbose: bool) -> str:
    """Return why the nodes are here, e.g. ``weights 'w' x3, expand-down x20``."""
    choices = plan.placement.choices[split.first : split.end]
    runs = [(key, sum(1 for _ in group)) for key, group in groupby(choices, lambda c: c.cause)]
    if len(runs) > 4 and not verbose:
        totals: dict[str, int] = {}
        for cause, count in runs:
            totals[cause] = totals.get(cause, 0) + count
        return ", ".join(f"{cause} x{count}" for cause, count in totals.items())
    first = f" ({choices[0].detail})" if choices and choices[0].detail else ""
    texts = [f"{cause} x{count}" if count > 1 else cause for cause, count in runs]
    return ", ".join([texts[0] + first, *texts[1:]])


def _memory(plan: Plan, verbose: bool) -> Iterator[str]:
    kept: dict[tuple[int, str], list[int]] = {}
    for a in plan.memory.arenas:
        if a.kind in ("weight", "state", "cache"):
            kept.setdefault((a.device, a.kind), []).append(a.nbytes)
    for (device, kind), sizes in sorted(kept.items()):
        plural = f"{kind}s" if len(sizes) > 1 else kind
        yield f"{device_name(plan, device)}  {len(sizes)} {plural}, {nbytes_text(sum(sizes))}"
    for a in plan.memory.arenas:
        if a.kind in ("weight", "state", "cache") and not verbose:
            continue
        least = plan.memory.lower_bound.get(a.id)
        hinted = plan.memory.hinted_bound.get(a.id)
        bound = f", live at once {nbytes_text(least)}" if least is not None else ""
        bound += f", {nbytes_text(hinted)} with retention hints" if hinted is not None else ""
        name = f" {a.name!r}" if a.name else ""
        size = nbytes_text(a.nbytes)
        yield f"{show('arena', a.id)} {device_name(plan, a.device)}  {a.kind}{name} {size}{bound}"


def _commands(plan: Plan, verbose: bool) -> Iterator[str]:
    shown = plan.commands if verbose else plan.commands[:_MAX_ROWS]
    for command in shown:
        yield command_text(plan, command)
        for step in command.effects.steps if verbose else ():
            if step.node >= 0:
                info = plan.nodes[step.node]
                label = f" {info.label!r}" if info.label else ""
                touched = zip(step.modes, step.operands, strict=True)
                places = " ".join(f"{mode}:{region.text}" for mode, region in touched)
                yield f"    {show('node', step.node)} {info.op}{label}  {places}"
    yield from _more(len(plan.commands) - len(shown), "commands")


def _groups(plan: Plan, verbose: bool) -> Iterator[str]:
    """Yield how many groups there are of each pattern, or all of them."""
    if verbose:
        for f in plan.fusions:
            yield f"{f.pattern}  {' '.join(show('node', n) for n in f.nodes)}"
        return
    for pattern in dict.fromkeys(f.pattern for f in plan.fusions):
        yield f"{pattern} x{sum(f.pattern == pattern for f in plan.fusions)}"


def _stats(stats: PlanStats) -> Iterator[str]:
    yield f"{stats.nodes} nodes, {stats.splits} splits, {stats.transfers} transfers"
    if any(count > 1 for count in stats.streams.values()):
        yield ", ".join(f"{name} {count} streams" for name, count in stats.streams.items())
    yield (
        f"{stats.waits} waits, {stats.barriers} barriers, {stats.host_syncs} host syncs, "
        f"{stats.commands.get('record', 0)} events"
    )
    for path, nbytes in stats.copied.items():
        yield f"{path}  {nbytes_text(nbytes)} each run"
    for path, nbytes in stats.peer_reads.items():
        yield f"{path}  {nbytes_text(nbytes)} each run, read by launches"
    for path, nbytes in stats.chosen.items():
        yield f"{path}  rows that ids choose, of {nbytes_text(nbytes)}"
    for name, nbytes in stats.compute.items():
        yield f"{name}  compute {nbytes_text(nbytes)}"
    yield f"compute memory is {stats.waste:.3f} of what lives at once"
    if stats.planning_s:
        yield f"planned in {seconds_text(stats.planning_s)}"


def _more(count: int, what: str) -> Sequence[str]:
    return [f"... and {count} more {what}"] if count > 0 else []


def _fold(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    return wrap(
        line,
        width,
        initial_indent="",
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


# --- streams --------------------------------------------------------------------------------------


def stream_rows(plan: Plan, *, verbose: bool = False) -> Iterator[str]:
    """Yield a row for each split for which several streams were considered, takers first.

    Args:
        verbose: All rows; else the first forty.
    """
    gains = sorted(plan.streams.gains, key=lambda gain: (not gain.is_taken, gain.split))
    shown = gains if verbose else gains[:_MAX_ROWS]
    for gain in shown:
        device = plan.devices[plan.splits.splits[gain.split].device].name
        yield f"{device} {show('split', gain.split)}: {gain_text(gain)}"
    if len(shown) < len(gains):
        yield f"... and {len(gains) - len(shown)} more splits"


def gain_text(gain: Gain) -> str:
    """Return what several streams are predicted to gain, or why there is one.

    If the device proposes lanes, what is predicted of them follows.
    """
    proposed = ""
    if gain.proposed_s is not None:
        is_used = gain.proposed_s == gain.concurrent_s
        takes = "are these" if is_used else f"would take {seconds_text(gain.proposed_s)}"
        proposed = f"; the lanes that the device proposes {takes}"
    return f"{_gain_text(gain)}{proposed}"


def _gain_text(gain: Gain) -> str:
    alone, beside = seconds_text(gain.sequential_s), seconds_text(gain.concurrent_s)
    if gain.is_taken:
        return f"{gain.streams} streams, predicted {beside} instead of {alone}"
    if gain.concurrent_s >= gain.sequential_s:
        return f"sequential, {alone}: {gain.streams} streams are predicted to gain nothing"
    took = f"{gain.streams} streams are predicted to take {beside}"
    return f"sequential, {alone}: {took}, too small a gain for their events"


def trade_rows(plan: Plan) -> Iterator[str]:
    """Yield a row for each wait that exists to save memory."""
    for trade in plan.trades:
        command = plan.commands[trade.command]
        kind = {Barrier: "barrier", HostSync: "host sync"}.get(type(command), "wait")
        yield (
            f"{show('command', trade.command)}: this {kind} saves "
            f"{nbytes_text(trade.saved_nbytes)} and costs {seconds_text(trade.cost_s)}"
        )


# --- missing kernels ------------------------------------------------------------------------------


def missing_ops(plan: Plan) -> Iterator[str]:
    """Yield a line for each op that splits the work of a device which has no kernel for it.

    The splits are those that would not be there if nodes of the op ran between their neighbours.
    Ops that are decomposed have a line each with the nodes that they became; so have ops that a
    device computes by their reference arithmetic.
    """
    decomposed = Counter(
        (plan.devices[c.device].name, c.detail.partition(",")[0])
        for c in plan.placement.choices
        if c.cause == "decomposed"
    )
    for (name, op), count in sorted(decomposed.items()):
        yield f"{name} has no {op!r}: decomposed into {count} {'node' if count == 1 else 'nodes'}"
    devices = [choice.device for choice in plan.placement.choices]
    placed = Counter((device, n.op) for device, n in zip(devices, plan.nodes, strict=True))
    for (device, op), count in sorted(placed.items()):
        facts = plan.devices[device]
        if runs_by_reference(facts, op):
            nodes = "1 node" if count == 1 else f"{count} nodes"
            yield f"{facts.name} has no {op!r}: {nodes} by the reference arithmetic"
    for device, facts in enumerate(plan.devices):
        supported = {key.partition(":")[0] for key in facts.ops}
        libraries = {key.removesuffix("*") for key in supported if key.endswith(".*")}
        used = {n.op for n in plan.nodes if not n.op.startswith(tuple(libraries))}
        for op in sorted(used - supported):
            moved = list(devices)
            for i, node in enumerate(plan.nodes):
                if node.op == op and i and moved[i - 1] == device:
                    moved[i] = device
            more = _changes(devices) - _changes(moved)
            if more > 0:
                what = "split" if more == 1 else "splits"
                yield f"{facts.name} has no {op!r}: {more} more {what}"


def _changes(devices: list[int]) -> int:
    return sum(a != b for a, b in pairwise(devices))
