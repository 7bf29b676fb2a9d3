"""Texts of all kernels, shared and own, and the options that compile them."""

import re
from collections.abc import Mapping
from typing import Final

from ggsched.errors import UsageError
from ggsched.files.reading import package_text
from ggsched_cuda_kernels.chain_rows import SOURCE as CHAIN_ROWS
from ggsched_cuda_kernels.conv_mma import SOURCE as CONV_MMA
from ggsched_cuda_kernels.programmatic_launch import Mode, with_early_start
from ggsched_kernels import ARRAYS, SOURCES, USER_PREFIX, common_text, source
from ggsched_kernels.calls import Launch
from ggsched_kernels.chains import SOURCE as CHAIN
from ggsched_kernels.convolution import SOURCE as CONV

OPTIONS: Final = ("-std=c++17",)
OLDEST_ARCH: Final = 80
"""Compute capability whose instructions kernels use: ``mma`` of bf16 and TF32, ``cp.async``."""
OWN: Final = "helpers"
"""Source of the kernels that streams launch for themselves: transfers, copies of fault words."""

BEHIND: Final = {
    "conv_step": "recurrent",
    "delta_scan": "recurrent",
    "elements": "elementwise",
    "moe_router": "sort",
    "rope_tokens": "rope",
}
"""Own sources that stand behind the text of a shared one."""

_GEMV: Final = ("weights.h", "pieces.h", "warps.h", "blocks.h")
_GEMV_OWN: Final = ("tile_config.h", "gemv_row.h", "gemv_pieces.h", "gemv_tiles.h", "gemv_jobs.h")
WITH_HEADERS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "attention": (("warps.h",), ("cluster.h", "attention.h")),
    "batch_attention": ((), ("mma.h", "halves.h")),
    "flash_attention": ((), ("halves.h", "mma.h", "group_mma.h")),
    "flash_join": ((), ("halves.h",)),
    "gated_rows": ((), ("halves.h",)),
    "heads_attention": (("warps.h", "rope.cl"), ("cluster.h", "attention.h")),
    "rms_mul": ((), ("halves.h",)),
    "sum_add": ((), ()),
    "sum_norm": ((), ("halves.h", "rendezvous.h")),
    "to_bf16": (("weights.h",), ()),
    "to_f16": (("weights.h", "blocks.h"), ()),
    "unscale": ((), ()),
    "to_halves": ((), ("halves.h",)),
    "tile_product": (("weights.h", "blocks.h"), ("mma.h", "group_mma.h", "cluster.h")),
    "warp_specialized_rows": (_GEMV, ("rendezvous.h", *_GEMV_OWN)),
    "warp_specialized_experts": ((*_GEMV, "sort_key.h"), _GEMV_OWN),
}
"""Own sources for warps: headers of the shared ones, and own ones, that they stand behind."""

UNUSED: Final = "#define UNUSED_KERNEL(name) static __device__ void name\n"

Defines = tuple[tuple[str, str], ...]


def architecture_of(arch: int) -> str:
    """Return what the compiler calls an architecture; those with own instructions get them."""
    return f"sm_{arch}a" if arch in (90, 100, 120) else f"sm_{arch}"


def text_of(
    name: str, mode: Mode = "off", launch: Launch = Launch.IN_TURN, kernel: str = ""
) -> str:
    """Return the text of a source, shared or own, for calls that are launched in a way.

    Args:
        name: The source.
        mode: How kernels that are launched with PDL begin.
        launch: When its kernels may be launched.
        kernel: The only kernel that is wanted; all of the source if not given.

    Raises:
        UsageError: there is none of that name.
    """
    return with_early_start(_alone(_whole(name), kernel), mode, launch)


def _alone(text: str, kernel: str) -> str:
    """Let other kernels of a source be functions that nobody calls: they take most of the time."""
    others = re.compile(rf"^KERNEL\((?!{re.escape(kernel)}\))", re.MULTILINE)
    if not kernel or f"\nKERNEL({kernel})" not in text:
        return text
    return UNUSED + others.sub("UNUSED_KERNEL(", text)


def _whole(name: str) -> str:
    if name.startswith(f"{CONV_MMA}-"):
        tiles = source(name.replace(CONV_MMA, CONV, 1), "cuda")
        return "\n".join([tiles, *map(_own, ("mma.h", "conv_mma.cu"))])
    if name.startswith(f"{CHAIN_ROWS}-"):
        chain = source(name.replace(CHAIN_ROWS, CHAIN, 1), "cuda")
        return "\n".join([chain, *map(_own, ("halves.h", "chain_rows.cu"))])
    if name in SOURCES or name.startswith((USER_PREFIX, ARRAYS)):
        return source(name, "cuda")
    if name != OWN and name not in BEHIND and name not in WITH_HEADERS:
        known = ", ".join([*SOURCES, *BEHIND, *WITH_HEADERS, OWN])
        raise UsageError(f"no kernel source {name!r}", hint=f"sources: {known}")
    text = _own(f"{name}.cu")
    if name in BEHIND:
        return source(BEHIND[name], "cuda") + "\n" + text
    if name in WITH_HEADERS:
        shared, own = WITH_HEADERS[name]
        headers = common_text("cuda", *shared, has_warps=True)
        return "\n".join([headers, *map(_own, own), text])
    return text


def _own(file: str) -> str:
    return package_text("ggsched_cuda_kernels", f"kernels/{file}")


def options_for(arch: int, defines: Defines) -> tuple[str, ...]:
    """Return the options of the compiler."""
    return (
        f"--gpu-architecture={architecture_of(arch)}",
        *OPTIONS,
        *(f"-D{name}={value}" for name, value in defines),
    )
