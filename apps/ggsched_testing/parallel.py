"""Independent pieces of work over processes of this machine or a Ray cluster, as if done by one.

    for verdict in in_order(block_verdict, blocks, jobs=4): ...

Results come in the order of the items, whoever was first. What runs on Ray is a plug-in's affair
(entry points of the group ``ggsched.tasks``), because nothing else of ggsched depends on it. A
``Journal`` keeps results, so that work which was cut short goes on where it was.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import entry_points
from multiprocessing import get_context
from typing import Any, Final, TypeVar

from ggsched.errors import BackendUnavailable
from ggsched_testing.journal import Journal

_GROUP: Final = "ggsched.tasks"
_CHUNKS: Final = 8
"""Pieces of work for each process: a few, so that none waits long for the last."""

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[int, int], None]
"""Called with the number of results that are there, and of all."""


def in_order(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    jobs: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
    journal: Journal[R] | None = None,
) -> Iterator[R]:
    """Yield what a function returns for each item, in order.

    Args:
        function: Of a module, so that other processes find it by name. Its results depend on the
            item alone.
        items: What is pickled and sent.
        jobs: Processes of this machine; with one it is done here.
        ray: Address of a Ray cluster, ``auto`` for that of this machine or of ``RAY_ADDRESS``;
            each node needs ggsched in the same version. None for this machine.
        progress: Called with the numbers of results (also those not yielded yet) and items.
        journal: Keeps results as they come, by the number of the item, and has those of before.

    Raises:
        BackendUnavailable: Ray is not installed, or there is no cluster.
    """
    found: dict[int, R] = {} if journal is None else journal.results(len(items))
    left = [k for k in range(len(items)) if k not in found]
    next_one = 0
    for number, result in _as_completed(function, [items[k] for k in left], jobs, ray):
        found[left[number]] = result
        if journal is not None:
            journal.add(left[number], result)
        if progress is not None:
            progress(len(found), len(items))
        while next_one in found:
            yield found[next_one]
            next_one += 1
    yield from (found[k] for k in range(next_one, len(items)))


def _as_completed(
    function: Callable[[T], R], items: Sequence[T], jobs: int, ray: str | None
) -> Iterator[tuple[int, R]]:
    """Yield the number of each item with what the function returns, as they come."""
    if not items:
        return
    if ray is not None:
        yield from _of_plugin("ray")(function, items, ray)
    elif jobs == 1 or len(items) < 2:
        yield from enumerate(map(function, items))
    else:
        size = 1 + len(items) // (_CHUNKS * jobs)
        with ProcessPoolExecutor(min(jobs, len(items)), get_context("spawn")) as pool:
            pieces = {
                pool.submit(_each, function, items[k : k + size]): k
                for k in range(0, len(items), size)
            }
            try:
                for done in as_completed(pieces):
                    yield from enumerate(done.result(), pieces[done])
            finally:
                for piece in pieces:
                    piece.cancel()


def _each(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return list(map(function, items))


def _of_plugin(name: str) -> Callable[..., Iterator[tuple[int, Any]]]:
    for point in entry_points(group=_GROUP, name=name):
        try:
            found: Callable[..., Iterator[tuple[int, Any]]] = point.load()
        except ImportError as error:
            raise BackendUnavailable(
                f"tasks cannot run on {name}",
                why=str(error),
                hint=f"pip install 'ggsched[{name}]'",
            ) from error
        return found
    raise BackendUnavailable(
        f"no plug-in runs tasks on {name}", hint=f"pip install 'ggsched[{name}]'"
    )
