"""Graphs and plans in the DOT language, for Graphviz and whatever else reads it.

    open("plan.dot", "w").write(plan_to_dot(plan))       # then: dot -Tsvg plan.dot > plan.svg

Layout takes longer than anybody waits for many nodes, so there is a limit. What is left out is said
in the picture itself.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ggsched.ids import show
from ggsched.interchange.plan_graph import HOST_NODE, plan_to_networkx, splits_to_networkx
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.plan.bundle import Plan
from ggsched.units import nbytes_text

MAX_NODES: Final = 500
MAX_LABEL: Final = 120
_LEAVES: Final = {"input": "ellipse", "weight": "cylinder", "state": "cylinder"}
_SHAPES: Final = {
    "compute": "box3d",
    "copy": "cds",
    "host_sync": "octagon",
    "host": "doubleoctagon",
}
_EDGES: Final = {
    "stream": {},
    "event": {"color": "blue"},
    "host": {"color": "blue", "style": "dashed"},
    "hazard": {"color": "red", "constraint": "false"},
}


def graph_to_dot(graph: Graph, *, max_nodes: int = MAX_NODES) -> str:
    """Return the data flow of a graph, as ``Graph.to_networkx`` has it.

    Args:
        max_nodes: Most nodes and leaves; the first are kept.
    """
    flow = graph.to_networkx()
    order = [show("node", n.id) for n in graph.nodes]
    leaves = {show("tensor", t.id) for t in graph.tensors if t.role is not Role.TEMP}
    kept = _first_with_leaves(flow, order, leaves, max_nodes)
    lines = []
    for key in kept:
        data = flow.nodes[key]
        shape = f"{data['dtype']}{list(data['shape'])}"
        first = f"{key} {data.get('op', data.get('role'))}"
        look = _LEAVES.get(data.get("role", ""), "box")
        lines.append(_node(key, [first, data["label"], shape], shape=look))
    kept_set = set(kept)
    for src, dst in dict.fromkeys(flow.edges()):
        if src in kept_set and dst in kept_set:
            lines.append(_edge(src, dst))
    return _document(graph.name, lines, len(flow) - len(kept), "nodes", max_nodes)


def plan_to_dot(plan: Plan, *, max_nodes: int = MAX_NODES) -> str:
    """Return the commands of a plan, a box for each stream, as ``plan_to_networkx`` has them.

    Black edges are the order of a stream, blue ones events, dashed ones the host, red ones hazards;
    a dotted red edge leads to the next run.

    Args:
        max_nodes: Most commands; the first are kept.
    """
    flow = plan_to_networkx(plan)
    kept = [show("command", c.id) for c in plan.commands[:max_nodes]]
    kept_set = {*kept, HOST_NODE}
    lines = []
    for stream in plan.streams.streams:
        name = show("stream", stream.id)
        inside = [key for key in kept if flow.nodes[key]["stream"] == name]
        if inside:
            title = f"{name} {flow.nodes[inside[0]]['device']}"
            lines += [f"subgraph {_quoted(f'cluster_{name}')} {{", f"  label={_quoted(title)};"]
            lines += [f"  {_command(flow.nodes[key], key)}" for key in inside]
            lines.append("}")
    if HOST_NODE in flow:
        lines.append(_command(flow.nodes[HOST_NODE], HOST_NODE))
    for src, dst, data in flow.edges(data=True):
        if src in kept_set and dst in kept_set:
            lines.append(_edge(src, dst, **_look(data)))
    return _document(plan.name, lines, len(plan.commands) - len(kept), "commands", max_nodes)


def splits_to_dot(plan: Plan, *, max_nodes: int = MAX_NODES) -> str:
    """Return the splits of a plan and the bytes between them, as ``splits_to_networkx`` has them.

    Args:
        max_nodes: Most splits; the first are kept.
    """
    flow = splits_to_networkx(plan)
    kept = list(flow)[:max_nodes]
    kept_set = set(kept)
    lines = []
    for key in kept:
        data = flow.nodes[key]
        lines.append(_node(key, [f"{key} {data['device']}", data["label"]], shape="box"))
    totals: dict[tuple[str, str, bool], int] = {}
    for src, dst, data in flow.edges(data=True):
        key = (src, dst, data["copied"])
        totals[key] = totals.get(key, 0) + data["nbytes"]
    for (src, dst, is_copied), nbytes in totals.items():
        if src in kept_set and dst in kept_set:
            color = "blue" if is_copied else "black"
            lines.append(_edge(src, dst, label=nbytes_text(nbytes), color=color))
    return _document(plan.name, lines, len(flow) - len(kept), "splits", max_nodes)


def _first_with_leaves(flow: Any, order: list[str], leaves: set[str], limit: int) -> list[str]:
    """Return the first nodes in program order, each after the leaves that it is first to use."""
    kept: dict[str, None] = {}
    for key in order:
        new = [k for k in (*flow.predecessors(key), key) if k == key or k in leaves]
        if len(kept | dict.fromkeys(new)) > limit:
            break
        kept |= dict.fromkeys(new)
    rest = (key for key in flow if key in leaves and not flow.out_degree(key))
    for key in rest:
        if len(kept) < limit:
            kept[key] = None
    return list(kept)


def _command(data: dict[str, Any], key: str) -> str:
    shape = _SHAPES.get(data["engine"] or data["kind"], "plain")
    text = data["label"] if key == HOST_NODE else f"{key} {data['label']}"
    return _node(key, [text], shape=shape)


def _look(data: dict[str, Any]) -> dict[str, str]:
    look = dict(_EDGES[data["kind"]])
    if data["kind"] == "event":
        look["label"] = data["event"]
    if data["kind"] == "hazard":
        look["label"] = f"{data['hazard']} {data['arena']} by {data['by']}"
        if data["next_run"]:
            look["style"] = "dotted"
    return look


def _node(key: str, texts: Iterable[str], **attributes: str) -> str:
    label = "\\n".join(_escaped(text) for text in texts if text)
    return f'{_quoted(key)} [label="{label}"{_attributes(attributes)}];'


def _edge(src: str, dst: str, **attributes: str) -> str:
    listed = _attributes(attributes).removeprefix(", ")
    return f"{_quoted(src)} -> {_quoted(dst)}{f' [{listed}]' if listed else ''};"


def _attributes(attributes: dict[str, str]) -> str:
    return "".join(f", {name}={_quoted(value)}" for name, value in attributes.items())


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Return text for the inside of quotes: a name from a file may be anything."""
    short = text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 3]}..."
    plain = "".join(c if c.isprintable() else " " for c in short)
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def _document(name: str, lines: Iterable[str], left_out: int, what: str, limit: int) -> str:
    def whole() -> Iterator[str]:
        yield f"digraph {_quoted(name)} {{"
        yield "  node [fontname=Helvetica, fontsize=10]; edge [fontname=Helvetica, fontsize=9];"
        yield from (f"  {line}" for line in lines)
        if left_out > 0:
            text = f"{left_out} more {what} are left out: at most {limit} are drawn"
            yield f"  {_node('left out', [text], shape='note')}"
        yield "}"

    return "\n".join(whole()) + "\n"
