"""Reads the part of the DOT language that is written here, and accepts nothing else."""

import re

QUOTED = r'"(?:[^"\\\n]|\\.)*"'
ATTRIBUTE = rf"[a-z]+=(?:{QUOTED}|\w+)"
ATTRIBUTES = rf"\[{ATTRIBUTE}(?:, {ATTRIBUTE})*\]"
FORMS = {
    "begin": re.compile(rf"(?:digraph|subgraph) ({QUOTED}) {{"),
    "end": re.compile(r"}"),
    "label": re.compile(rf"label=({QUOTED});"),
    "defaults": re.compile(rf"node {ATTRIBUTES}; edge {ATTRIBUTES};"),
    "edge": re.compile(rf"({QUOTED}) -> ({QUOTED})(?: {ATTRIBUTES})?;"),
    "node": re.compile(rf"({QUOTED}) {ATTRIBUTES};"),
}


def read(text):
    """Return the names of all nodes, and the pairs of all edges, each in order."""
    nodes, edges, depth = [], [], 0
    for line in text.splitlines():
        (kind, match), *_ = [
            (kind, form.fullmatch(line.strip()))
            for kind, form in FORMS.items()
            if form.fullmatch(line.strip())
        ] or [(None, None)]
        assert kind is not None, f"not understood: {line}"
        depth += {"begin": 1, "end": -1}.get(kind, 0)
        assert depth > 0 or kind == "end"
        if kind == "node":
            nodes.append(match[1][1:-1])
        elif kind == "edge":
            edges.append((match[1][1:-1], match[2][1:-1]))
    assert depth == 0
    assert len(set(nodes)) == len(nodes)
    assert {name for edge in edges for name in edge} <= set(nodes)
    return nodes, edges
