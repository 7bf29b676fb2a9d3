"""LCH-6: groups of nodes that run as one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy.typing as npt

from ggsched.backend.program import Group
from ggsched.ir.dtype import F32, FLOAT_DTYPES, DType
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Tensor
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.draws import is_declared
from ggsched_testing.conformance.oprun import agrees, run
from ggsched_testing.generators.graph_gen import LONGEST_ROW, GraphGenerator
from ggsched_testing.generators.graph_gen_chains import CHAINS
from ggsched_testing.generators.values import DrawnGraph, values_for

Array = npt.NDArray[Any]

DRAWS: Final = 8
"""Groups of each pattern, and of each type of weights where there are any; 2 at least."""

PATIENCE: Final = 120
"""Draws in a row that come to nothing, after which no more are tried."""

PLACED_DRAWS: Final = 4
"""Draws for each group in search of one whose result can be in another's place."""

_CHOICES: Final = 96


class Chain(NamedTuple):
    """A graph all of whose nodes are a group."""

    drawn: DrawnGraph
    group: Group


Places = Callable[[Chain], Iterator[dict[int, int]]]
"""Yields where the result of a group may be: the tensor in whose place, by the result."""


def chains(w: TestContext, places: Places | None = None) -> Iterator[Chain]:
    """Yield groups of every pattern that the device declares, on types that it has.

    Args:
        w: The world.
        places: Only groups for whose result this has places.
    """
    facts, draws = w.device.facts, w.draws(DRAWS, 2)
    patience = PATIENCE if places is None else draws * PLACED_DRAWS
    weights = [dtype for dtype in FLOAT_DTYPES if dtype.block <= LONGEST_ROW]
    ops = {key.partition(":")[0] for key in facts.ops}
    for pattern in sorted(facts.fusions & PATTERNS.keys()):
        if not ops.issuperset(PATTERNS[pattern].ops):
            continue
        for dtype in weights if pattern.startswith("mul_mat") else (F32,):
            made = misses = 0
            while made < draws and misses < patience:
                chain = _draw(w, pattern, dtype)
                if chain is None or (places is not None and not any(places(chain))):
                    misses += 1
                else:
                    made, misses = made + 1, misses if places else 0
                    yield chain


def _draw(w: TestContext, pattern: str, dtype: DType) -> Chain | None:
    d = GraphGenerator(write_inputs=True, weight_dtypes=(dtype,))
    d.feed(w.rng.bytes(_CHOICES))
    nodes = CHAINS[pattern](d)
    if len(nodes) != len(d.results) or not nodes:
        return None
    if not any(t.dtype is dtype for t in d.floats):
        return None
    graph = d.g.build(d.results[-1])
    if not _is_group(graph, nodes):
        return None
    if not is_declared(graph, w.device.facts):
        return None
    return Chain(DrawnGraph(graph, dict(d.rules)), Group(pattern, nodes))


def _is_group(graph: Graph, nodes: Sequence[int]) -> bool:
    """Whether what stays inside is read once, as the caller promises (LCH-6)."""
    storages = [t.storage for t in graph.tensors]
    reads = [storages[tid] for n in graph.nodes for tid in n.inputs]
    return all(reads.count(storages[graph.nodes[i].output]) == 1 for i in nodes[:-1])


def _last(chain: Chain) -> Node:
    return chain.drawn.graph.nodes[-1]


def _check(w: TestContext, chain: Chain, over: dict[int, int] | None = None) -> None:
    """Run a group; compare its result with the oracle, and look for other bytes that changed."""
    graph = chain.drawn.graph
    w.program.append(f"group {chain.group.pattern}, seed {w.seed}")
    values = values_for(chain.drawn, w.seed)
    q = w.stream()
    prepared, after = run(w, q, graph, values, group=chain.group, over=over)
    w.close(q)
    text = "\n".join(f"  {graph.label(n)}" for n in graph.nodes)
    w.require(
        agrees(w, prepared, after, values),
        f"{chain.group.pattern} differs from its nodes one by one\n{text}",
    )
    beside = ~prepared.written()
    w.equal(after[beside], prepared.before[beside], f"bytes beside the results of\n{text}")
    w.program.clear()


@case("LCH-6", "A group leaves what its nodes leave one by one, and not a byte beside.", "fusions")
def lch6_every_pattern(w: TestContext) -> None:
    for chain in chains(w):
        _check(w, chain)


def _operands(chain: Chain) -> Iterator[dict[int, int]]:
    """Yield operands in whose place the result may be: the last node alone reads them."""
    graph, node = chain.drawn.graph, _last(chain)
    earlier = {graph.tensors[t].storage for n in graph.nodes[:-1] for t in n.tensors}
    for tid, t in _alike(graph, node):
        if t.storage not in earlier and node.op in ("add", "mul"):
            yield {node.output: tid}


def _results(chain: Chain) -> Iterator[dict[int, int]]:
    """Yield results of other nodes in whose place the last one's may be."""
    graph, node = chain.drawn.graph, _last(chain)
    made = {n.output for n in graph.nodes[:-1]}
    for tid, _ in _alike(graph, node):
        if tid in made:
            yield {node.output: tid}


def _alike(graph: Graph, node: Node) -> Iterator[tuple[int, Tensor]]:
    """Yield operands that are whole and as long as the result."""
    result = graph.tensors[node.output]
    for tid in node.inputs:
        t = graph.tensors[tid]
        if t.shape == result.shape and not (t.is_view or result.is_view):
            yield tid, t


def _check_in_place(w: TestContext, places: Places) -> None:
    for chain in chains(w, places):
        for over in places(chain):
            _check(w, chain, over)


@case("LCH-6", "A group's result may lie on an operand that its last node alone reads.", "fusions")
def lch6_result_on_an_operand(w: TestContext) -> None:
    _check_in_place(w, _operands)


@case("LCH-6", "A group's result may lie where another node's result would be.", "fusions")
def lch6_result_on_a_result(w: TestContext) -> None:
    _check_in_place(w, _results)


@case("LCH-6", "Every pattern that is declared has a meaning.", "fusions")
def lch6_patterns_are_known(w: TestContext) -> None:
    facts = w.device.facts
    unknown = sorted(facts.fusions - PATTERNS.keys())
    w.require(not unknown, f"it declares {', '.join(unknown)}; known are {', '.join(PATTERNS)}")
    rows = {name for row in facts.neighbours for name in row.split(", ")}
    strange = sorted(rows - facts.fusions - OPS.keys())
    w.require(not strange, f"its neighbours are {strange}, neither ops nor patterns that it has")
