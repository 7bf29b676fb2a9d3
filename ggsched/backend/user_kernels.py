"""Which user-defined ops a backend has kernels for; see ``ggsched.ir.user_ops``."""

from typing import Any

from ggsched.errors import UsageError
from ggsched.ir.ops import OPS
from ggsched.ir.user_ops import user_ops
from ggsched.topology.caps import op_key


def user_op_keys(backend: str | None) -> frozenset[str]:
    """Return ``op:dtype`` of the user-defined ops with a kernel for a backend; of all for None.

    A plug-in adds them to ``DeviceFacts.ops`` when a device is opened.
    """
    return frozenset(
        op_key(op.name, dtype)
        for op in user_ops()
        if backend is None or backend in op.kernels
        for dtype in op.types[0]
    )


def user_kernel(op: str, backend: str) -> Any:
    """Return the kernel of a user-defined op for a backend.

    Raises:
        UsageError: the op is not registered any more, or has no such kernel.
    """
    kernels = OPS[op].kernels if op in OPS else {}
    if backend not in kernels:
        raise UsageError(f"no kernel for {backend!r}", where=f"op {op!r}")
    return kernels[backend]


__all__ = ["user_kernel", "user_op_keys"]
