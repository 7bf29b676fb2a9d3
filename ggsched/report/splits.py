"""A plan for the page: its devices, arenas, and splits as a graph."""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.stats import device_name

Data = dict[str, Any]

_LAYER: Final = re.compile(r"blk\.(\d+)\.")


def plan_data(plan: Plan) -> Data:
    """Return a plan as plain JSON data: what the page shows of it."""
    return {
        "name": plan.name,
        "devices": [d.name for d in plan.devices],
        "nodes": len(plan.nodes),
        "commands": len(plan.commands),
        "arenas": [
            {
                "id": a.id,
                "kind": a.kind,
                "device": device_name(plan, a.device),
                "bytes": a.nbytes,
                "least": plan.memory.lower_bound.get(a.id),
            }
            for a in plan.memory.arenas
            if a.kind not in ("weight", "state")
        ],
        "splits": [_split(plan, i) for i in range(len(plan.splits.splits))],
        "edges": split_edges(plan),
    }


def _split(plan: Plan, number: int) -> Data:
    split = plan.splits.splits[number]
    choices = plan.placement.choices[split.first : split.end]
    causes = [f"{cause} x{len(list(group))}" for cause, group in groupby(c.cause for c in choices)]
    streams = sorted(set(plan.streams.of_node[split.first : split.end]))
    ops: dict[str, int] = defaultdict(int)
    for info in plan.nodes[split.first : split.end]:
        ops[info.op] += 1
    return {
        "device": split.device,
        "stream": " ".join(show("stream", stream) for stream in streams),
        "first": split.first,
        "end": split.end,
        "layers": layers_text(info.label for info in plan.nodes[split.first : split.end]),
        "ops": ", ".join(f"{op} x{n}" if n > 1 else op for op, n in ops.items()),
        "causes": ", ".join(causes[:6]) + (", ..." if len(causes) > 6 else ""),
    }


def layers_text(labels: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return the layers that nodes belong to, e.g. ``layers 0-11, 30``, by labels ``blk.3.ffn``.

    Args:
        elsewhere: Labels of other nodes; a layer that has some of these too is named as a part.
    """
    found, others = _layers(labels), _layers(elsewhere)
    parts = _ranges_text(found & others)
    return ", ".join(filter(None, (_ranges_text(found - others), parts and f"part of {parts}")))


def _layers(labels: Iterable[str]) -> set[int]:
    return {int(m[1]) for m in map(_LAYER.match, labels) if m}


def _ranges_text(found: set[int]) -> str:
    if not found:
        return ""
    ranges: list[list[int]] = []
    for layer in sorted(found):
        if ranges and layer == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], layer]
        else:
            ranges.append([layer])
    spans = ", ".join("-".join(map(str, r)) for r in ranges)
    return f"layer{'s' if len(found) > 1 else ''} {spans}"


def split_edges(plan: Plan) -> list[list[int]]:
    """Return what flows between splits, as [from, to, bytes, copied]; sorted.

    A value that crosses to another device is a transfer; one that stays is read where it lies.
    """
    splits = plan.splits
    split_of = [s.id for s in splits.splits for _ in range(s.first, s.end)]
    source: dict[int, int] = {}
    for node, bound in enumerate(splits.bindings):
        if bound:
            source[bound[-1]] = split_of[node]
    origin = {t.dst: t for t in splits.transfers if t.has_source}
    flows: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
    for node, bound in enumerate(splits.bindings):
        here = split_of[node]
        for value in bound[:-1]:
            transfer, at = origin.get(value), value
            while at not in source and at in origin:  # perhaps over host memory
                at = origin[at].src
            there = source.get(at)
            if there is not None and there != here and there < here:
                key = (there, here, int(transfer is not None))
                flows[key][value] = splits.values[value].nbytes
    return sorted([a, b, sum(sizes.values()), copied] for (a, b, copied), sizes in flows.items())
