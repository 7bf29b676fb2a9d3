"""Compiled kernels and the team that runs them, opened once for the process."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from ggsched.backend.precision import Activations
from ggsched_cpu.threads import warn_of_crowd

if TYPE_CHECKING:
    from ggsched_cpu.kernels.library import Library
    from ggsched_cpu.kernels.target import Target
    from ggsched_cpu.kernels.team import Functions, Team

KernelChoice = Literal["auto", "numpy"]
_LOG: Final = logging.getLogger("ggsched")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What emitters of tasks need.

    Attributes:
        address: Returns the address of a kernel from its family and its name.
        target: The processor.
        threads: How many share a task.
        activations: Whether products of packed weights round activations to 8 bits (``auto``).
    """

    address: Callable[[str, str], int]
    target: "Target"
    threads: int
    activations: Activations


@cache
def library() -> "Library | None":
    """Return the kernels for this processor; None, with one warning, where there can be none."""
    try:
        from ggsched_cpu.kernels.compiler import host_target
        from ggsched_cpu.kernels.library import Library
        from ggsched_cpu.kernels.object_cache import default_folder

        target = host_target()
        if not target.is_supported:
            raise RuntimeError(f"there are no kernels for {target.title}")
        found = Library(target, default_folder())
        found.address("walk", "lead")
    except (ImportError, OSError, RuntimeError) as error:
        _LOG.warning(
            "cpu: compiled kernels are not available (%s); every node runs by the reference "
            "arithmetic in numpy, which is exact and takes hundreds of times as long for packed "
            "weights",
            error,
        )
        return None
    return found


@cache
def walk_functions() -> "Functions":
    """Return the functions that run tables."""
    from ggsched_cpu.kernels.team import Functions

    opened = library()
    assert opened is not None
    names = "run_alone", "lead", "member", "stop"
    return Functions(*(opened.address("walk", name) for name in names))


@cache
def team(threads: int) -> "Team":
    """Return the team of this size, which all streams share; warn of one that is too large."""
    from ggsched_cpu.kernels.team import Team

    warn_of_crowd(threads)
    return Team(walk_functions(), threads)


def kernels_for(threads: int, activations: Activations, choice: KernelChoice) -> Kernels | None:
    """Return compiled kernels, or None if the reference arithmetic is to compute."""
    opened = None if choice == "numpy" else library()
    return None if opened is None else Kernels(opened.address, opened.target, threads, activations)


__all__: Sequence[str] = [
    "KernelChoice",
    "Kernels",
    "kernels_for",
    "library",
    "team",
    "walk_functions",
]
