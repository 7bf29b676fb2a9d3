"""The backend of ``torch.compile``: ``torch.compile(module, backend="ggsched")``. Experimental.

The forward graph that AOTAutograd makes is planned and run by ggsched; a backward graph, and nodes
that cannot be converted, are left to PyTorch. Parameters and buffers, whose memory stays where it
is, become weights. When one has been changed in place, the weights are loaded again.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ggsched.errors import UsageError
from ggsched_import.common.emit import Array, Emitter
from ggsched_import.torch.export import import_torch, whole_ops
from ggsched_import.torch.model import BoundProgram, bound_program
from ggsched_import.torch.types import array_of, constant, name_of
from ggsched_import.torch.walk import Walk, check_ops, given_input, is_convertible, takes_graphs

if TYPE_CHECKING:
    from ggsched.scheduler import Scheduler

_OPTIONS: Final = ("devices", "placement", "settings")
_PARTIAL: Final = "partial"
_COMPILED: "Final[weakref.WeakSet[Compiled]]" = weakref.WeakSet()


def backend(
    module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo.

    Args:
        module: A ``torch.fx.GraphModule``.
        inputs: Examples of its inputs.
        options: ``devices``, ``placement`` and ``settings`` of the ``Scheduler``; the device
            ``cpu:0`` where none are given. With ``partial=False`` an op that is not supported is an
            error; otherwise PyTorch computes it.

    Raises:
        ModelError: an op that is not supported, if not ``partial``; TorchDynamo wraps it.
        UsageError: unknown options, or the package ``torch`` is missing.
    """
    import_torch()
    from torch._decomp import core_aten_decompositions
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    given = dict(options or {})
    is_partial = bool(given.pop(_PARTIAL, True))
    for name in given:
        if name not in _OPTIONS:
            raise UsageError(
                f"no option {name!r}",
                where="torch.compile",
                hint=f"options: {', '.join((*_OPTIONS, _PARTIAL))}",
            )

    def forward(graph: Any, _inputs: Sequence[Any]) -> Any:
        make = partitioned if is_partial else Compiled
        return make_boxed_func(make(graph, static_inputs(), given))

    def backward(graph: Any, _inputs: Sequence[Any]) -> Any:
        return make_boxed_func(graph.forward)

    table = dict(core_aten_decompositions())
    for op in whole_ops():
        table.pop(op, None)
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=forward,
        decompositions=table,
    )
    found: Callable[..., Any] = compiler(module, inputs)
    return found


def release() -> None:
    """Close the devices of all compiled graphs. Those that are called again open theirs again."""
    for compiled in list(_COMPILED):
        compiled.close()


def static_inputs() -> frozenset[int]:
    """Return which inputs of the graph that is being compiled are parameters and buffers."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def partitioned(
    graph: Any, static: frozenset[int], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function that runs a graph: what can be converted by ggsched, the rest by PyTorch.

    Args:
        graph: A ``torch.fx.GraphModule`` of ATen ops.
        static: Which inputs are weights.
        options: Of the ``Scheduler``.
    """
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import create_op_support

    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    able = {node.name for node in calls if is_convertible(node)}
    if len(able) == len(calls):
        return Compiled(graph, static, options)
    # The partitioner does not move graphs that are operands.
    able -= {node.name for node in calls if takes_graphs(node)}
    support = create_op_support(lambda _modules, node: node.name in able)
    found = CapabilityBasedPartitioner(graph, support, allows_single_node_partition=True)
    whole = found.fuse_partitions(found.propose_partitions())
    weights = {
        node
        for i, node in enumerate(n for n in whole.graph.nodes if n.op == "placeholder")
        if i in static
    }
    for node in whole.graph.nodes:
        if node.op == "call_module":
            part = getattr(whole, node.target)
            own = frozenset(i for i, a in enumerate(node.args) if a in weights)
            delattr(whole, node.target)
            setattr(whole, node.target, _as_called(Compiled(part, own, options), part))
    run: Callable[..., Any] = whole.forward
    return run


def _as_called(compiled: "Compiled", part: Any) -> Callable[..., Any]:
    """Return a function with the results of a part: one, or several in a list."""
    output = next(n for n in part.graph.nodes if n.op == "output")
    if isinstance(output.args[0], (list, tuple)):
        return compiled
    return lambda *args: compiled(*args)[0]


class Compiled:
    """A graph that is planned for each shape of its inputs.

    Args:
        graph: A ``torch.fx.GraphModule`` of ATen ops.
        static: Which inputs are weights.
        options: Of the ``Scheduler``.

    Raises:
        ModelError: an op that is not supported.
    """

    def __init__(self, graph: Any, static: frozenset[int], options: Mapping[str, Any]) -> None:
        self._graph, self._static = graph, static
        self._options = {"devices": ["cpu:0"], **options}
        self._bound: dict[tuple[object, ...], BoundProgram] = {}
        self._weights: dict[str, Array] = {}
        self._scheduler: Scheduler | None = None
        self._state: tuple[object, ...] = ()
        self._dtypes = _output_types(graph)
        _COMPILED.add(self)
        check_ops(graph)

    def __call__(self, *args: Any) -> list[Any]:
        """Run the graph.

        Raises:
            GgschedError: what binding, planning and the run raise.
        """
        from ggsched.scheduler import Scheduler

        state = tuple((args[i].data_ptr(), args[i]._version) for i in sorted(self._static))
        if self._scheduler is None or state != self._state:
            self.close()
            self._state = state
            self._scheduler = Scheduler(weights=self._weights.__getitem__, **self._options)
            self._finalizer = weakref.finalize(self, self._scheduler.close)
        key = tuple(
            (tuple(a.shape), a.dtype) if hasattr(a, "dtype") else a
            for i, a in enumerate(args)
            if i not in self._static
        )
        if key not in self._bound:
            self._bound[key] = self._make(args)
        bound = self._bound[key]
        arrays = {n: array_of(args[int(n[3:])], n) for n in bound.inputs}
        found = bound.named(self._scheduler.run(bound.graph, arrays))
        return [_tensor(v, kind) for v, kind in zip(found.values(), self._dtypes, strict=True)]

    def close(self) -> None:
        """Release what runs have made."""
        self._bound.clear()
        self._weights.clear()
        if self._scheduler is not None:
            self._finalizer()
            self._scheduler = None

    def _make(self, args: Sequence[Any]) -> BoundProgram:
        emit = Emitter("compiled")
        given: list[Any] = []
        inputs = {}
        for i, a in enumerate(args):
            name = f"arg{i}"
            if not hasattr(a, "dtype"):
                given.append(a)
            elif i in self._static:
                given.append(constant(array_of(a, name), a.dtype, name))
            else:
                kind = name_of(a.dtype, name)
                value, inputs[name] = given_input(emit, name, tuple(a.shape), kind)
                given.append(value)
        values = Walk(emit).graph(self._graph, given)
        bound = bound_program(emit, inputs, [str(i) for i in range(len(values))], values)
        self._weights.update(bound.weights)
        return bound


def _output_types(graph: Any) -> list[Any]:
    output = next(n for n in graph.graph.nodes if n.op == "output")
    found = output.args[0]
    values = found if isinstance(found, (list, tuple)) else [found]
    return [getattr(getattr(v, "meta", {}).get("val"), "dtype", None) for v in values]


def _tensor(value: Any, kind: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    tensor = import_torch().from_numpy(value)
    return tensor if kind is None else tensor.to(kind)
