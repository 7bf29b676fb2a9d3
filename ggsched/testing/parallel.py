"""Independent pieces of work over processes of this machine or a Ray cluster, as if done by one.

    for verdict in in_order(block_verdict, blocks, jobs=4): ...

Results come in the order of the items, whoever was first. What runs on Ray is a plug-in's affair
(entry points of the group ``ggsched.tasks``), because nothing else of ggsched depends on it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import entry_points
from multiprocessing import get_context
from typing import Final, TypeVar

from ggsched.errors import BackendUnavailable

_GROUP: Final = "ggsched.tasks"

T = TypeVar("T")
R = TypeVar("R")


def in_order(
    function: Callable[[T], R], items: Sequence[T], *, jobs: int = 1, ray: str | None = None
) -> Iterator[R]:
    """Yield what a function returns for each item, in order.

    Args:
        function: Of a module, so that other processes find it by name. Its results depend on the
            item alone.
        items: What is pickled and sent.
        jobs: Processes of this machine; with one it is done here.
        ray: Address of a Ray cluster, ``auto`` for that of this machine or of ``RAY_ADDRESS``;
            each node needs ggsched in the same version. None for this machine.

    Raises:
        BackendUnavailable: Ray is not installed, or there is no cluster.
    """
    if ray is not None:
        yield from _of_plugin("ray")(function, items, ray)
    elif jobs == 1 or len(items) < 2:
        yield from map(function, items)
    else:
        with ProcessPoolExecutor(min(jobs, len(items)), get_context("spawn")) as pool:
            yield from pool.map(function, items, chunksize=1 + len(items) // (8 * jobs))


def _of_plugin(name: str) -> Callable[[Callable[[T], R], Sequence[T], str], Iterator[R]]:
    for point in entry_points(group=_GROUP, name=name):
        try:
            found: Callable[[Callable[[T], R], Sequence[T], str], Iterator[R]] = point.load()
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
