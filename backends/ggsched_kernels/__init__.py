"""Kernels for every op, written once for OpenCL C and CUDA C++.

The sources (``*.cl``) use a dialect: macros and vector types that a prologue defines for each
language. A plug-in lowers nodes to ``KernelCall``s with ``lower_nodes`` and needs to know nothing
about ops; a call names a source, its preprocessor definitions, a kernel, its arguments and its
grid. Nothing here imports a vendor library.
"""

import hashlib
from functools import cache, partial
from typing import Final, Literal

from ggsched.errors import UsageError
from ggsched.files.reading import package_text
from ggsched_kernels.arrays import SOURCE_PREFIX as ARRAYS
from ggsched_kernels.arrays import array_source
from ggsched_kernels.block_bytes import byte_constants_text
from ggsched_kernels.block_constants import KERNEL_BLOCKS, constants_text
from ggsched_kernels.calls import (
    CODE,
    CPU,
    FACTOR,
    FAULT,
    GPU,
    ROUTE,
    SCRATCH,
    Constant,
    KernelCall,
    TuningProfile,
    warp_profile,
)
from ggsched_kernels.chains import chain_source
from ggsched_kernels.lower import Lowered, lower_nodes, supported_fusions, supported_ops
from ggsched_kernels.lower_warps import WARP_BLOCKS
from ggsched_kernels.merged import PREFIX as MERGED
from ggsched_kernels.merged import merged_source
from ggsched_kernels.user import PREFIX as USER_PREFIX
from ggsched_kernels.user import user_source

Dialect = Literal["opencl", "cuda"]

DIALECTS: Final[tuple[Dialect, ...]] = ("opencl", "cuda")

_PLAIN: Final = ("f32", "f16", "bf16")
_BLOCKS: Final = tuple(dtype.name for dtype in KERNEL_BLOCKS)

# Source -> types of the packed operand that its programs depend on.
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "attention_blocks": (*_PLAIN, "q8_0"),
    "attention_halves": _PLAIN,
    "attention_row": _PLAIN,
    "copy": _PLAIN + _BLOCKS,
    "elementwise": (),
    "fill": (),
    "matmul": _PLAIN + _BLOCKS,
    "matmul_halves": ("f16", "bf16", *WARP_BLOCKS),
    "matvec": _PLAIN + _BLOCKS,
    "matvec_blocks": WARP_BLOCKS,
    "matvec_rows": (*_PLAIN, *WARP_BLOCKS),
    "matvec_sums": _PLAIN,
    "norm": (),
    "recurrent": (),
    "rope": (),
    "rope_attention": (*_PLAIN, "q8_0"),
    "rope_kv_write": (),
    "rows": _PLAIN + _BLOCKS,
    "softmax": (),
    "sort": (),
}

# Source -> what it includes besides.
_HEADERS: Final[dict[str, tuple[str, ...]]] = {
    "attention_row": ("rope.cl", "rope_kv_write.cl"),
    "matmul": ("pieces.h",),
    "rope_attention": ("rope.cl", "rope_kv_write.cl", "attention_blocks.cl"),
    "rope_kv_write": ("rope.cl",),
    "sort": ("sort_key.h",),
}

# Source for devices with warps -> what it includes besides.
WARP_SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "attention_halves": ("pieces.h",),
    "attention_row": ("pieces.h", "warps.h"),
    "matmul_halves": ("in_place.h", "blocks.h"),
    "matvec_blocks": ("product.h", "blocks.h"),
    "matvec_rows": ("product.h", "pieces.h", "warps.h", "in_place.h", "blocks.h"),
    "matvec_sums": ("product.h", "pieces.h"),
}

OPENCL_ONLY: Final = frozenset(
    {"attention_halves", "attention_row", "matmul_halves", "rope_attention"}
)
"""Sources of OpenCL; CUDA has other kernels for tensor cores."""


def source(name: str, dialect: Dialect) -> str:
    """Return the whole text of a source in a dialect: prologue, common parts, kernels.

    Raises:
        UsageError: there is no such source or dialect.
    """
    if name.startswith(USER_PREFIX):
        return user_source(name, dialect)
    if name.startswith(MERGED):
        around = _file("grid_barrier.h"), _file("merged.cl")
        return merged_source(name, partial(source, dialect=dialect), *around)
    if name.startswith(ARRAYS):
        _, file, text = name.split("-")[:3]
        if file in ("chain", "conv"):
            definitions, file = chain_source(text), f"array_{file}.cl"
        else:
            definitions, file = array_source(name)
        return f"{common_text(dialect, 'arrays.h')}\n{definitions}{_file(file)}"
    if name not in SOURCES or dialect not in DIALECTS:
        raise UsageError(
            f"no kernel source {name!r} for {dialect!r}",
            hint=f"sources: {', '.join(SOURCES)}; dialects: {', '.join(DIALECTS)}",
        )
    warps = WARP_SOURCES.get(name)
    parts = [*(["weights.h"] if SOURCES[name] else []), *_HEADERS.get(name, ()), *(warps or ())]
    return common_text(dialect, *parts, f"{name}.cl", has_warps=warps is not None)


def common_text(dialect: Dialect, *parts: str, has_warps: bool = False) -> str:
    """Return prologue and common text of a dialect, and more parts: for a plug-in's own kernels."""
    first = [f"prologue_{dialect}.h", *([f"warp_{dialect}.h"] if has_warps else []), "common.h"]
    return "\n".join(_text(part) for part in (*first, *parts))


@cache
def source_digest(dialect: Dialect) -> str:
    """Return a hash of all sources of a dialect, for caches of compiled programs."""
    text = "\0".join(source(name, dialect) for name in SOURCES)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _text(file: str) -> str:
    constants = {"weights.h": constants_text, "blocks.h": byte_constants_text}.get(file)
    return f"{constants()}\n{_file(file)}" if constants else _file(file)


def _file(file: str) -> str:
    return package_text(__name__, file)


__all__ = [
    "ARRAYS",
    "CODE",
    "CPU",
    "DIALECTS",
    "FACTOR",
    "FAULT",
    "GPU",
    "OPENCL_ONLY",
    "ROUTE",
    "SCRATCH",
    "SOURCES",
    "USER_PREFIX",
    "WARP_SOURCES",
    "Constant",
    "Dialect",
    "KernelCall",
    "Lowered",
    "TuningProfile",
    "common_text",
    "lower_nodes",
    "source",
    "source_digest",
    "supported_fusions",
    "supported_ops",
    "warp_profile",
]
