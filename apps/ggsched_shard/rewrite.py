"""Rewrite a graph so that participants compute parts of its products.

    layouts of weights and states --> layout of every result --> calls --> graph

Results follow from operands by the rules of ops. Where a rule needs the whole of something, its
parts are joined (``concat``) or its summands added up (``add``), by each participant for itself and
in one order, so that all of them have the same bits. That is an all-gather or an all-reduce made of
ordinary nodes; the copies between devices are the planner's.

What is whole is computed by each participant that has the operands, because to compute a norm again
takes less time than to send it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import sqrt
from typing import Final

from ggsched.errors import PlanError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32
from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import Param, op_by_name, written_operand
from ggsched.ir.tensor import Role, Tensor, contiguous_strides
from ggsched.plan.collectives import JOINED, SUM
from ggsched_shard.calls import ANY, HEAVY, Call, Key, Leaf, Ref, needed_calls, ordered_calls
from ggsched_shard.layout import (
    Cuts,
    Layout,
    Partial,
    Split,
    Whole,
    Window,
    even_parts,
    part_shape,
)
from ggsched_shard.names import label_of, name_of
from ggsched_shard.rules import WHOLE, Decision, Need, Operand, decide

SCATTERED_NBYTES: Final = 256 << 10
"""Sums of as many bytes are added up in parts: the bytes cost more than a second copy."""

_DIRECT: Final = 2
"""As many participants send each other no more than they have to if each adds up all."""

_MANY: Final = 4
"""Where more participants than that copy, messages cost more than a second way for the bytes."""

_PIECE_NBYTES: Final = 384 << 10
"""So many bytes over links of 20 GB/s take about as long as a message. With k participants that add
up, messages take k times as long, and bytes 1/k: the root of n pieces is best (ADR 45)."""


@dataclass(frozen=True)
class Shards:
    """How weights and states are shared.

    Attributes:
        count: Number of participants.
        layouts: By name of the weight or state; those that are not here are whole on everyone.
        groups: Participants that share layers; what is added up is added up by a whole group.
        peers: Participants that read each other's results where they lie (ADR 46).
    """

    count: int
    layouts: Mapping[str, Layout]
    groups: tuple[tuple[int, ...], ...] = field(default=())
    peers: frozenset[int] = frozenset()

    def layout(self, name: str) -> Layout:
        """Return how a weight or state is shared."""
        return self.layouts.get(name) or Whole(self.everyone)

    @property
    def everyone(self) -> tuple[int, ...]:
        """All participants."""
        return tuple(range(self.count))

    def group(self, on: tuple[int, ...]) -> tuple[int, ...]:
        """Return the participants of all groups that these belong to."""
        if not self.groups:
            return self.everyone if on else ()
        found = {p for q in on for g in self._groups_of.get(q, ()) for p in g}
        return tuple(sorted(found or on))

    @cached_property
    def _groups_of(self) -> dict[int, list[tuple[int, ...]]]:
        """The groups that each participant belongs to."""
        groups_of: dict[int, list[tuple[int, ...]]] = {}
        for group in self.groups:
            for p in group:
                groups_of.setdefault(p, []).append(group)
        return groups_of

    def members(self, name: str) -> list[tuple[str, int]]:
        """Return the names that a weight or state has in the new graph, with their participants."""
        on = self.layout(name).on or ()
        is_one = isinstance(self.layout(name), Whole) and len(on) == 1
        return [(name if is_one else name_of(name, p), p) for p in on]


@dataclass(frozen=True, slots=True)
class Sharded:
    """A graph in parts.

    Attributes:
        tensor_of: The new id of each output of the old graph, whole.
    """

    graph: Graph
    tensor_of: dict[int, int]


def shard_graph(graph: Graph, shards: Shards) -> Sharded:
    """Return a graph that computes the same, in parts.

    Labels of nodes end with ``#`` and the participant that is to run them, and so do names of parts
    and copies of weights and states.

    Raises:
        PlanError: a split that cuts blocks, or that an op which uses the tensor cannot follow.
    """
    work = _Rewriter(graph, shards)
    for node in graph.nodes:
        work.add(node)
    outputs = [work.output(graph.tensors[tid]) for tid in graph.outputs]
    calls = needed_calls(work.calls, [ref.key for ref in outputs], work.leaves)
    new, ids = _build(graph.name, work.leaves, ordered_calls(calls, shards.peers), outputs)
    kept = {name: data for name, data in work.constants.items() if name in new}
    return Sharded(replace(new, constants=kept), dict(zip(graph.outputs, ids, strict=True)))


def _build(
    name: str, leaves: Mapping[Key, Leaf], calls: Iterable[Call], outputs: Iterable[Ref]
) -> tuple[Graph, list[int]]:
    g = GraphBuilder(name)
    made: dict[Key, Tensor] = {}
    views: dict[Ref, Tensor] = {}

    def root(key: Key) -> Tensor:
        if key not in made:
            leaf = leaves[key]
            add = {Role.INPUT: g.input, Role.WEIGHT: g.weight, Role.STATE: g.state}[leaf.role]
            made[key] = add(leaf.name, leaf.shape, leaf.dtype)
        return made[key]

    def view(ref: Ref) -> Tensor:
        t, window = root(ref.key), ref.window
        if Window.of(t) == window:
            return t
        if ref not in views:
            views[ref] = g.view(t, window.shape, window.strides, window.offset)
        return views[ref]

    for call in calls:
        operands = [view(ref) for ref in call.inputs]
        params = {k: v for k, v in call.params.items() if k != "inplace"}
        inplace = bool(call.params.get("inplace"))
        label = label_of(call.label, call.part)
        result = g.op(call.op, *operands, name=label, inplace=inplace, **params)
        if call.makes:
            made[call.out] = result
    found = [view(ref) for ref in outputs]
    return g.build(*found), [t.id for t in found]


class _Rewriter:
    """Walks the nodes once, in order; knows how every storage lies."""

    def __init__(self, graph: Graph, shards: Shards) -> None:
        self.tensors = graph.tensors
        self.graph, self.shards = graph, shards
        self.calls: list[Call] = []
        self.leaves: dict[Key, Leaf] = {}
        self.constants: dict[str, bytes] = {}
        self._layout: dict[int, Layout] = {}
        self._cuts: dict[int, Cuts] = {}
        self._copy: dict[tuple[int, int], Key] = {}
        self._written = Counter[int]()
        self._writers = Counter(graph.tensors[n.output].storage for n in graph.nodes)
        self._whole: dict[tuple[int, int, Window], dict[int, Key]] = {}
        self._temps = 0
        for t in graph.tensors:
            if not t.is_view and t.role is not Role.TEMP:
                self._add_leaf(t)

    def add(self, node: Node) -> None:
        """Add the calls of a node."""
        operands = [Operand(self.tensors[t], self._of(self.tensors[t])) for t in node.inputs]
        decision = decide(node, operands)
        through = written_operand(op_by_name(node.op), node.params)
        if decision is not None and through is not None and decision.needs[through] is not None:
            decision = None  # it would write a part of what is whole
        if decision is None:
            self._add_whole(node, through)
        else:
            self._add_parts(node, decision, through)
        self._written[self.tensors[node.output].storage] += 1

    def output(self, t: Tensor) -> Ref:
        """Return an output, whole."""
        on = self._layout[t.storage].on
        return self._read(t, on[0] if on else 0)

    # --- calls ----------------------------------------------------------------------------

    def _add_whole(self, node: Node, through: int | None) -> None:
        storage = self.tensors[node.output].storage
        if through is not None and not isinstance(self._layout[storage], Whole):
            raise PlanError(
                "cannot write a part of this",
                where=self.graph.label(node),
                why=f"{self.tensors[storage].name!r} is split among devices in another way",
            )
        on = self._runners(node, through)
        for p in on:
            inputs = tuple(self._read(self.tensors[t], p) for t in node.inputs)
            self._call(node, inputs, p, through)
        if through is None:
            self._layout[storage] = Whole(on)

    def _add_parts(self, node: Node, decision: Decision, through: int | None) -> None:
        result = self.tensors[node.output]
        operands = [self.tensors[t] for t in node.inputs]
        on = decision.result.on
        for p in on:
            if decision.once and p != on[0]:
                self._hand_on(node, operands[0], result, p)
                continue
            inputs = tuple(
                self._operand(t, need, p) for t, need in zip(operands, decision.needs, strict=True)
            )
            own = node
            if decision.experts is not None:
                here = {
                    "first": decision.experts.span(p)[0],
                    "of": sum(map(sum, decision.experts.segments)),
                }
                own = replace(node, params={**node.params, **here})
            self._call(own, inputs, p, through)
        if through is None:
            self._settle(result, decision.result)
        elif isinstance(decision.result, Partial):
            self._layout[result.storage] = decision.result  # rows that were 0 may be no more

    def _call(self, node: Node, inputs: tuple[Ref, ...], part: int, through: int | None) -> None:
        storage = self.tensors[node.output].storage
        key = ("t", storage, part) if through is None else inputs[through].key
        is_heavy = node.op in HEAVY
        label = node.name or node.op
        self.calls.append(
            Call(node.op, node.params, label, inputs, key, part, through is None, is_heavy)
        )
        self._copy[storage, part] = key

    def _hand_on(self, node: Node, x: Tensor, result: Tensor, part: int) -> None:
        """Let a participant's summand be that of operand x."""
        ref = self._operand(x, None, part)
        root = self.tensors[x.storage]
        if Window.of(root) == ref.window and self._writers[x.storage] == 1:
            self._copy[result.storage, part] = ref.key
            return
        key = ("t", result.storage, part)
        self.calls.append(Call("cont", {}, node.name or node.op, (ref,), key, part, True))
        self._copy[result.storage, part] = key

    # --- operands -------------------------------------------------------------------------

    def _operand(self, t: Tensor, need: Need, part: int) -> Ref:
        if need == WHOLE:
            return self._read(t, part)
        if isinstance(need, Split):
            ref = self._read(t, part)
            ((first, stop),) = need.spans(part)
            return Ref(ref.key, ref.window.sliced(need.axis, first, stop))
        window = Window.of(t)
        if isinstance(self._layout[t.storage], Split):
            window = self._cuts[t.storage].part(window, part)
        return Ref(self._copy[t.storage, part], window)

    def _read(self, t: Tensor, part: int) -> Ref:
        """Return a whole tensor for a participant: its own, or that of one that has it."""
        layout, window = self._layout[t.storage], Window.of(t)
        if isinstance(layout, Whole):
            return Ref(self._nearest(t.storage, layout.on, part), window)
        root = self.tensors[t.storage]
        if self._of(t) is None:
            return Ref(self._joined(root, part), window)
        whole = Window(t.shape, contiguous_strides(t.dtype, t.shape), 0)
        # Parts of another view of all of it need not be joined once more.
        is_all = isinstance(layout, Split) and window == whole and t.nbytes == root.nbytes
        return Ref(self._joined(root if is_all else t, part), whole)

    def _nearest(self, storage: int, on: tuple[int, ...] | None, part: int) -> Key:
        if on is None:
            return self._copy[storage, ANY]
        return self._copy[storage, part if part in on else on[part % len(on)]]

    def _joined(self, t: Tensor, part: int) -> Key:
        """Return a copy of a tensor whose parts were joined or added up."""
        known = (t.storage, self._written[t.storage], Window.of(t))
        if known not in self._whole:
            self._whole[known] = self._join(t)
        keys = self._whole[known]
        return keys[part] if part in keys else keys[sorted(keys)[part % len(keys)]]

    def _join(self, t: Tensor) -> dict[int, Key]:
        layout, name = self._of(t), self.tensors[t.storage].name
        assert isinstance(layout, Split | Partial)  # the callers have seen to it
        if t.role is Role.WEIGHT or t.dtype not in (F32, I32):
            raise PlanError(
                f"{name!r} is split where a whole one is needed",
                where=self.graph.name,
                why=f"parts of a {t.role.value} of {t.dtype} are not joined",
                hint="split it along another axis, or leave it whole",
            )
        if isinstance(layout, Partial):
            return self._add_up(t, layout)
        if len(layout.segments) > 1:
            raise PlanError(
                f"{name!r} is split in {len(layout.segments)} segments where a whole one is needed",
                where=self.graph.name,
            )
        parts = [self._operand(t, None, q) for q in layout.on]
        group = self.shards.group(layout.on)
        return {p: self._chain(t, "concat", parts, p, axis=layout.axis).key for p in group}

    def _add_up(self, t: Tensor, layout: Partial) -> dict[int, Key]:
        """Return a sum on each participant of a group, added up in the order of participants.

        Of a few rows each adds up all; of many rows, with more than two participants, each adds up
        some and gives them to the others, so that less is sent. Where more participants copy, only
        some of them add up: a sum is two messages for each of these and each participant, and the
        bytes that one of these receives and gives away are in proportion to their share of rows.
        """
        parts, group = [self._operand(t, None, q) for q in layout.on], self.shards.group(layout.on)
        if len(group) > _MANY and not self.shards.peers.issuperset(group):
            count = round(sqrt(t.nbytes / _PIECE_NBYTES))
            adding = group[: max(1, min(t.shape[0], count))]
        elif len(group) <= _DIRECT or t.nbytes < SCATTERED_NBYTES or t.shape[0] < len(group):
            return {p: self._chain(t, "add", parts, p).key for p in group}
        else:
            adding = group
        ends = accumulate(even_parts(t.shape[0], [1.0] * len(adding), 1))
        sums = [
            self._chain(
                t,
                "add",
                [Ref(part.key, part.window.sliced(0, first, stop)) for part in parts],
                p,
            )
            for p, (first, stop) in zip(adding, pairwise([0, *ends]), strict=True)
        ]
        if len(adding) == 1:
            return {adding[0]: sums[0].key}
        return {p: self._chain(t, "concat", sums, p, axis=0).key for p in group}

    def _chain(
        self, t: Tensor, op: str, parts: Sequence[Ref], part: int, *, axis: int | None = None
    ) -> Ref:
        """Return what a participant makes of several parts, two at a time, in order."""
        label = self.tensors[t.storage].name + (JOINED if op == "concat" else SUM)
        params: dict[str, Param] = {} if axis is None else {"axis": axis}
        total = parts[0]
        for other in parts[1:]:
            self._temps += 1
            key = ("j", self._temps, part)
            self.calls.append(Call(op, params, label, (total, other), key, part, True))
            shape = list(total.window.shape)
            if axis is not None:
                shape[axis] += other.window.shape[axis]
            strides = contiguous_strides(t.dtype, tuple(shape))
            total = Ref(key, Window(tuple(shape), strides, 0))
        return total

    # --- layouts --------------------------------------------------------------------------

    def _of(self, t: Tensor) -> Layout | None:
        layout = self._layout[t.storage]
        if isinstance(layout, Split):
            return self._cuts[t.storage].axis_of(Window.of(t))
        return layout

    def _settle(self, root: Tensor, layout: Layout) -> None:
        """Note how a new storage lies; what one participant has alone is whole."""
        on = layout.on
        if on is not None and len(on) == 1 and not isinstance(layout, Whole):
            layout = Whole(on)
        self._layout[root.storage] = layout
        if isinstance(layout, Split):
            self._cuts[root.storage] = Cuts(root, layout)

    def _add_leaf(self, root: Tensor) -> None:
        if root.role is Role.INPUT:
            # One that nodes write has one home.
            at = 0 if self._writers[root.id] else ANY
            self._layout[root.id] = Whole((at,) if at != ANY else None)
            self._copy[root.id, at] = key = ("l", root.id, at)
            self.leaves[key] = Leaf(root.name, root.dtype, root.shape, root.role)
            return
        layout = self.shards.layout(root.name)
        data = self.graph.constants.get(root.name)
        if data is not None:
            if isinstance(layout, Split):
                raise PlanError(
                    f"the constant {root.name!r} is split",
                    where=self.graph.name,
                    hint="leave it whole, or make it a weight",
                )
            self.constants |= dict.fromkeys(
                (name for name, _ in self.shards.members(root.name)), data
            )
        self._settle(root, layout)
        for name, p in self.shards.members(root.name):
            shape = part_shape(root.shape, layout, p) if isinstance(layout, Split) else root.shape
            self._copy[root.id, p] = key = ("l", root.id, p)
            self.leaves[key] = Leaf(name, root.dtype, shape, root.role)

    def _runners(self, node: Node, through: int | None) -> tuple[int, ...]:
        """Return the participants that compute a node of whole operands.

        Those that have its weight; else those that have the largest operand, and of equal ones that
        which most have.
        """
        if through is not None:
            return self._layout[self.tensors[node.output].storage].on or self.shards.everyone
        kept: list[tuple[int, ...]] = []
        made: list[tuple[int, int, tuple[int, ...]]] = []
        for tid in node.inputs:
            t = self.tensors[tid]
            layout = self._layout[t.storage]
            if layout.on is None:
                continue
            on = layout.on if isinstance(layout, Whole) else self.shards.group(layout.on)
            if t.role in (Role.WEIGHT, Role.STATE):
                kept.append(on)
            else:
                made.append((t.nbytes, len(on), on))
        if kept:
            return kept[0]
        return max(made, key=lambda m: m[:2])[2] if made else self.shards.everyone
