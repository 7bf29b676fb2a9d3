"""Hypothesis strategies: machines of every combination of capabilities, and what to pin there.

@given(drawn=graphs(), topology=topologies(), data=st.data())
def test_something(drawn, topology, data):
    wanted = data.draw(constraints(drawn.graph, topology))
    plan = make_plan(drawn.graph, topology, wanted)
"""

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st

from ggsched.ir.dtype import GGUF_DTYPES
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.graph import Graph
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Role
from ggsched.passes.place import Constraints
from ggsched.topology.caps import DeviceFacts, WaitPath, capabilities, op_key
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.plan_builder import fake_device

ALL_OPS: Final = frozenset(op_key(op, dtype.name) for op in OPS for dtype in GGUF_DTYPES)

WAIT_PATHS: Final[tuple[WaitPath, ...]] = ("native", "thread", "host")

_ROWS: Final = st.frozensets(
    st.lists(st.sampled_from((*PATTERNS, *sorted(OPS))), min_size=2, max_size=4).map(", ".join),
    max_size=3,
)
"""Sequences of groups, for ``DeviceFacts.neighbours``."""


@st.composite
def devices(
    draw: st.DrawFn,
    name: str,
    *,
    all_ops: bool = False,
    has_events: bool | None = None,
    max_streams: int = 3,
    fusions: bool = False,
) -> DeviceFacts:
    """Draw the facts of a device: any capabilities, and all ops or some of them."""
    ops = ALL_OPS
    if not all_ops and draw(st.booleans()):
        names = draw(st.sets(st.sampled_from(sorted(OPS)), max_size=len(OPS)))
        ops = frozenset(op_key(op, dtype.name) for op in names for dtype in GGUF_DTYPES)
    facts: dict[str, Any] = {
        capability.name: draw(st.sampled_from(capability.drawn_values()))
        for capability in capabilities().values()
        if capability.drawn_values()
    }
    facts |= {"max_streams": draw(st.integers(1, max_streams)), "ops": ops}
    if has_events is not None:
        facts["has_events"] = has_events
    if fusions:
        facts |= {"fusions": frozenset(PATTERNS), "neighbours": draw(_ROWS)}
    return fake_device(name, **facts)


@st.composite
def topologies(
    draw: st.DrawFn,
    min_devices: int = 1,
    max_devices: int = 4,
    *,
    events: bool | None = None,
    max_streams: int = 3,
    fusions: bool = False,
) -> Topology:
    """Draw a machine. Its last device supports every op, so every graph can be placed.

    Copy paths are there or not, executed by either end; waits are native, by a thread, or left to
    the host.

    Args:
        draw: Passed by Hypothesis.
        min_devices: Fewest devices.
        max_devices: Most devices.
        events: With True all devices have events and wait for each other's, with False none has;
            by default each has or has not, and most pairs leave waiting to the host.
        max_streams: Most streams of a device.
        fusions: Whether devices compile groups of nodes as one, by every pattern, and some of them
            make one call of a few that follow each other.
    """
    count = draw(st.integers(min_devices, max_devices))
    facts = [
        draw(
            devices(
                f"fake:{i}",
                all_ops=i == count - 1,
                has_events=events,
                max_streams=max_streams,
                fusions=fusions,
            )
        )
        for i in range(count)
    ]
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    copies = {(a, b): CopyPath(a, b, draw(st.sampled_from((a, b)))) for a, b in _some(draw, pairs)}
    with_events = [(a, b) for a, b in pairs if facts[a].has_events and facts[b].has_events]
    waiting = with_events if events else _some(draw, with_events)
    paths = WAIT_PATHS[:2] if events else WAIT_PATHS
    waits = {pair: draw(st.sampled_from(paths)) for pair in waiting}
    return Topology(tuple(facts), copies, waits)


@st.composite
def constraints(
    draw: st.DrawFn,
    graph: Graph,
    topology: Topology,
    *,
    pin_all: bool = False,
    clears: bool = False,
) -> Constraints:
    """Draw homes of weights and states and pins of nodes that can be honoured together.

    Results of peers are read where they lie, or copied. Devices may propose lanes.

    Args:
        draw: Passed by Hypothesis.
        pin_all: Whether to pin every node, so that bytes cross all the time; else few are pinned.
        clears: Whether each run may begin by filling states with zeros.
    """
    able = _able(graph, topology)
    homes: dict[str, int] = {}
    fixed: dict[int, int] = {}
    for root in (*graph.roots(Role.WEIGHT), *graph.roots(Role.STATE)):
        if draw(st.booleans()):
            device = draw(st.sampled_from(able.get(root.id) or range(len(topology.devices))))
            homes[root.name] = fixed[root.id] = device
    pins: dict[int, int] = {}
    for node in graph.nodes:
        if pin_all or draw(st.integers(0, 4)) == 0:
            storage = graph.tensors[node.output].storage
            device = fixed.get(storage, -1)
            if device < 0:
                device = draw(st.sampled_from(able[storage]))
            pins[node.id] = fixed[storage] = device
    cleared = [t.name for t in graph.roots(Role.STATE) if clears and draw(st.booleans())]
    count, step = len(topology.devices), draw(st.integers(0, 5))
    lanes = {i: tuple(n * step // 2 % 3 for n in range(len(graph.nodes))) for i in range(count)}
    return Constraints(
        homes,
        pins,
        clears=frozenset(cleared),
        reads_peers=draw(st.booleans()),
        lanes=lanes if step else {},
    )


def _some(draw: st.DrawFn, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [pair for pair in pairs if draw(st.booleans())]


def _able(graph: Graph, topology: Topology) -> dict[int, list[int]]:
    """Return for each storage the devices that support all nodes that write it."""
    able: dict[int, list[int]] = {}
    for node in graph.nodes:
        storage = graph.tensors[node.output].storage
        key = op_key(node.op, graph.tensors[node.tensors[0]].dtype.name)
        before = able.get(storage, range(len(topology.devices)))
        able[storage] = [d for d in before if key in topology.devices[d].ops]
    return able
