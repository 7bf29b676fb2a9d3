"""Independent pieces of work as tasks of a Ray cluster; results come in the order of the items."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import ray
from ray.exceptions import RayError

from ggsched.errors import BackendUnavailable

_CHUNKS: Final = 8
"""Tasks for each processor: a few, so that none waits long for the last."""

_START: Final = "start one: ray start --head; on the others: ray start --address=HEAD:6379"

T = TypeVar("T")
R = TypeVar("R")


def in_order(function: Callable[[T], R], items: Sequence[T], address: str) -> Iterator[R]:
    """Yield what a function returns for each item, in order.

    A task whose worker is lost is run again by Ray, on another node if need be.

    Args:
        function: Of a module that every node can import.
        items: What it is called with.
        address: Of the cluster; ``auto`` for that of this machine or of ``RAY_ADDRESS``.

    Raises:
        BackendUnavailable: there is no cluster, or it lost the work.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    try:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise _unavailable(f"no Ray cluster at {address!r}", error) from error
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    size = 1 + len(items) // (_CHUNKS * cores)
    run = ray.remote(num_cpus=1)(_each)
    try:
        tasks = [run.remote(function, items[k : k + size]) for k in range(0, len(items), size)]
        for task in tasks:
            yield from ray.get(task)
    except RayError as error:
        raise _unavailable("the Ray cluster lost the work", error) from error


def _unavailable(what: str, error: Exception) -> BackendUnavailable:
    return BackendUnavailable(
        what, why=str(error).splitlines()[0] if str(error) else "", hint=_START
    )


def _each(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return list(map(function, items))
