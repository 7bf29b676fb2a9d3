"""Small graphs for the devices of ``tests.run.devices``."""

import numpy as np

from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints

N = 16
X = np.linspace(-2, 2, N, dtype=np.float32)
W = np.linspace(1, 3, N, dtype=np.float32)


def plus_weight(factor=2.0, *, label="", name="w"):
    """Return ``(x + w) * factor``."""
    g = GraphBuilder("plus weight")
    y = g.add(g.input("x", (N,)), g.weight(name, (N,)), name=label)
    return g.build(g.scale(y, factor))


def chain(device_of_boom=0):
    """Return x -> silu -> gelu -> silu -> add, and pins that put the gelu on a device.

    The last two nodes are on device 0.
    """
    g = GraphBuilder("chain")
    x = g.input("x", (N,))
    y = g.silu(x, name="first")
    z = g.gelu(y, name="boom")
    out = g.add(g.silu(z, name="last"), y)
    return g.build(out), Constraints(pins={0: 0, 1: device_of_boom, 2: 0, 3: 0})


def chain_result(x):
    """Return what ``chain`` computes where its gelu copies."""
    y = x / (1 + np.exp(-x))
    return y / (1 + np.exp(-y)) + y


def harmless():
    """Return ``x * 3``."""
    g = GraphBuilder("harmless")
    return g.build(g.scale(g.input("x", (N,)), 3.0))


def counter(step=1.0, *, name="counter"):
    """Return a graph that adds ``step`` to a state, and whose output is the state."""
    g = GraphBuilder(f"count by {step:g}")
    s = g.state("s", (N,))
    return g.build(g.cpy(g.scale(s, 1.0, step), s, name=name))


def only(graph, outputs):
    """Return the one output."""
    (tid,) = graph.outputs
    return outputs[tid]
