"""Small programs on simulated devices."""

import math

import numpy as np

from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.ir.dtype import F32
from ggsched_testing.explore import Observation
from ggsched_testing.sim import Costs, SimConfig, SimWorld

FREE = Costs(
    enqueue_s=0,
    launch_s=0,
    node_s=0,
    flops_per_s=math.inf,
    memory_bytes_per_s=math.inf,
    transfer_s=0,
    upload_bytes_per_s=math.inf,
    download_bytes_per_s=math.inf,
    copy_bytes_per_s=math.inf,
    record_s=0,
    wait_s=0,
    thread_wait_s=0,
)
"""Nothing takes any time; tests replace what they look at."""

N = 8
A = np.arange(1, N + 1, dtype=np.float32)
B = A * 100
POISONED = np.full(N, np.nan, np.float32)


def device_of(policy, **config):
    """Return the one device of a world."""
    return SimWorld([SimConfig(**config)], policy=policy).open(0)


def raw(array):
    """Return the bytes of an array, to be written through."""
    return memoryview(array).cast("B")


def fresh():
    """Return host memory for a result."""
    return np.zeros(N, np.float32)


def filled(stream, value):
    """Return a buffer that is known to hold a value."""
    buffer = stream.device.allocate(value.nbytes)
    stream.upload(raw(value.copy()), buffer, 0)
    stream.sync(1)
    return buffer


def content(buffer):
    """Return what a buffer holds, without asking anybody."""
    return buffer.array.view(np.float32).copy()


def unary(op, source, target, node=0, **params):
    """Return a node on whole buffers of N floats."""
    x, y = (Operand(b, 0, 4 * N, F32, (N,), (4,)) for b in (source, target))
    return BoundNode(node, op, (x,), y, full_params(op, params), f"n{node} {op}")


def program(stream, *nodes):
    """Return compiled nodes."""
    return stream.device.compile(nodes, stream)


def on_sim(body, *configs):
    """Return a program for ``explore``: ``body(world, *devices)`` returns what is seen."""

    def run(policy):
        world = SimWorld(configs or (SimConfig(),), policy=policy)
        return Observation.of(body(world, *world.open_all()))

    return run


def seen(found, name):
    """Return the distinct texts of one part of all observations."""
    return {dict(outcome.observation.parts)[name] for outcome in found.outcomes}
