"""Inputs of a model as it declares them, and its graphs for the shapes that were requested."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched_import.common.emit import Array, Emitter, Value


@dataclass(frozen=True, slots=True)
class Port:
    """An input as the model declares it.

    Attributes:
        dtype: Name of the element type.
        shape: Extents; names of those that are open, "" where one has no name.

    Examples:
        >>> from ggsched_import.onnx import Port
        >>> print(Port("x", "f32", ("rows", 2)))
        x f32[rows, 2]
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(str(n) or '?' for n in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Ports:
    """The inputs of a model, and the errors about them.

    Attributes:
        where: Name of the model.
        by_name: The inputs in order.
    """

    where: str
    by_name: Mapping[str, Port]

    @property
    def hint(self) -> str:
        """Say which inputs there are."""
        return "inputs: " + (", ".join(map(str, self.by_name.values())) or "none")

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that no input has.

        Raises:
            UsageError: there is one.
        """
        for name in names:
            if name not in self.by_name:
                raise UsageError(f"no input {name!r}", where=self.where, hint=self.hint)

    def check_rank(self, name: str, shape: Sequence[int]) -> None:
        """Refuse a shape with another number of axes.

        Raises:
            UsageError: it has.
        """
        if len(shape) != len(self.by_name[name].shape):
            raise self.misfit(name, shape)

    def misfit(self, name: str, shape: Sequence[int]) -> UsageError:
        """Return the error for a shape that an input does not allow."""
        return UsageError(f"shape {list(shape)} for {self.by_name[name]}", where=self.where)

    def open(self, name: str, kind: str, also: str = "") -> UsageError:
        """Return the error for an input whose shape nothing gives.

        Args:
            name: The input.
            kind: What dims name.
            also: Further ways to give it.
        """
        return UsageError(
            f"the shape of {self.by_name[name]} is open",
            where=self.where,
            hint=f"give dims={{'{kind}': extent}} or shapes={{'input': shape}}{also}",
        )


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A graph for inputs of given shapes.

    Attributes:
        weights: Arrays by the names of the graph's weights.
        inputs: Tensors by name, without those that were given as constants.
        outputs: Ids of tensors by name.

    Examples:
        >>> from onnx import TensorProto, helper
        >>> from ggsched import from_onnx
        >>> kind = TensorProto.FLOAT
        >>> x, y = (helper.make_tensor_value_info(n, kind, ["rows", 2]) for n in "xy")
        >>> file = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "small", [x], [y])
        >>> model = from_onnx(helper.make_model(file))
        >>> bound = model.bind({"rows": 1})
        >>> [node.op for node in bound.graph.nodes]
        ['clamp']
    """

    graph: Graph
    weights: Mapping[str, Array]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, int]

    def named(self, results: Mapping[int, Array]) -> dict[str, Array]:
        """Return what ``Scheduler.run`` returned, by the names of the outputs.

        Args:
            results: Arrays by tensor id.

        Examples:
            >>> import numpy as np
            >>> from ggsched import Scheduler
            >>> with Scheduler(["cpu:0"], weights=bound.weights) as scheduler:
            ...     results = scheduler.run(bound.graph, {"x": np.ones((1, 2), np.float32)})
            >>> bound.named(results)["y"].tolist()
            [[1.0, 1.0]]
        """
        return {name: results[tid] for name, tid in self.outputs.items()}


B = TypeVar("B", bound=BoundModel)


@dataclass(frozen=True, slots=True)
class Bindings(Generic[B]):
    """The graphs of a model, one for each key, and the weights of all of them."""

    _made: dict[tuple[object, ...], B] = field(default_factory=dict)
    _weights: dict[str, Array] = field(default_factory=dict)

    def get(self, key: tuple[object, ...], make: Callable[[], B]) -> B:
        """Return the graph of a key, made when it is first requested."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
            self._weights.update(found.weights)
        return found

    def weight(self, name: str) -> Array:
        """Return a weight of any graph.

        Raises:
            KeyError: no graph has it.
        """
        return self._weights[name]


def own_results(emit: Emitter, values: Iterable[Value]) -> list[Tensor]:
    """Return a result of a node of its own for each value, so that each can be an output."""
    tensors: list[Tensor] = []
    for value in values:
        t = emit.tensor(value)
        if t.role is not Role.TEMP or any(t.storage == other.storage for other in tensors):
            t = emit.g.op("nd.copy", t)
        tensors.append(t)
    return tensors


__all__ = ["Bindings", "BoundModel", "Port", "Ports", "own_results"]
