"""Early launch (NVIDIA: programmatic dependent launch), compute capability 9.0 and later.

A kernel that is enrolled may be brought onto the GPU while its predecessor on the stream still
runs, which hides the time that a launch takes. Two instructions make that safe, and both are put
in front of the first statement of the kernel here, so that no author can forget them:

- ``griddepcontrol.launch_dependents``: from here on the successor may be brought in as well;
- ``griddepcontrol.wait``: go on when all predecessors are complete and their writes are visible.

The wait stands before every access to memory, and clobbers memory for the compiler. It covers what
lies further back too: a predecessor is complete only when its own wait has been passed, so a chain
is as safe as its weakest kernel, and every kernel that is brought in early has to be enrolled here
one by one. A kernel without the instructions is never launched early, and the driver lets it wait
for its predecessor as a whole. Pointers are not ``__restrict__`` and nothing is read by
``ld.global.nc`` in front of the wait; a test looks at the machine-independent code for that.

Constants need no wait: weights that nobody writes while the program is open (LCH-7). ``fed_rows``
fetches them while its predecessor still runs and places its wait itself, before it reads or writes
anything else. Attention asks for rows of the caches to come to the second cache, which reads
nothing: what is written meanwhile goes there too. Such kernels are in ``OWN_WAIT``, and tests look
at every way through them.

Not enrolled are kernels that keep most of the shared memory of a multiprocessor, such as
``matvec_blocks_id`` and ``tile_product``: while their groups wait there is no room for groups of
the predecessor, and a step of gpt-oss took a seventh longer with them.

Modes other than ``on`` are for tests. ``late`` lets each group sleep for a while after it has let
its successor in, so that a successor which does not wait reads what was there before. ``broken``
does the same and leaves the wait out.
"""

import re
from functools import cache
from importlib import resources
from typing import Final, Literal

Mode = Literal["off", "on", "late", "broken"]

FIRST_ARCH: Final = 90

ENROLLED: Final = frozenset(
    {
        "copy_f32", "copy_f16", "copy_16bit", "repeat",
        "unary", "binary",
        "norm_rows", "norm_mul_rows", "rope_set_rows", "sum_rows", "soft_max", "rope",
        "get_rows", "set_rows", "add_id",
        "matmul", "list_rows", "matmul_id",
        "matvec", "matvec_id", "matvec_columns",
        "rms_mul", "rope_heads", "heads", "sum_add", "to_bf16", "to_halves",
        "to_f16", "unscale",
        "route_chosen", "route_all",
        "matvec_rows", "matvec_rows_id", "matvec_blocks",
        "matvec_sums", "matvec_parts",
        "sort_blocks", "sort_merge",
    }
)  # fmt: skip
"""Kernels whose first statement may stand behind the two instructions: they all have one."""

OWN_WAIT: Final = frozenset({"fed_rows", "fed_experts", "attention", "heads_attention"})
"""Enrolled kernels whose text says where they let go and where they wait."""

_HEAD: Final = re.compile(r"^KERNEL\((?P<name>\w+)\)\s*\([^{]*\)\s*\{", re.MULTILINE)
_NUMBERS: Final = {"on": 1, "late": 2, "broken": 3}


def is_enrolled(kernel: str, arch: int, mode: Mode) -> bool:
    """Whether a kernel is launched early on GPUs of an architecture."""
    return mode != "off" and arch >= FIRST_ARCH and kernel in ENROLLED | OWN_WAIT


def with_early_start(text: str, mode: Mode) -> str:
    """Return a source whose enrolled kernels begin with the two instructions."""
    if mode == "off":
        return text

    def head(match: re.Match[str]) -> str:
        start = " EARLY_START();" if match["name"] in ENROLLED else ""
        return match[0] + start

    return f"#define EARLY {_NUMBERS[mode]}\n{_macros()}{_HEAD.sub(head, text)}"


@cache
def _macros() -> str:
    return resources.files("ggsched_cuda").joinpath("kernels/early.h").read_text("utf-8")
