"""Kernels for every op, written once for OpenCL C and CUDA C++.

The sources (``*.cl``) use a dialect: macros and vector types that a prologue defines for each
language. A plug-in lowers nodes to ``KernelCall``s with ``lower_nodes`` and needs to know nothing
about ops; a call names a source, its preprocessor definitions, a kernel, its arguments and its
grid. Nothing here imports a vendor library.
"""

import hashlib
from functools import cache
from importlib import resources
from typing import Final, Literal

from ggsched.errors import UsageError
from ggsched_kernels.calls import CODE, CPU, FAULT, GPU, SCRATCH, Constant, KernelCall, Profile
from ggsched_kernels.lower import Lowered, lower_nodes, supported_fusions, supported_ops

Dialect = Literal["opencl", "cuda"]

DIALECTS: Final[tuple[Dialect, ...]] = ("opencl", "cuda")

# Source -> whether its programs depend on the type of a packed operand.
SOURCES: Final[dict[str, bool]] = {
    "copy": True,
    "elementwise": False,
    "matmul": True,
    "matvec": True,
    "norm": False,
    "rope": False,
    "rows": True,
    "softmax": False,
    "sort": False,
}


def source(name: str, dialect: Dialect) -> str:
    """Return the whole text of a source in a dialect: prologue, common parts, kernels.

    Raises:
        UsageError: there is no such source or dialect.
    """
    if name not in SOURCES or dialect not in DIALECTS:
        raise UsageError(
            f"no kernel source {name!r} for {dialect!r}",
            hint=f"sources: {', '.join(SOURCES)}; dialects: {', '.join(DIALECTS)}",
        )
    parts = [f"prologue_{dialect}.h", "common.h", f"{name}.cl"]
    if SOURCES[name]:
        parts.insert(2, "weights.h")
    return "\n".join(_text(part) for part in parts)


@cache
def source_digest(dialect: Dialect) -> str:
    """Return a hash of all sources of a dialect, for caches of compiled programs."""
    text = "\0".join(source(name, dialect) for name in SOURCES)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _text(file: str) -> str:
    return resources.files(__name__).joinpath(file).read_text(encoding="utf-8")


__all__ = [
    "CODE",
    "CPU",
    "DIALECTS",
    "FAULT",
    "GPU",
    "SCRATCH",
    "SOURCES",
    "Constant",
    "Dialect",
    "KernelCall",
    "Lowered",
    "Profile",
    "lower_nodes",
    "source",
    "source_digest",
    "supported_fusions",
    "supported_ops",
]
