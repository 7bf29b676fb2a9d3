"""Independent pieces of work as tasks of a Ray cluster."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from ggsched.errors import BackendUnavailable, GgschedError
from ggsched_ray.connection import connect, first_line

_CHUNKS: Final = 8
"""Tasks for each processor: a few, so that none waits long for the last."""

T = TypeVar("T")
R = TypeVar("R")


def as_completed(
    function: Callable[[T], R], items: Sequence[T], address: str
) -> Iterator[tuple[int, R]]:
    """Yield the number of each item with what a function returns for it, as they come.

    A task whose worker is lost is run again by Ray, on another node if need be.

    Args:
        function: Of a module that every node can import.
        items: What it is called with.
        address: Of the cluster; ``auto`` for that of this machine or of ``RAY_ADDRESS``.

    Raises:
        BackendUnavailable: there is no cluster, or it lost the work.
        GgschedError: what the function raises.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    connect(address)
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    size = 1 + len(items) // (_CHUNKS * cores)
    run = ray.remote(num_cpus=1)(_each)
    pieces = {run.remote(function, items[k : k + size]): k for k in range(0, len(items), size)}
    left = list(pieces)
    try:
        while left:
            (done,), left = ray.wait(left, num_returns=1)
            yield from enumerate(ray.get(done), pieces[done])
    except RayTaskError as error:
        if isinstance(error.cause, GgschedError):
            raise error.cause from error
        raise _unavailable("a task failed on the Ray cluster", error.cause or error) from error
    except RayError as error:
        raise _unavailable("the Ray cluster lost the work", error) from error
    finally:
        for task in left:
            ray.cancel(task)


def _unavailable(what: str, error: BaseException) -> BackendUnavailable:
    return BackendUnavailable(what, why=first_line(error), hint="see its nodes: ray status")


def _each(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return list(map(function, items))
