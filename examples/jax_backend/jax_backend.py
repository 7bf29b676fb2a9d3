"""A plug-in for JAX, whose arrays are immutable: its facts, its kernels, and where arrays go.

``FunctionalDevice`` does the rest. To install it, name ``open_backend`` in the entry-point group
``ggsched.backends``. Run this file to see a graph planned over JAX and the CPU.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ggsched.backend.base import BaseBackend
from ggsched.backend.functional import FunctionalDevice, functional_facts
from ggsched.errors import BackendUnavailable

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise BackendUnavailable("JAX is not installed", where="jax", hint="pip install jax") from error


class Jax:
    """Brings arrays to a device of JAX and back."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def from_host(self, array: np.ndarray) -> Any:
        """Copy to the device."""
        return jax.device_put(array, self.device)

    def to_host(self, array: Any) -> np.ndarray:
        """Wait for an array and copy it back."""
        return np.asarray(array)


def kernel(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Make a kernel of a function of arrays and some parameters; JAX compiles it once a shape."""
    compiled = jax.jit(function)

    def run(inputs: Sequence[Any], params: Mapping[str, Any]) -> Any:
        found = compiled(*inputs, **{name: params[name] for name in names})
        return found.block_until_ready()

    return run


def mul_mat(w: Any, x: Any) -> Any:
    """``x @ w.T``; batch i of x uses batch ``i // (Bx / Bw)`` of w."""
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    for axis in range(x.ndim - 2):
        w = jnp.repeat(w, x.shape[axis] // w.shape[axis], axis)
    return jnp.matmul(x, jnp.swapaxes(w, -1, -2), precision="highest")


def rms_norm(x: Any, eps: Any) -> Any:
    """``x / sqrt(mean(x**2) + eps)`` over the last axis."""
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


KERNELS = {
    "add": kernel(lambda a, b: a + b),
    "sub": kernel(lambda a, b: a - b),
    "mul": kernel(lambda a, b: a * b),
    "silu": kernel(lambda x: x * jax.nn.sigmoid(x)),
    "sigmoid": kernel(jax.nn.sigmoid),
    "tanh": kernel(jnp.tanh),
    "scale": kernel(lambda x, scale, bias: x * scale + bias, "scale", "bias"),
    "rms_norm": kernel(rms_norm, "eps"),
    "mul_mat": kernel(mul_mat),
}


def open_device(index: int) -> FunctionalDevice:
    """Open a device of JAX."""
    facts = functional_facts("jax", KERNELS, name=f"jax:{index}", is_deterministic=False)
    devices = jax.devices()
    return FunctionalDevice(facts, KERNELS, Jax(devices[index % len(devices)]))


def open_backend() -> BaseBackend:
    """Return the backend; two logical devices, on one device of JAX if there is no second."""
    count = max(2, jax.device_count())
    return BaseBackend("jax", open_device, count=count, contract_version=(1, 5))


def main() -> None:
    """Run a small graph."""
    from ggsched import GraphBuilder, Scheduler

    g = GraphBuilder("two layers")
    x, w = g.input("x", (4, 64)), g.weight("w", (64, 64))
    graph = g.build(g.mul_mat(w, g.silu(g.mul_mat(w, x))))
    rng = np.random.default_rng(0)
    with Scheduler([open_device(0)], weights={"w": rng.random((64, 64), np.float32)}) as scheduler:
        (y,) = scheduler.run(graph, {"x": rng.random((4, 64), np.float32)}).values()
    print("jax:0", y.shape, bool(np.isfinite(y).all()))


if __name__ == "__main__":
    main()
