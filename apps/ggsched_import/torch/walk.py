"""Goes through the nodes of an ``torch.fx`` graph in order and converts each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, Final

from ggsched.errors import GgschedError, ModelError
from ggsched.ir.tensor import Tensor
from ggsched.ir.user_ops import user_ops
from ggsched_import.common.emit import Const, Emitter, Value, not_supported
from ggsched_import.common.fourier import parts_of
from ggsched_import.torch import (  # noqa: F401
    ops_complex,
    ops_elements,  # all register converters
    ops_indexing,
    ops_layout,
    ops_linalg,
    ops_order,
    ops_products,
    ops_reductions,
    ops_regions,
    ops_special,
)
from ggsched_import.torch.call import CONVERTERS, OF_COMPLEX, Layout, Results, convert, plain
from ggsched_import.torch.higher_order import HIGHER, IGNORED, MODES
from ggsched_import.torch.types import COMPLEX, PART, Complex, array_of, constant, name_of

MAX_DEPTH: Final = 32
"""Graphs inside each other."""

_NUMBERS: Final = ("_operator", "math", "torch", "torch.fx.experimental.sym_node")
_DROPPED: Final = ("device", "layout", "memory_format", "Generator")


class Walk:
    """The conversion of one program.

    Args:
        emit: Makes nodes.
    """

    def __init__(self, emit: Emitter) -> None:
        self.emit = emit

    def graph(self, module: Any, given: Iterable[Any], depth: int = 0) -> list[Any]:
        """Convert a graph and return its outputs: values, numbers, None.

        Args:
            module: A ``torch.fx.GraphModule``.
            given: Values of its placeholders in order.
            depth: How many graphs surround it.

        Raises:
            ModelError: an op that is not supported, or arguments that do not fit.
        """
        if depth > MAX_DEPTH:
            raise ModelError(f"more than {MAX_DEPTH} graphs inside each other")
        known: dict[Any, Any] = {}
        inputs = iter(given)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(inputs)
            elif node.op == "get_attr":
                known[node] = self._attribute(module, node)
            elif node.op == "output":
                found = _mapped(node.args[0], known)
                return list(found) if isinstance(found, (list, tuple)) else [found]
            else:
                known[node] = self._node(node, known, depth)
        raise ModelError("the graph has no output", where=type(module).__name__)

    def _attribute(self, module: Any, node: Any) -> Any:
        found = module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if not hasattr(found, "dtype"):
            return found
        return constant(array_of(found, node.name), found.dtype)

    def _node(self, node: Any, known: Mapping[Any, Any], depth: int) -> Results:
        self.emit.count()
        target = str(node.target)
        where = _where(node, target)
        if node.op != "call_function":
            raise ModelError(f"{node.op} is not supported", where=where, hint="use torch.export")
        args, kwargs = _mapped(node.args, known), _mapped(node.kwargs, known)
        name = getattr(node.target, "__name__", "")
        module = getattr(node.target, "__module__", "") or ""
        if name == "getitem" and module == "_operator":
            return args[0][args[1]]
        if plain(target).partition(".")[0] in IGNORED:
            return None
        if plain(target) in ("sym_size.int", "sym_numel.default", "sym_numel"):
            shape = args[0].shape
            return shape[args[1]] if len(args) > 1 else prod(shape)
        if module in _NUMBERS and not _has_values((args, kwargs)):
            return node.target(*args, **kwargs)
        higher = HIGHER.get(_name_of(node))
        if higher is not None:
            run = partial(self.graph, depth=depth + 1)
            return higher(self.emit, run, args, where)
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            raise ModelError(
                f"{target} changes its operand",
                where=where,
                hint="ExportedProgram.run_decompositions makes programs functional",
            )
        used = _used(node) if _is_several(node) else None
        schema = getattr(node.target, "_schema", None)
        names = [a.name for a in schema.arguments] if schema is not None else []
        layout = _layout(node.args[0]) if "as_strided" in target else None
        return convert(target, self.emit, where, args, dict(kwargs), used, names, layout)


def _where(node: Any, target: str) -> str:
    """Return what a message calls a node: its name, op, and module of the model."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(v[0]) for v in stack.values() if isinstance(v, tuple)]
    inside = f" in {paths[-1]}" if paths and paths[-1] else ""
    return f"node {node.name!r} ({target}{inside})"


def _mapped(value: Any, known: Mapping[Any, Any]) -> Any:
    """Return arguments of a node with values for nodes, names for types, None for devices."""
    kind = type(value).__name__
    if kind == "Node":
        return known[value]
    if isinstance(value, (list, tuple)):
        found = [_mapped(v, known) for v in value]
        return tuple(found) if isinstance(value, tuple) else found
    if isinstance(value, dict):
        return {k: _mapped(v, known) for k, v in value.items()}
    if kind == "dtype":
        return name_of(value)
    return None if kind in _DROPPED else value


def _has_values(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_has_values, value))
    return isinstance(value, (Const, Tensor, Complex))


def _layout(node: Any) -> Layout | None:
    """Return where the tensor of a node lay in memory when it was traced."""
    value = getattr(node, "meta", {}).get("val")
    if value is None:
        return None
    extents, strides = (tuple(map(_traced, v)) for v in (value.shape, value.stride()))
    return Layout(extents, strides, _traced(value.storage_offset()))


def _traced(n: Any) -> int:
    """Return an extent, or what a symbol stood for when the program was traced.

    Raises:
        ModelError: it depends on data.
    """
    hint = n if isinstance(n, int) else n.node.hint
    if hint is None:
        raise ModelError(f"the extent {n} depends on data")
    return int(hint)


def _is_several(node: Any) -> bool:
    return bool(node.users) and all(
        getattr(u.target, "__name__", "") == "getitem" for u in node.users
    )


def _used(node: Any) -> frozenset[int]:
    return frozenset(int(u.args[1]) for u in node.users if u.users)


def is_supported(node: Any) -> bool:
    """Whether a node that calls a function has a converter, or is evaluated at once."""
    table = OF_COMPLEX if _is_complex(node) else CONVERTERS
    name = plain(str(node.target))
    base = name.rpartition(".")[0]
    module = getattr(node.target, "__module__", "") or ""
    return (
        name in table
        or base in table
        or base in IGNORED
        or base in ("sym_size", "sym_numel")
        or module in _NUMBERS
        or takes_graphs(node)
        or (name.count(".") > 1 and base.rpartition(".")[2] in {op.name for op in user_ops()})
    )


def is_convertible(node: Any) -> bool:
    """Whether a node can be converted alone, as far as the traced shapes and types say."""
    if node.op != "call_function" or not is_supported(node):
        return False
    if getattr(node.target, "__name__", "") == "getitem":
        return True
    emit, known = Emitter("trial"), {}
    try:
        walk = Walk(emit)
        for given in node.all_input_nodes:
            is_own = given.op == "get_attr"
            module = given.graph.owning_module
            known[given] = walk._attribute(module, given) if is_own else _stand_in(emit, given)
        walk._node(node, known, 0)
    except GgschedError:
        return False
    return True


def given_input(
    emit: Emitter, name: str, shape: tuple[int, ...], kind: str
) -> tuple[Value | Complex, Tensor]:
    """Return the value of an input, and its tensor: complex ones are pairs along a last axis."""
    if kind not in PART:
        tensor = emit.g.input(name, shape, kind)
        return tensor, tensor
    tensor = emit.g.input(name, (*shape, 2), PART[kind])
    real, imag = parts_of(emit, tensor)
    assert imag is not None  # of two parts
    return Complex(real, imag), tensor


def _is_complex(node: Any) -> bool:
    """Whether a node has complex operands, or makes complex numbers by a ``dtype``."""
    given = [getattr(n.meta.get("val"), "dtype", None) for n in node.all_input_nodes]
    numbers = [a for a in node.args if isinstance(a, complex)]
    return bool(numbers) or any(str(kind) in COMPLEX for kind in (*given, node.kwargs.get("dtype")))


def takes_graphs(node: Any) -> bool:
    """Whether a node that calls a function has graphs among its operands."""
    return _name_of(node) in HIGHER


def _name_of(node: Any) -> str:
    return getattr(node.target, "__name__", "") or str(node.target)


def _stand_in(emit: Emitter, node: Any) -> Any:
    """Return a value of the type and shape that a node had when it was traced."""
    value = node.meta.get("val")
    if hasattr(value, "dtype"):
        shape = tuple(map(_traced, value.shape))
        return given_input(emit, node.name, shape, name_of(value.dtype))[0]
    return _traced(value) if hasattr(value, "node") else value


def check_ops(module: Any) -> None:
    """Refuse a graph with ops that are not supported, and name all of them.

    Branches of ``cond`` are left out: one with a known condition is never converted.

    Args:
        module: A ``torch.fx.GraphModule``.

    Raises:
        ModelError: there are such ops.
    """
    nodes = [node for node in _calls(module) if not is_supported(node)]
    missing = Counter(
        f"{node.target}{' on complex numbers' if _is_complex(node) else ''}" for node in nodes
    )
    if missing:
        where = _where(nodes[0], str(nodes[0].target))
        raise not_supported(
            missing,
            where if len(missing) == 1 else type(module).__name__,
            "give each a converter with ggsched_import.torch.converts; if no op computes the"
            " same, define one with ggsched.register_op",
        )


def _calls(module: Any) -> Iterator[Any]:
    """Yield the nodes that call functions, also of graphs that are always run."""
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        yield node
        if getattr(node.target, "__name__", "") in MODES:
            for a in node.args:
                inner = getattr(module, str(a.target), None) if hasattr(a, "target") else None
                if hasattr(inner, "graph"):
                    yield from _calls(inner)


def supported() -> list[str]:
    """Return the names of the ops that have converters."""
    return sorted({*CONVERTERS, "sym_size.int", "sym_numel"})


__all__ = ["Value", "Walk", "supported"]
