"""An exported program of PyTorch, and its graph for given shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched_import.common.bound import Bindings, BoundModel, Port, Ports, own_results
from ggsched_import.common.emit import Array, Const, Emitter
from ggsched_import.common.fourier import joined_parts
from ggsched_import.common.simplify import simplified
from ggsched_import.torch.dims import Dims
from ggsched_import.torch.export import (
    Weights,
    check_signature,
    decomposed,
    import_torch,
    output_names,
)
from ggsched_import.torch.types import PART, Complex, array_of, name_of
from ggsched_import.torch.walk import Walk, check_ops, given_input

if TYPE_CHECKING:
    from ggsched.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class BoundProgram(BoundModel):
    """A graph for inputs of given shapes.

    Attributes:
        known: Outputs that are not tensors: numbers and None, by name.
        order: Names of all outputs in order.
        pairs: Outputs that are complex; the graph has their parts along a last axis.

    Examples:
        >>> import torch
        >>> from ggsched import Scheduler, from_torch
        >>> rows = torch.export.Dim("rows", max=64)
        >>> module, x = torch.nn.ReLU(), torch.zeros(3, 2)
        >>> model = from_torch(torch.export.export(module, (x,), dynamic_shapes=({0: rows},)))
        >>> bound = model.bind(shapes={"input": (1, 2)})
        >>> bound.order
        ('output',)
    """

    known: Mapping[str, Any]
    order: tuple[str, ...]
    pairs: frozenset[str] = frozenset()

    def named(self, results: Mapping[int, Array]) -> dict[str, Any]:
        """Return what ``Scheduler.run`` returned, by the names of the outputs.

        Args:
            results: Arrays by tensor id.

        Examples:
            >>> with Scheduler(["cpu:0"], weights=bound.weights) as scheduler:
            ...     results = scheduler.run(bound.graph, {"input": torch.ones(1, 2)})
            >>> bound.named(results)["output"].tolist()
            [[1.0, 1.0]]
        """
        found = {n: results[t] for n, t in self.outputs.items()}
        found |= {n: _joined(found[n]) for n in self.pairs}
        return {n: found[n] if n in found else self.known[n] for n in self.order}


class TorchModel:
    """A program as exported; ``bind`` gives its graph for given shapes.

    Attributes:
        name: Of the model's class.
        inputs: Tensors that it takes, by name in the order of its arguments.
        outputs: Names of the outputs.

    Examples:
        >>> import torch
        >>> from ggsched import Scheduler, from_torch
        >>> rows = torch.export.Dim("rows", max=64)
        >>> module, x = torch.nn.ReLU(), torch.zeros(3, 2)
        >>> model = from_torch(torch.export.export(module, (x,), dynamic_shapes=({0: rows},)))
        >>> list(model.inputs), model.outputs
        (['input'], ('output',))
    """

    def __init__(self, program: Any, dims: Mapping[str, int]) -> None:
        check_signature(program)
        self._given = dict(dims)
        self._program = program = decomposed(program)
        check_signature(program)
        check_ops(program.graph_module)
        self._weights_of = Weights(program)
        signature = program.graph_signature
        self.name = type(program.graph_module).__name__
        self._dims = Dims(program.range_constraints, self.name)
        self._nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        self._specs = list(signature.input_specs)
        self.inputs: dict[str, Port] = {}
        for spec in self._specs:
            if spec.kind.name == "USER_INPUT" and type(spec.arg).__name__ == "TensorArgument":
                name = spec.arg.name
                self.inputs[name] = _port(name, self._nodes[name].meta["val"])
        tree = program.module_call_graph[0].signature.out_spec
        self._is_output = [s.kind.name == "USER_OUTPUT" for s in signature.output_specs]
        self.outputs = tuple(output_names(tree, sum(self._is_output)))
        self._ports = Ports(self.name, self.inputs)
        self._bound: Bindings[BoundProgram] = Bindings()

    @property
    def graph(self) -> Graph:
        """The graph, where ``dims`` leave nothing open."""
        return self.bind().graph

    @property
    def weights(self) -> Mapping[str, Array]:
        """The weights, where ``dims`` leave nothing open."""
        return self.bind().weights

    def weight(self, name: str) -> Array:
        """Return a weight of any graph that was bound, as ``Scheduler(weights=...)`` requests it.

        Args:
            name: Of a weight of a graph.

        Raises:
            KeyError: no graph has it.

        Examples:
            >>> scheduler = Scheduler(["cpu:0"], weights=model.weight)
            >>> scheduler.close()
        """
        return self._bound.weight(name)

    def bind(
        self,
        dims: Mapping[str, int] | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> BoundProgram:
        """Return the graph for given shapes; the same object for the same ones.

        Args:
            dims: Extents by symbol (``inputs`` shows them), beside those given to ``from_torch``.
            shapes: Shapes of inputs by name. They give the symbols, too.

        Raises:
            UsageError: shapes that the program does not allow, or that are open.
            ModelError: an op that is not supported.

        Examples:
            >>> model.bind(shapes={"input": (5, 2)}).graph.nodes[0].op
            'clamp'
        """
        known = self._known({**self._given, **(dims or {})}, shapes or {})
        return self._bound.get(tuple(sorted(known.items())), lambda: self._make(known))

    def run(
        self, scheduler: "Scheduler", inputs: Mapping[str, Any] | Sequence[Any]
    ) -> dict[str, Any]:
        """Run the model for inputs of any shape that it allows.

        Args:
            scheduler: Made with ``weights=model.weight``.
            inputs: Arrays or tensors, by name or in order.

        Returns:
            Arrays by the names of the outputs; None and numbers where the program returns them.

        Raises:
            UsageError: inputs that are missing, unknown, or of another type or shape.
            GgschedError: what ``bind`` and ``Scheduler.run`` raise.

        Examples:
            >>> with Scheduler(["cpu:0"], weights=model.weight) as scheduler:
            ...     model.run(scheduler, [torch.tensor([[-1.0, 1.0]])])["output"].tolist()
            [[0.0, 1.0]]
        """
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self.inputs):
                raise UsageError(f"{len(inputs)} inputs", where=self.name, hint=self._ports.hint)
            inputs = dict(zip(self.inputs, inputs, strict=True))
        arrays = {n: _array(a, n) for n, a in inputs.items()}
        shapes = {n: a.shape[: -1 if self._is_complex(n) else None] for n, a in arrays.items()}
        for name in self.inputs:
            if name not in arrays:
                raise UsageError(
                    f"input {name!r} is missing", where=self.name, hint=self._ports.hint
                )
        bound = self.bind(shapes=shapes)
        return bound.named(scheduler.run(bound.graph, arrays))

    def _is_complex(self, name: str) -> bool:
        return name in self.inputs and self.inputs[name].dtype in PART

    def _known(self, dims: dict[str, int], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        pairs: list[tuple[Any, int]] = []
        self._ports.check(shapes)
        for name, shape in shapes.items():
            extents = self._nodes[name].meta["val"].shape
            self._ports.check_rank(name, shape)
            for said, n in zip(extents, shape, strict=True):
                if isinstance(said, int):
                    if said != n:
                        raise self._ports.misfit(name, shape)
                else:
                    pairs.append((said.node.expr, int(n)))
        return self._dims.solve(pairs, dims)

    def _shape(self, name: str, known: Mapping[str, int]) -> tuple[int, ...]:
        found = []
        for n in self._nodes[name].meta["val"].shape:
            extent = n if isinstance(n, int) else self._dims.value(n.node.expr, known)
            if extent is None:
                raise self._ports.open(name, "symbol")
            found.append(int(extent))
        return tuple(found)

    def _make(self, known: Mapping[str, int]) -> BoundProgram:
        emit = Emitter(self.name)
        given: list[Any] = []
        inputs: dict[str, Tensor] = {}
        for spec in self._specs:
            kind, name = type(spec.arg).__name__, getattr(spec.arg, "name", "")
            if spec.kind.name != "USER_INPUT":
                given.append(self._weights_of.of(spec))
            elif kind == "TensorArgument":
                shape = self._shape(name, known)
                value, inputs[name] = given_input(emit, name, shape, self.inputs[name].dtype)
                given.append(value)
            elif kind == "SymIntArgument":
                given.append(self._dims.value(self._nodes[name].meta["val"].node.expr, known))
            else:
                given.append(getattr(spec.arg, "value", None))
        values = Walk(emit).graph(self._program.graph_module, given)
        return bound_program(emit, inputs, self.outputs, list(compress(values, self._is_output)))


def bound_program(
    emit: Emitter, inputs: Mapping[str, Tensor], names: Sequence[str], values: Sequence[Any]
) -> BoundProgram:
    """Return the graph whose outputs are values: each output a result of a node of its own."""
    given = dict(zip(names, values, strict=True))
    pairs = {n: v for n, v in given.items() if isinstance(v, Complex)}
    given |= {n: joined_parts(emit, v.real, v.imag) for n, v in pairs.items()}
    of_tensors = {n: v for n, v in given.items() if isinstance(v, (Const, Tensor))}
    if not of_tensors:
        raise UsageError("no output is a tensor", where="from_torch")
    known = {n: v for n, v in given.items() if n not in of_tensors}
    tensors = dict(zip(of_tensors, own_results(emit, of_tensors.values()), strict=True))
    graph, weights = simplified(emit.g.build(*tensors.values()), emit.weights)
    found = {t.name: t for t in graph.roots(Role.INPUT)}
    ids = dict(zip(tensors, graph.outputs, strict=True))
    own = {n: found[n] for n in inputs}
    return BoundProgram(graph, weights, own, ids, known, tuple(names), frozenset(pairs))


def from_torch(program: Any, dims: Mapping[str, int] | None = None) -> TorchModel:
    """Return the model in a program that ``torch.export.export`` made.

    Weights are shared with the program, not copied, unless they are strided. Linear layers multiply
    with weights of 16 bits as they are, and add up in f32; what else is bfloat16 comes as f32.

    Args:
        program: A ``torch.export.ExportedProgram``.
        dims: Extents by symbol, for those that the program leaves open.

    Raises:
        ModelError: a program that changes its state, weights without elements on the host, or ops
            that are not supported; all of them are named.
        UsageError: the package ``torch`` is missing, or not a program.

    Examples:
        >>> import torch
        >>> from ggsched import Scheduler, from_torch
        >>> program = torch.export.export(torch.nn.ReLU(), (torch.tensor([-1.0, 1.0]),))
        >>> model = from_torch(program)
        >>> with Scheduler(["cpu:0"], weights=model.weight) as scheduler:
        ...     (result,) = model.run(scheduler, [torch.tensor([-2.0, 3.0])]).values()
        >>> result.tolist()
        [0.0, 3.0]
    """
    torch = import_torch()
    if not isinstance(program, torch.export.ExportedProgram):
        raise UsageError(
            f"a {type(program).__name__} is not an exported program",
            where="from_torch",
            hint="from_torch(torch.export.export(model.eval(), example_inputs))",
        )
    return TorchModel(program, dims or {})


def _port(name: str, value: Any) -> Port:
    shape = tuple(n if isinstance(n, int) else str(n.node.expr) for n in value.shape)
    return Port(name, name_of(value.dtype, f"input {name!r}"), shape)


def _array(value: Any, name: str) -> Array:
    if hasattr(value, "dtype") and str(value.dtype).startswith("torch."):
        return array_of(value, name)
    array = np.asarray(value)
    if array.dtype.kind != "c":
        return array
    return array.reshape(*array.shape, 1).view(array.real.dtype)


def _joined(pairs: Array) -> Array:
    """Return parts along a last axis as complex numbers."""
    kind = np.result_type(pairs.dtype, np.complex64)
    return np.ascontiguousarray(pairs).view(kind).reshape(pairs.shape[:-1])


__all__ = ["BoundProgram", "TorchModel", "bound_program", "from_torch"]
