"""What a run returns: outputs by tensor id, by tensor, and by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Tensor


class Outputs(dict[int, np.ndarray]):
    """Arrays by tensor id, in the order of the graph's outputs.

    ``outputs[y]`` also takes the tensor that a builder returned, or the name that ``build(y=y)``
    gave, or that of the node that made it: ``g.silu(x, name="y")`` and ``outputs["y"]``.
    """

    def __init__(self, graph: Graph, found: Mapping[int, np.ndarray]) -> None:
        super().__init__(found)
        self._graph = graph

    @property
    def named(self) -> dict[str, np.ndarray]:
        """The outputs that have a name of their own, by name."""
        names = [self._graph.tensors[tid].name for tid in self]
        return {
            n: a for n, a in zip(names, self.values(), strict=True) if names.count(n) == 1 and n
        }

    def __getitem__(self, key: int | str | Tensor) -> np.ndarray:
        """Return an output.

        Raises:
            KeyError: a tensor id that is none of an output.
            UsageError: a name or a tensor that is none of an output, or a name of several.
        """
        if isinstance(key, str):
            found = self.named.get(key)
            if found is None:
                known = ", ".join(self.named) or "none has a name of its own"
                raise UsageError(
                    f"no output {key!r}", where=self._graph.name, hint=f"outputs: {known}"
                )
            return found
        if isinstance(key, Tensor):
            own = self._graph.tensors[key.id] if key.id in self else None
            if own is None or own != replace(key, name=own.name):  # ``build`` may have named it
                raise UsageError(f"{key.name!r} is not an output", where=self._graph.name)
            key = key.id
        return super().__getitem__(key)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the graph."""
        return Outputs, (self._graph, dict(self))
