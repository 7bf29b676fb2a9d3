"""Graphs for sizes that differ from call to call: one graph for each of a few sizes, the buckets.

A graph has fixed shapes. A call of size n runs the graph of the smallest bucket that holds n: its
inputs are padded, its outputs are cut. At most ``limit`` graphs are kept with their plans.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import UsageError
from ggsched.interchange.dlpack_import import ArrayLike, host_arrays
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Tensor
from ggsched.run.cache import RecentCache
from ggsched.scheduler import Scheduler

_NO_FILLS: Final[Mapping[str, float]] = MappingProxyType({})


class Bucketed:
    """Runs the graph of the bucket that holds a call's size.

    What the padding holds must not matter to the rest of the outputs: rows of their own are safe,
    and what sums over the padded axis needs zeros, or a mask whose padding is minus infinity.

    Args:
        scheduler: Plans and runs the graphs.
        build: ``build(size)`` returns the graph of a bucket; its outputs have names, as
            ``g.build(y=y)`` gives them.
        sizes: The buckets, in any order.
        inputs: By name of each input that is padded, the axis whose extent is the size.
        outputs: By name of each output that is cut, the axis whose extent is the size.
        fills: What padding holds, by name of the input; 0 where none is given.
        limit: Graphs that are kept; the one used least recently gives way, and its plan with it.

    Raises:
        UsageError: no buckets, one that is not positive, no padded inputs, a fill of an input that
            is not padded, or a limit below 1.

    Examples:
        >>> import numpy as np
        >>> from ggsched import Bucketed, GraphBuilder, Scheduler
        >>> def build(size):
        ...     g = GraphBuilder()
        ...     return g.build(y=g.silu(g.input("x", (size, 4))))
        >>> with Scheduler(["cpu:0"]) as scheduler:
        ...     sizes = {"sizes": [8, 32], "inputs": {"x": 0}, "outputs": {"y": 0}}
        ...     model = Bucketed(scheduler, build, **sizes)
        ...     model.run({"x": np.ones((5, 4), np.float32)})["y"].shape
        (5, 4)
    """

    def __init__(
        self,
        scheduler: Scheduler,
        build: Callable[[int], Graph],
        *,
        sizes: Sequence[int],
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        fills: Mapping[str, float] = _NO_FILLS,
        limit: int = 4,
    ) -> None:
        given: Sequence[Any] = sizes
        if not given or not all(isinstance(n, int | np.integer) and n > 0 for n in given):
            raise UsageError(f"the buckets {list(sizes)}", why="they are positive sizes")
        self.sizes = tuple(sorted({int(n) for n in sizes}))
        if not inputs:
            raise UsageError("no input has the size", hint="write inputs={name: axis}")
        foreign = sorted(set(fills) - set(inputs))
        if foreign:
            raise UsageError("a fill of an input that is not padded", where=foreign[0])
        self._scheduler, self._build = scheduler, build
        self._inputs, self._outputs, self._fills = dict(inputs), dict(outputs), dict(fills)
        self._graphs: RecentCache[int, Graph] = RecentCache(limit, scheduler.forget)

    @property
    def kept(self) -> tuple[Graph, ...]:
        """The graphs that are kept, the one used last at the end."""
        return tuple(self._graphs.values())

    def bucket(self, size: int) -> int:
        """Return the smallest bucket that holds a size.

        Args:
            size: Of a call.

        Raises:
            UsageError: it is larger than all of them.

        Examples:
            >>> model.bucket(9)
            32
        """
        at = bisect_left(self.sizes, size)
        if at == len(self.sizes):
            raise UsageError(
                f"size {size} is beyond the largest bucket, {self.sizes[-1]}",
                hint="add a bucket to sizes, or call with less at a time",
            )
        return self.sizes[at]

    def graph(self, size: int) -> Graph:
        """Return the graph that calls of a size run, built if it is not kept.

        Args:
            size: Of a call.

        Raises:
            UsageError: no bucket holds the size, or the graph lacks a name that was declared, or
                has another extent there.

        Examples:
            >>> model.graph(9).named("x").shape
            (32, 4)
        """
        bucket = self.bucket(size)
        return self._graphs.get(bucket, lambda: self._built(bucket))

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, npt.NDArray[Any]]:
        """Run the graph of the bucket once and return its outputs by name, cut to the size.

        Args:
            inputs: By name, as for ``Scheduler.run``; those with the size are not padded yet.

        Raises:
            UsageError: inputs that are missing or disagree about the size, or one that no bucket
                holds, beside what ``Scheduler.run`` raises.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     model = Bucketed(scheduler, build, **sizes)
            ...     for n in (1, 8, 30):
            ...         y = model.run({"x": np.ones((n, 4), np.float32)})["y"]
            ...     len(model.kept), y.shape
            (2, (30, 4))
        """
        arrays = host_arrays(inputs)
        size = self._size(arrays)
        graph = self.graph(size)
        bucket = self.bucket(size)
        for name, axis in self._inputs.items():
            fill = self._fills.get(name, 0)
            arrays[name] = _padded(name, arrays[name], axis, bucket, fill)
        found = self._scheduler.run(graph, arrays).named
        return {
            n: _cut(a, self._outputs[n], size, bucket) if n in self._outputs else a
            for n, a in found.items()
        }

    def _size(self, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
        sizes: dict[int, str] = {}
        for name, axis in self._inputs.items():
            if name not in arrays:
                raise UsageError("no data for this input", where=name)
            shape = arrays[name].shape
            if not -len(shape) <= axis < len(shape):
                raise UsageError(f"{list(shape)} has no axis {axis}", where=name)
            sizes.setdefault(shape[axis], name)
        if len(sizes) > 1:
            stated = ", ".join(f"{name!r} {size}" for size, name in sizes.items())
            raise UsageError(f"inputs disagree about the size: {stated}")
        return next(iter(sizes))

    def _built(self, bucket: int) -> Graph:
        graph = self._build(bucket)
        if not isinstance(graph, Graph):
            raise UsageError(f"{graph!r} is not a graph", where=f"build({bucket})")
        outputs = {graph.tensors[tid].name: graph.tensors[tid] for tid in graph.outputs}
        for name, axis in self._inputs.items():
            _check_extent(graph.named(name), axis, bucket)
        for name, axis in self._outputs.items():
            if name not in outputs:
                raise UsageError(
                    f"no output {name!r} in the graph of bucket {bucket}",
                    where=graph.name,
                    hint=f"name it as in g.build({name}=...)",
                )
            _check_extent(outputs[name], axis, bucket)
        return graph


def _check_extent(t: Tensor, axis: int, bucket: int) -> None:
    if not -len(t.shape) <= axis < len(t.shape) or t.shape[axis] != bucket:
        raise UsageError(
            f"shape {list(t.shape)} in the graph of bucket {bucket}",
            where=t.name,
            why=f"axis {axis} was declared to have that size",
        )


def _padded(
    name: str, array: npt.NDArray[Any], axis: int, bucket: int, fill: float
) -> npt.NDArray[Any]:
    missing = bucket - array.shape[axis]
    if not missing:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, missing)
    try:
        return np.pad(array, widths, constant_values=fill)
    except (OverflowError, ValueError, TypeError) as error:
        raise UsageError(f"{array.dtype} holds no {fill!r} as padding", where=name) from error


def _cut(array: npt.NDArray[Any], axis: int, size: int, bucket: int) -> npt.NDArray[Any]:
    return array if size == bucket else array.take(range(size), axis)
