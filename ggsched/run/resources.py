"""Resources of one plan: its arenas, host memory, and compiled segments.

Of devices that are elsewhere (``OfflineDevice``), in a part of a plan, nothing is made.

Made in this order: arenas, host memory, programs. Released in the reverse order, after the streams
have been drained (BUF-2).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from ggsched.backend.offline_device import OfflineDevice, OfflineStream
from ggsched.backend.page_lock import PageLock, lock_pages
from ggsched.backend.plugin_calls import name_of, plugin_call
from ggsched.backend.plugins import REPORT
from ggsched.backend.program import BoundNode, ChosenRows, Group, Operand, full_params
from ggsched.backend.protocols import Buffer, Device, HostMemory, Program, Stream
from ggsched.backend.stages import stages_reported_to
from ggsched.errors import BackendBroken, UsageError
from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.plan.bundle import HostSlot, Plan
from ggsched.plan.command import Copy, Launch
from ggsched.plan.effects import Step
from ggsched.plan.memory import Arena, Region
from ggsched.plan.splits import HOST
from ggsched.run.release import close_all
from ggsched.run.store import TensorStore


class Resources:
    """Everything that a plan needs from the devices, bound once."""

    def __init__(self, graph: Graph, plan: Plan, store: TensorStore) -> None:
        """Allocate and compile.

        Raises:
            UsageError: the plan was made for another graph or other devices.
            OutOfDeviceMemory: an arena does not fit; whatever was made before is released,
                weights and states that only this plan needed among them.
        """
        _check_fit(graph, plan, store)
        known = store.names
        self.plan = plan
        self.store = store
        self.streams = _streams(plan, store)
        self.chosen = {t.dst: ChosenRows() for t in plan.splits.transfers if t.rows is not None}
        self._is_weight = [arena.kind == "weight" for arena in plan.memory.arenas]
        self._owned: list[Buffer | PageLock | Program] = []
        try:
            with store.loading():  # weights are on their way while kernels are compiled
                self.buffers, self.host = self._arenas(graph, plan, store)
                store.begin_uploads()
                store.stage("compiling kernels")
                with stages_reported_to(store.stage):
                    self.programs = self._compile(graph, plan)
        except BaseException:
            close_all(reversed(self._owned))
            store.release(store.names - known)
            raise

    def host_bytes(self, region: Region) -> HostMemory:
        """Return a slice of a host arena."""
        return self.host[region.arena][region.offset : region.end]

    def host_array(self, graph: Graph, slot: HostSlot, at: Region | None = None) -> np.ndarray:
        """Return the tensor in a host slot as a numpy array over the slot's bytes.

        bf16 comes as its bits in uint16, quantised types as uint8 (.., bytes of a row).

        Args:
            graph: Of the plan.
            slot: An input or output.
            at: Host memory of a device that has the slot's bytes in place of the slot.
        """
        t = graph.tensors[slot.tensor]
        value = self.plan.splits.values[slot.value]
        region = at or self.plan.memory.regions[slot.value]
        offset = region.offset + t.offset - value.start
        memory = self.buffers[region.arena].host_view() if at else self.host[region.arena]
        if t.dtype.is_quantized:
            shape = (*t.shape[:-1], t.dtype.row_nbytes(t.shape[-1]))
            return np.ndarray(shape, np.uint8, memory, offset, (*t.strides[:-1], 1))
        return np.ndarray(t.shape, t.dtype.host, memory, offset, t.strides)

    def close(self) -> None:
        """Release programs and arenas; the streams must have been drained. Legal twice."""
        close_all(list(reversed(self._owned)), self._owned.clear)

    def _arenas(
        self, graph: Graph, plan: Plan, store: TensorStore
    ) -> tuple[dict[int, Buffer], dict[int, HostMemory]]:
        buffers: dict[int, Buffer] = {}
        host: dict[int, HostMemory] = {}
        readers, copiers = _readers(graph, plan), _copiers(plan)
        for arena in plan.memory.arenas:
            if arena.device == HOST:
                host[arena.id] = _host_memory(_pinned_by(plan, store.devices), arena.nbytes)
            elif isinstance(store.devices[arena.device], OfflineDevice):
                continue
            elif arena.kind == "compute":
                buffers[arena.id] = self._own_arena(arena, store.devices, copiers)
            else:
                tensor, reader = graph.named(arena.name), readers.get(arena.name)
                buffers[arena.id] = store.tensor(arena, tensor, reader=reader)
                if arena.kind == "state" and arena.id in copiers:
                    store.lock(arena, copiers[arena.id])
        return buffers, host

    def _own_arena(
        self, arena: Arena, devices: Sequence[Device], copiers: Mapping[int, int]
    ) -> Buffer:
        device, nbytes = devices[arena.device], arena.nbytes
        buffer = plugin_call(name_of(device), "allocate", lambda: device.allocate(nbytes), Buffer)
        self._owned.append(buffer)
        if arena.id in copiers:
            lock = lock_pages(devices[copiers[arena.id]], buffer.host_view())
            self._owned += [] if lock is None else [lock]
        return buffer

    def _compile(self, graph: Graph, plan: Plan) -> dict[int, Program]:
        programs: dict[int, Program] = {}
        groups = {n: Group(f.pattern, f.nodes) for f in plan.fusions for n in f.nodes}
        for command in plan.commands:
            if isinstance(command, Launch):
                stream = self.streams[command.stream]
                nodes = [self._bind(graph, step, groups.get(step.node)) for step in command.steps]
                compile_ = partial(stream.device.compile, nodes, stream)
                program = plugin_call(name_of(stream.device), "compile", compile_, Program)
                programs[command.id] = program
                self._owned.append(program)
        return programs

    def _bind(self, graph: Graph, step: Step, group: Group | None) -> BoundNode:
        node = graph.nodes[step.node]
        operands = []
        bound = self.plan.splits.bindings[step.node]
        for tid, region, value in zip(node.tensors, step.operands, bound, strict=True):
            t = graph.tensors[tid]
            buffer = self.buffers[region.arena]
            operands.append(
                Operand(
                    buffer,
                    region.offset,
                    region.nbytes,
                    t.dtype,
                    t.shape,
                    t.strides,
                    self.chosen.get(value),
                    self._is_weight[region.arena],
                )
            )
        *inputs, output = operands
        params = full_params(node.op, node.params)
        label = graph.label(node)
        return BoundNode(node.id, node.op, tuple(inputs), output, params, label, group)


def _host_memory(device: Device, nbytes: int) -> HostMemory:
    name = name_of(device)
    memory: Any = plugin_call(name, "allocate_host", lambda: device.allocate_host(nbytes))
    if not isinstance(memory, memoryview) or memory.nbytes < nbytes or memory.readonly:
        raise BackendBroken(
            f"allocate_host({nbytes}) returned {memory!r}",
            where=name,
            why="writable host memory of that size was requested",
            hint=REPORT,
        )
    return memory


def _streams(plan: Plan, store: TensorStore) -> list[Stream]:
    """Return a live stream for each stream of the plan."""
    used: dict[int, int] = {}
    streams: list[Stream] = []
    for spec in plan.streams.streams:
        device = store.devices[spec.device]
        if isinstance(device, OfflineDevice):
            streams.append(cast(Stream, OfflineStream(device)))
            continue
        index = used.get(spec.device, 0)
        used[spec.device] = index + 1
        streams.append(store.stream(spec.device, index))
    return streams


def _readers(graph: Graph, plan: Plan) -> dict[str, int]:
    """Return for each weight that may be copied to another device, in some plan, that device."""
    tensors, homes = graph.tensors, plan.placement.homes
    return {
        tensors[tid].name: o.there
        for o in plan.placement.offloads
        for node in graph.nodes[o.first : o.end]
        for tid in node.inputs
        if tensors[tid].role is Role.WEIGHT and homes.get(tid) == o.here
    }


def _copiers(plan: Plan) -> dict[int, int]:
    """Return for each arena in a host device's memory a device that copies from or to it."""
    streams, arenas = plan.streams.streams, plan.memory.arenas
    copiers: dict[int, int] = {}
    for c in plan.commands:
        if isinstance(c, Copy):
            by = streams[c.stream].device
            for arena in (arenas[region.arena] for region in (c.src, c.dst)):
                if arena.device not in (by, HOST) and plan.devices[arena.device].is_host:
                    copiers[arena.id] = by
    return copiers


def _pinned_by(plan: Plan, devices: Sequence[Device]) -> Device:
    """Return the device whose host memory is used: one that has to copy over a bus, if any."""
    here = [d for d in devices if not isinstance(d, OfflineDevice)]
    used = [d for s in plan.streams.streams if (d := devices[s.device]) in here] or here
    return next((d for d in used if not d.facts.is_host), used[0])


def _check_fit(graph: Graph, plan: Plan, store: TensorStore) -> None:
    if plan.graph != graph.digest:
        raise UsageError("the plan was made for another graph", where=plan.name)
    facts = [d.facts for d in store.devices]
    if list(plan.devices) != facts:
        wanted, found = (", ".join(d.name for d in some) for some in (plan.devices, facts))
        raise UsageError(
            f"the plan was made for {wanted}",
            where=plan.name,
            why=f"the devices at hand are {found}, or their facts differ",
            hint=f"plan again; {show('device', 0)} is the first device",
        )
