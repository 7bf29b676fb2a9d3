"""An ONNX model, and its graph for given shapes."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggsched.errors import ModelError
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched_import.common.bound import Bindings, BoundModel, Port, Ports, own_results
from ggsched_import.common.emit import Array, Const, Emitter, Value
from ggsched_import.common.simplify import simplified
from ggsched_import.onnx.read import ExternalData, import_onnx, read_model, text
from ggsched_import.onnx.types import name_of
from ggsched_import.onnx.walk import Walk

if TYPE_CHECKING:
    from ggsched.scheduler import Scheduler


class OnnxModel:
    """A model as read; ``bind`` gives its graph for given shapes.

    Attributes:
        name: Of the graph.
        inputs: What the file declares, by name.
        outputs: Names of the outputs.

    Examples:
        >>> from onnx import TensorProto, helper
        >>> from ggsched import from_onnx
        >>> kind = TensorProto.FLOAT
        >>> x, y = (helper.make_tensor_value_info(n, kind, ["rows", 2]) for n in "xy")
        >>> file = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "small", [x], [y])
        >>> model = from_onnx(helper.make_model(file))
        >>> str(model.inputs["x"]), model.outputs
        ('x f32[rows, 2]', ('y',))
    """

    def __init__(
        self,
        model: Any,
        folder: Path | None,
        dims: Mapping[str, int],
        constants: Mapping[str, Any],
    ) -> None:
        self._model, self._external = model, ExternalData(folder)
        self._dims, self._constants = dict(dims), dict(constants)
        graph = model.graph
        self.name: str = text(graph.name) or "onnx"
        Walk(model, self._external, Emitter(self.name)).check_ops(graph)
        known = {text(t.name) for t in graph.initializer}
        ports = {i.name: _port(i) for i in graph.input}
        self.inputs: dict[str, Port] = {n: p for n, p in ports.items() if n not in known}
        self.outputs: tuple[str, ...] = tuple(text(o.name) for o in graph.output)
        self._ports = Ports(self.name, self.inputs)
        self._all = Ports(self.name, ports)  # also those that have elements in the file
        self._all.check(constants)
        self._bound: Bindings[BoundModel] = Bindings()

    def is_constant(self, name: str) -> bool:
        """Whether an input was given as a constant.

        Args:
            name: Of an input.

        Examples:
            >>> model.is_constant("x")
            False
        """
        return name in self._constants

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
            >>> from ggsched import Scheduler
            >>> scheduler = Scheduler(["cpu:0"], weights=model.weight)
            >>> scheduler.close()
        """
        return self._bound.weight(name)

    def bind(
        self,
        dims: Mapping[str, int] | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> BoundModel:
        """Return the graph for given shapes; the same object for the same ones.

        Args:
            dims: Extents by name, beside those given to ``from_onnx``.
            shapes: Shapes of inputs by name. They give the extents that have a name, too.

        Raises:
            UsageError: shapes that the file does not allow, or that are open.
            ModelError: an op that is not supported, or a file that makes no sense.

        Examples:
            >>> model.bind({"rows": 4}).inputs["x"].shape
            (4, 2)
        """
        bound = self._shapes({**self._dims, **(dims or {})}, shapes or {})
        return self._bound.get(tuple(sorted(bound.items())), lambda: self._make(bound))

    def run(self, scheduler: "Scheduler", inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model for inputs of any shape that it allows.

        Args:
            scheduler: Made with ``weights=model.weight``.
            inputs: Arrays by name.

        Returns:
            Arrays by the names of the outputs.

        Raises:
            UsageError: inputs that are missing, unknown, or of another type or shape.
            GgschedError: what ``bind`` and ``Scheduler.run`` raise.

        Examples:
            >>> import numpy as np
            >>> from ggsched import Scheduler
            >>> with Scheduler(["cpu:0"], weights=model.weight) as scheduler:
            ...     model.run(scheduler, {"x": np.array([[-1, 1]], np.float32)})["y"].tolist()
            [[0.0, 1.0]]
        """
        arrays = {n: np.asarray(a) for n, a in inputs.items() if n not in self._constants}
        made = self.bind(shapes={n: a.shape for n, a in arrays.items()})
        unused = arrays.keys() - made.inputs.keys()
        given = {n: a for n, a in arrays.items() if n not in unused}
        return made.named(scheduler.run(made.graph, given))

    def _shapes(
        self, dims: dict[str, int], shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, tuple[int, ...]]:
        self._ports.check(shapes)
        for name, shape in shapes.items():
            port = self.inputs[name]
            self._ports.check_rank(name, shape)
            for said, n in zip(port.shape, shape, strict=True):
                wanted = dims.setdefault(said, int(n)) if isinstance(said, str) and said else said
                if wanted not in ("", n):
                    raise self._ports.misfit(name, shape)
        found = {}
        for name, port in self.inputs.items():
            if name in self._constants:
                continue
            given = shapes.get(name)
            shape = [dims.get(n, -1) if isinstance(n, str) else n for n in port.shape]
            full = tuple(given) if given is not None else tuple(shape)
            if any(n < 0 for n in full):
                raise self._ports.open(name, "name", "; on the command line: --dim NAME=N")
            found[name] = tuple(int(n) for n in full)
        return found

    def _make(self, shapes: Mapping[str, tuple[int, ...]]) -> BoundModel:
        emit = Emitter(self.name)
        given: dict[str, Value] = {}
        for name, port in self._all.by_name.items():
            if name in self._constants:
                array = np.asarray(self._constants[name], dtype_by_name(port.dtype).host)
                given[name] = Const(np.ascontiguousarray(array).reshape(array.shape))
            elif name in self.inputs:
                given[name] = emit.g.input(name, shapes[name], port.dtype)
        values = Walk(self._model, self._external, emit).graph(self._model.graph, given)
        if not values:
            raise ModelError("it has no outputs", where=self.name)
        tensors = own_results(emit, values)
        graph, weights = simplified(emit.g.build(*tensors), emit.weights)
        self._external.require_unchanged()  # constants have been folded
        inputs = {t.name: t for t in graph.roots(Role.INPUT)}
        return BoundModel(
            graph, weights, inputs, dict(zip(self.outputs, graph.outputs, strict=True))
        )


def from_onnx(
    source: "str | PathLike[str] | Any",
    dims: Mapping[str, int] | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
) -> OnnxModel:
    """Return the model in an ONNX file.

    Args:
        source: Path of the file, or an ``onnx.ModelProto``.
        dims: Extents by name, for those that the file leaves open.
        constants: Values of inputs that do not change, so that what depends on them is computed
            once and may determine shapes; also of inputs that have elements in the file.

    Raises:
        ModelError: not an ONNX model, one that is broken, or one with ops that are not supported;
            all of them are named.
        UsageError: the package ``onnx`` is missing, or an unknown input.
        OSError: the file cannot be read.

    Examples:
        >>> import numpy as np
        >>> from onnx import TensorProto, helper
        >>> from ggsched import Scheduler, from_onnx
        >>> kind = TensorProto.FLOAT
        >>> x, y = (helper.make_tensor_value_info(n, kind, ["rows", 2]) for n in "xy")
        >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "small", [x], [y])
        >>> model = from_onnx(helper.make_model(graph))
        >>> with Scheduler(["cpu:0"], weights=model.weight) as scheduler:
        ...     model.run(scheduler, {"x": np.array([[-1, 1]], np.float32)})["y"].tolist()
        [[0.0, 1.0]]
    """
    import_onnx()
    if isinstance(source, (str, PathLike)):
        path = Path(source)
        return OnnxModel(read_model(path), path.parent, dims or {}, constants or {})
    return OnnxModel(source, None, dims or {}, constants or {})


def _port(info: Any) -> Port:
    where = f"input {text(info.name)!r}"
    if not info.type.HasField("tensor_type"):
        raise ModelError("only tensors are supported", where=where)
    tensor = info.type.tensor_type
    shape: list[int | str] = []
    if not tensor.HasField("shape"):
        raise ModelError("its number of axes is open", where=where)
    for dim in tensor.shape.dim:
        name = text(dim.dim_param)
        name = "" if name in ("?", "None") else name  # several of them need not be equal
        is_known = dim.HasField("dim_value") and dim.dim_value >= 0
        shape.append(int(dim.dim_value) if is_known else name)
    return Port(info.name, name_of(tensor.elem_type, where), tuple(shape))
