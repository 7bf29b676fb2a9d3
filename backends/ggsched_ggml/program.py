"""Programs: graphs of ggml that are built once, and what the host does between them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, cast

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.backend.base_buffer import own_buffer
from ggsched.backend.program import BoundNode, Operand, groups_of
from ggsched.errors import DeviceFault
from ggsched.ops.rows import check_ids
from ggsched.topology.caps import DeviceFacts
from ggsched_ggml.driver import Handle, Library
from ggsched_ggml.lowering import FUSIONS, GraphMaker, MaskOf, Unlowered
from ggsched_ggml.memory import BackendStream, Memory, allocate, freed_with

IDS: Final = {"get_rows": (1, 0, -2), "set_rows": (2, 0, -2), "mul_mat_id": (2, 0, 0),
              "add_id": (2, 1, 0)}  # fmt: skip
"""Operand of ids, operand that has the rows, and its axis of them; of each op with ids."""


class ProgramDevice(Protocol):
    """What programs use of their device, see ``GgmlDevice``."""

    facts: DeviceFacts
    library: Library
    handle: Handle
    buffers: Handle
    has_plans: bool

    @property
    def running(self) -> BackendStream:
        """The stream whose thread calls."""

    def elements(self, operand: Operand) -> Array:
        """Return the elements of an operand."""

    def run_by_reference(self, node: BoundNode) -> None:
        """Compute a node on the host."""


Step = tuple[str, Callable[[], None]]


def steps_of(
    device: ProgramDevice, stream: BackendStream, nodes: Sequence[BoundNode]
) -> tuple[list[Step], frozenset[str]]:
    """Return what runs nodes, each with a label, and the labels of nodes by reference."""
    lowered = _Lowered(device, stream)
    for group in groups_of(nodes):
        is_fused = group[0].group is not None and group[0].group.pattern in FUSIONS
        for node in group:
            lowered.add(node, is_inner=is_fused and node is not group[-1])
    lowered.end_graph()
    return lowered.steps, frozenset(lowered.by_reference)


class _Lowered:
    """Steps under way. Nodes go into one graph until the host has to look at a result of it."""

    def __init__(self, device: ProgramDevice, stream: BackendStream) -> None:
        self.steps: list[Step] = []
        self.by_reference: list[str] = []
        self._device, self._stream = device, stream
        self._checked: list[tuple[Operand, int]] = []
        self._begin()

    def _begin(self) -> None:
        device = self._device
        self._maker = GraphMaker(
            device.library, device.handle, device.buffers, device.facts.alignment
        )
        self._label = ""
        self._outputs: list[Operand] = []

    def add(self, node: BoundNode, *, is_inner: bool) -> None:
        """Add a node."""
        if node.op in IDS:
            ids, table, axis = IDS[node.op]
            rows = node.params.get("of") or node.inputs[table].shape[axis]
            self._check_ids(node.label, node.inputs[ids], int(cast(int, rows)))
        if 0 in node.output.shape:
            return
        if node.op == "attention":
            self._let_host_read(node.inputs[-1])  # the bounds, if there are any
        try:
            self._maker.add(node, is_inner=is_inner)
            self._label = self._label or node.label
            self._outputs.append(node.output)
        except Unlowered:
            self.end_graph()
            self.steps.append((node.label, partial(self._device.run_by_reference, node)))
            self.by_reference.append(node.label)
        self._checked = [c for c in self._checked if not c[0].meets(node.output)]

    def _check_ids(self, label: str, ids: Operand, rows: int) -> None:
        """Look at ids before the graph runs that uses them: ggml aborts the process, or worse."""
        if 0 in ids.shape or (ids, rows) in self._checked:
            return
        self._let_host_read(ids)
        self.steps.append((label, lambda: check_ids(self._device.elements(ids), rows)))
        self._checked.append((ids, rows))

    def _let_host_read(self, operand: Operand) -> None:
        if any(map(operand.meets, self._outputs)):
            self.end_graph()

    def end_graph(self) -> None:
        """Let what follows be in another graph."""
        if self._maker.nodes:
            graph = Graph(self._device, self._stream, self._maker)
            self.steps.append((self._label, graph.run))
        self._begin()


class Graph:
    """A graph of ggml with memory for its tensors."""

    def __init__(self, device: ProgramDevice, stream: BackendStream, maker: GraphMaker) -> None:
        library = device.library
        self._device, self._library, self._masks = device, library, tuple(maker.masks)
        kept = maker.scratch_nbytes  # where that part begins
        nbytes = kept + maker.kept_nbytes
        scratch = allocate(library, device.buffers, nbytes) if nbytes else None
        memories = [scratch]
        for placed in maker.placed:
            if placed.operand is not None:
                memory = own_buffer(placed.operand.buffer).memory
                at = memory.base + placed.operand.offset
                memories.append(memory)
            elif scratch is not None and placed.scratch >= 0:
                memory, at = scratch, scratch.base + placed.scratch + kept * placed.is_kept
            else:
                library.ggml_backend_view_init(placed.handle)
                continue
            if library.ggml_backend_tensor_alloc(memory.buffer, placed.handle, at):
                raise DeviceFault("the device refuses a tensor")
        self._graph = maker.graph()
        self._plan: Handle = 0
        if device.has_plans:
            self._plan = library.ggml_backend_graph_plan_create(stream.handle, self._graph)
        freed_with(self, _free, library, stream, self._plan, maker.take_contexts(), memories)

    def run(self) -> None:
        """Enqueue it on the stream whose thread calls.

        Raises:
            DeviceFault: ggml reports a failure.
        """
        running = self._device.running
        for mask in self._masks:
            _write_mask(self._device, mask)
        if self._plan:
            status = self._library.ggml_backend_graph_plan_compute(running.handle, self._plan)
        else:
            status = self._library.ggml_backend_graph_compute_async(running.handle, self._graph)
        if status:
            raise DeviceFault(f"ggml reports status {status}")


def _free(
    library: Library,
    stream: BackendStream,
    plan: Handle,
    contexts: Sequence[Handle],
    memories: Sequence[Memory | None],
) -> None:
    if plan:
        library.ggml_backend_graph_plan_free(stream.handle, plan)
    for context in contexts:
        library.ggml_free(context)
    del memories


def _write_mask(device: ProgramDevice, mask: MaskOf) -> None:
    bounds = device.elements(mask.bounds)
    at = np.arange(mask.rows)
    is_seen = (bounds[:, :1] <= at) & (at < bounds[:, 1:])
    made = np.where(is_seen, np.float16(0), np.float16(-np.inf))
    set_async = device.library.ggml_backend_tensor_set_async
    set_async(device.running.handle, mask.handle, made.ctypes.data, 0, made.nbytes)
    device.running.borrowed.append(made)
