"""Run a whole graph on one device, node by node in program order, without a plan.

Every storage gets a buffer of its own and all nodes are one program on one stream, so nothing is
tested here but the device's kernels and its copies. Results have the form of ``run_oracle``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ggsched.backend.arrays import numpy_dtype, numpy_shape
from ggsched.backend.packed import decode_blocks
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.backend.protocols import Buffer, Device, Stream
from ggsched.errors import UsageError
from ggsched.ir.dtype import ARRAY_DTYPES
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched_testing.oracle.interpreter import constants_of

Array = npt.NDArray[Any]

POISON = 0xFF


def run_direct(
    device: Device,
    graph: Graph,
    values: Mapping[str, Array],
    states: dict[str, Array] | None = None,
    *,
    timeout_s: float = 60.0,
) -> dict[int, Array]:
    """Run a graph on a device.

    Args:
        device: An open device that supports every node.
        graph: A verified graph.
        values: Inputs and weights by name, as for ``run_oracle``. Not changed.
        states: States by name; missing ones start as zeros. Changed in place.
        timeout_s: How long to wait for the device.

    Returns:
        Output tensor id -> a fresh array, as ``run_oracle`` returns it.

    Raises:
        UsageError: a value is missing or has another size.
        DeviceFault: a node failed.
    """
    states = {} if states is None else states
    values = {**constants_of(graph), **values}
    stream = device.create_stream()
    buffers: dict[int, Buffer] = {}
    try:
        for t in graph.tensors:
            if not t.is_view:
                buffers[t.id] = device.allocate(t.nbytes)
                stream.upload(_initial(t, values, states).data, buffers[t.id], 0)
        program = device.compile(bound_nodes(graph, buffers), stream)
        # Between copies and launches the device may need more than the stream's order (STR-1).
        _order(device, stream, timeout_s)
        stream.launch(program)
        _order(device, stream, timeout_s)
        content = _download(graph, stream, buffers, timeout_s)
        program.close()
    finally:
        stream.close()
        for buffer in buffers.values():
            buffer.close()
    _keep_states(graph, content, states)
    return {tid: _typed(graph.tensors[tid], content) for tid in graph.outputs}


def bound_nodes(
    graph: Graph, buffers: Mapping[int, Buffer], *, constant_weights: bool = False
) -> list[BoundNode]:
    """Bind every node of a graph to buffers by storage id.

    Args:
        buffers: A buffer for each tensor that is not a view.
        constant_weights: Whether weights are declared constant (LCH-7): then they may be written
            only while the device is idle.
    """
    roots = [graph.tensors[t.storage].role is Role.WEIGHT for t in graph.tensors]
    operands = [
        Operand(
            buffers[t.storage],
            t.offset,
            t.nbytes,
            t.dtype,
            t.shape,
            t.strides,
            is_constant=constant_weights and is_weight,
        )
        for t, is_weight in zip(graph.tensors, roots, strict=True)
    ]
    return [
        BoundNode(
            node=n.id,
            op=n.op,
            inputs=tuple(operands[tid] for tid in n.inputs),
            output=operands[n.output],
            params=full_params(n.op, n.params),
            label=graph.label(n),
        )
        for n in graph.nodes
    ]


def _order(device: Device, stream: Stream, timeout_s: float) -> None:
    match device.facts.copy_order:
        case "host":
            stream.sync(timeout_s)
        case "barrier":
            stream.barrier()


def _initial(
    t: Tensor, values: Mapping[str, Array], states: Mapping[str, Array]
) -> npt.NDArray[np.uint8]:
    """Return the first content of a storage; temporaries get poison, NaN in each float type."""
    if t.role is Role.TEMP:
        return np.full(t.nbytes, POISON, np.uint8)
    given = states if t.role is Role.STATE else values
    if t.name in given:
        raw = np.frombuffer(given[t.name].tobytes(), np.uint8)
        if raw.size != t.nbytes:
            raise UsageError(f"{raw.size} bytes instead of {t.nbytes}", where=t.name)
        return raw
    if t.role is Role.STATE:
        return np.zeros(t.nbytes, np.uint8)
    raise UsageError(f"no value for the {t.role.value} {t.name!r}", hint="pass it in values")


def _download(
    graph: Graph, stream: Stream, buffers: Mapping[int, Buffer], timeout_s: float
) -> dict[int, npt.NDArray[np.uint8]]:
    wanted = {graph.tensors[tid].storage for tid in graph.outputs}
    wanted.update(t.id for t in graph.roots(Role.STATE))
    content = {sid: np.empty(buffers[sid].nbytes, np.uint8) for sid in sorted(wanted)}
    for sid, target in content.items():
        stream.download(buffers[sid], 0, target.data)
    stream.sync(timeout_s)
    return content


def _keep_states(
    graph: Graph, content: Mapping[int, npt.NDArray[np.uint8]], states: dict[str, Array]
) -> None:
    for t in graph.roots(Role.STATE):
        final = content[t.id].view(numpy_dtype(t.dtype)).reshape(numpy_shape(t.dtype, t.shape))
        if t.name in states:
            states[t.name].reshape(-1).view(np.uint8)[:] = content[t.id]
        else:
            states[t.name] = final


def _typed(t: Tensor, content: Mapping[int, npt.NDArray[np.uint8]]) -> Array:
    """Return the content of an output as a fresh array of its shape."""
    plain = t.dtype in ARRAY_DTYPES
    if t.size == 0:
        return np.zeros(t.shape, numpy_dtype(t.dtype) if plain else np.float32)
    memory = content[t.storage].data
    if plain:
        return np.ndarray(t.shape, numpy_dtype(t.dtype), memory, t.offset, t.strides).copy()
    shape = (*t.shape[:-1], t.shape[-1] // t.dtype.block, t.dtype.block_nbytes)
    blocks: npt.NDArray[np.uint8] = np.ndarray(shape, np.uint8, memory, t.offset, (*t.strides, 1))
    return decode_blocks(blocks, t.dtype).astype(np.float32).reshape(t.shape)
