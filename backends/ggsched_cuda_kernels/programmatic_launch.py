"""Programmatic dependent launch (PDL), compute capability 9.0 and later.

A kernel whose call says so (``KernelCall.launch``) is brought onto the GPU while its predecessor on
the stream still runs, which hides the time that a launch takes. Two instructions make that safe.
``AT_HEAD``, the rule, puts both in front of the first statement of the kernel here, so that no
author can forget them:

- ``griddepcontrol.launch_dependents``: from here on the successor may be brought in as well;
- ``griddepcontrol.wait``: go on when all predecessors are complete and their writes are visible.

The wait stands before every access to memory, and clobbers memory for the compiler. It covers what
lies further back too: a predecessor is complete only when its own wait has been passed, so a chain
is as safe as its weakest kernel. A kernel without the instructions is launched ``IN_TURN``: the
driver lets it wait for its predecessor as a whole. Pointers are not ``__restrict__`` and nothing is
read by ``ld.global.nc`` in front of the wait; tests look at the machine-independent code that the
oldest and the newest compiler make.

Constants need no wait: weights that nobody writes while the program is open (LCH-7).
``warp_specialized_rows`` and ``tile_product`` fetch them while their predecessor still runs and
place their wait themselves, before they read or write anything else. Attention requests rows of the
caches to come to the L2 cache, which reads nothing: what is written meanwhile goes there too. Calls
of such kernels say ``BY_ITSELF`` or ``WAITS_FIRST``, and tests look at every way through them.

In turn are launched kernels of experts that keep most of the shared memory of a multiprocessor,
``matvec_blocks_id`` and ``tile_product`` by a route: while their groups wait there is no room for
groups of the predecessor, and a step of gpt-oss took a seventh longer with them.

Modes other than ``on`` are for tests. ``late`` lets each group sleep for a while after it has let
its successor in, so that a successor which does not wait reads what was there before. ``broken``
does the same and leaves the wait out.
"""

import re
from functools import cache
from typing import Final, Literal

from ggsched.files.reading import package_text
from ggsched_kernels.calls import Launch

Mode = Literal["off", "on", "late", "broken"]

FIRST_ARCH: Final = 90

_HEAD: Final = re.compile(r"^KERNEL\((?P<name>\w+)\)\s*\([^{]*\)\s*\{", re.MULTILINE)
_NUMBERS: Final = {"off": 0, "on": 1, "late": 2, "broken": 3}


def starts_early(launch: Launch, arch: int, mode: Mode) -> bool:
    """Whether a call is launched with PDL on GPUs of an architecture."""
    return mode != "off" and arch >= FIRST_ARCH and launch is not Launch.IN_TURN


def with_early_start(text: str, mode: Mode, launch: Launch) -> str:
    """Return a source as its kernels begin, for calls that are launched in a way."""
    number = 0 if launch is Launch.IN_TURN else _NUMBERS[mode]
    if number and launch is Launch.AT_HEAD:
        text, found = _HEAD.subn(lambda match: f"{match[0]} EARLY_START();", text)
        assert found, "nothing in this source begins as a kernel does"
    return f"#define EARLY {number}\n{_macros()}{text}"


@cache
def _macros() -> str:
    return package_text("ggsched_cuda_kernels", "kernels/programmatic_launch.h")
