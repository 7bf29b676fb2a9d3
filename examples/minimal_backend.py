"""A complete plug-in: a numpy device that supports a few ops.

To install one, name ``open_backend`` in the entry-point group ``ggsched.backends``:

    [project.entry-points."ggsched.backends"]
    minimal = "minimal_backend:open_backend"

Run this file to see a graph planned over two of its devices.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ggsched.backend.base import BaseBackend, BaseDevice, Kernel, host_facts

Array = np.ndarray[Any, Any]


def elementwise(function: Callable[..., Any]) -> Kernel:
    """Make a kernel of a function of arrays; ``out`` may be one of the inputs."""

    def kernel(out: Array, inputs: Sequence[Array], params: Mapping[str, Any]) -> None:
        out[...] = function(*inputs)

    return kernel


def scale(out: Array, inputs: Sequence[Array], params: Mapping[str, Any]) -> None:
    """``x * scale + bias``."""
    out[...] = inputs[0] * params["scale"] + params["bias"]


def mul_mat(out: Array, inputs: Sequence[Array], params: Mapping[str, Any]) -> None:
    """``x @ w.T``; batch i of x uses batch ``i // (Bx / Bw)`` of w."""
    w, x = inputs
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    for axis in range(x.ndim - 2):
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    out[...] = x @ np.swapaxes(w, -1, -2)


KERNELS: Final[Mapping[str, Kernel]] = {
    "add": elementwise(np.add),
    "mul": elementwise(np.multiply),
    "silu": elementwise(lambda x: x / (1 + np.exp(-x))),
    "scale": scale,
    "mul_mat": mul_mat,
}


def open_device(index: int) -> BaseDevice:
    """Open a device; its facts say what it can do, and must be true."""
    facts = host_facts("minimal", [f"{op}:f32" for op in KERNELS], name=f"minimal:{index}")
    return BaseDevice(facts, KERNELS)


def open_backend() -> BaseBackend:
    """Return the backend; two devices are offered."""
    return BaseBackend("minimal", open_device, count=2, contract_version=(1, 5))


def main() -> None:
    """Run a small graph over both devices."""
    from ggsched import GraphBuilder, Scheduler

    g = GraphBuilder("two layers")
    x, w = g.input("x", (4, 64)), g.weight("w", (64, 64))
    graph = g.build(g.mul_mat(w, g.silu(g.mul_mat(w, x))))
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((64, 64)).astype(np.float32)}
    inputs = {"x": rng.standard_normal((4, 64)).astype(np.float32)}

    backend = open_backend()
    devices = [backend.open_device(i) for i in range(backend.device_count())]
    with Scheduler(devices, weights=weights) as scheduler:
        result = scheduler.run(graph, inputs)[graph.outputs[0]]
    print(f"{[d.facts.name for d in devices]} computed {result.shape}: {result[0, :4]} ...")


if __name__ == "__main__":
    main()
