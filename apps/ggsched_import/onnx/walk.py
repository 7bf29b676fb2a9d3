"""Goes through the nodes of a file in order and converts each."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ggsched.errors import GgschedError, GraphError, ModelError
from ggsched.ir.tensor import Tensor
from ggsched_import.common.emit import Const, Emitter, Value, misfit, not_supported
from ggsched_import.onnx import (  # noqa: F401
    ops_contrib,
    ops_elements,
    ops_fourier,
    ops_layout,  # all register converters
    ops_ml,
    ops_products,
    ops_quantized,
    ops_reductions,
    resize,
)
from ggsched_import.onnx.call import CONVERTERS, Call
from ggsched_import.onnx.read import ExternalData, elements_of, import_onnx, text
from ggsched_import.onnx.types import code_of

MAX_DEPTH: Final = 32
"""Functions and graphs inside each other."""

MAX_STEPS: Final = 10_000
"""Steps of a loop, which is unrolled."""

CONTROL: Final = ("If", "Loop", "Scan")
"""Ops with graphs inside."""

_STANDARD: Final = ("", "ai.onnx")

_MISFITS: Final = (ValueError, IndexError, TypeError, KeyError, ArithmeticError, RuntimeError)
"""What converters, numpy and the package onnx raise of attributes and inputs that make no sense."""

Scope = dict[str, Value]


class Walk:
    """The conversion of one model.

    Args:
        model: The message.
        external: Files beside it.
        emit: Makes nodes.
    """

    def __init__(self, model: Any, external: ExternalData, emit: Emitter) -> None:
        self._onnx = import_onnx()
        self._external = external
        self.emit = emit
        self._opsets = {o.domain: int(o.version) for o in model.opset_import}
        self._functions = {(f.domain, f.name): f for f in model.functions}

    def graph(self, graph: Any, given: Mapping[str, Value], depth: int = 0) -> list[Value]:
        """Convert a graph and return its outputs.

        Args:
            graph: A ``GraphProto``.
            given: Values by name: inputs, and what surrounding graphs have.
            depth: How many graphs and functions surround it.

        Raises:
            ModelError: an op that is not supported, or a file that makes no sense.
        """
        scope = dict(given)
        if len(graph.sparse_initializer):
            raise ModelError("sparse tensors are not supported", where=graph.name)
        for tensor in graph.initializer:
            name = tensor.name if depth == 0 else ""
            if depth or tensor.name not in given:
                scope[tensor.name] = Const(elements_of(tensor, self._external), name)
        self._nodes(graph.node, scope, self._opsets, {}, depth)
        return [_found(scope, o.name, graph.name) for o in graph.output]

    def check_ops(self, graph: Any) -> None:
        """Refuse a model with ops that are not supported, and name all of them.

        Branches of ``If`` are left out: one with a known condition is never converted.

        Raises:
            ModelError: there are such ops.
        """
        found: list[tuple[str, str]] = []
        self._collect_missing(graph.node, self._opsets, found, set())
        if found:
            missing = Counter(name for name, _ in found)
            where = found[0][1] if len(missing) == 1 else graph.name
            raise not_supported(missing, where, "docs/reference/onnx.md lists the ops")

    def _collect_missing(
        self,
        nodes: Sequence[Any],
        opsets: Mapping[str, int],
        found: list[tuple[str, str]],
        seen: set[tuple[str, str]],
    ) -> None:
        for node in nodes:
            key, name = (node.domain, node.op_type), full_name(node)
            function = self._functions.get(key)
            if function is not None:
                if key not in seen:
                    seen.add(key)
                    here = {o.domain: int(o.version) for o in function.opset_import}
                    self._collect_missing(function.node, {**opsets, **here}, found, seen)
                continue
            if name in CONTROL and name != "If":
                for a in node.attribute:
                    self._collect_missing(a.g.node, opsets, found, seen)
            if name in CONTROL or name in CONVERTERS or self._has_function(node, opsets):
                continue
            found.append((name, _where(node, len(found))))

    def _has_function(self, node: Any, opsets: Mapping[str, int]) -> bool:
        domain = "" if node.domain in _STANDARD else node.domain
        opset = next((opsets[d] for d in (domain, "ai.onnx") if d in opsets), 1)
        try:
            schema = self._onnx.defs.get_schema(node.op_type, opset, domain)
        except self._onnx.defs.SchemaError:
            return False
        return bool(
            schema.function_opset_versions or schema.context_dependent_function_opset_versions
        )

    def _nodes(
        self,
        nodes: Sequence[Any],
        scope: Scope,
        opsets: Mapping[str, int],
        attrs: Mapping[str, Any],
        depth: int,
    ) -> None:
        if depth > MAX_DEPTH:
            raise ModelError(f"more than {MAX_DEPTH} functions or graphs inside each other")
        for i, node in enumerate(nodes):
            where = _where(node, i)
            inputs = tuple(_found(scope, n, where) if n else None for n in node.input)
            try:
                found = self._node(node, inputs, scope, opsets, attrs, depth, where)
            except ModelError:
                raise
            except GraphError as error:
                raise misfit(error, where) from error
            except GgschedError:
                raise
            except _MISFITS as error:
                why = f"{type(error).__name__}: {error}"
                raise ModelError(
                    "its inputs or attributes do not fit", where=where, why=why
                ) from error
            for name, value in zip(node.output, found, strict=False):
                if name and value is not None:
                    scope[name] = value

    def _node(
        self,
        node: Any,
        inputs: tuple[Value | None, ...],
        scope: Scope,
        opsets: Mapping[str, int],
        outer: Mapping[str, Any],
        depth: int,
        where: str,
    ) -> Sequence[Value | None]:
        self.emit.count()
        opset = _opset(opsets, node.domain, where)
        attrs = self._attributes(node.attribute, outer, where)
        key = (node.domain, node.op_type)
        outputs = max((i + 1 for i, n in enumerate(node.output) if n), default=0)
        if key in self._functions:
            return self._function(self._functions[key], inputs, attrs, opsets, depth)
        name = full_name(node)
        call = Call(node.op_type, opset, inputs, attrs, outputs, where, self.emit)
        if name in CONTROL:
            return self._control(call, scope, depth)
        convert = CONVERTERS.get(name)
        if convert is not None:
            found = convert(call)
            return (found,) if isinstance(found, (Const, Tensor)) else found
        return self._by_schema(node, inputs, attrs, opsets, depth, where)

    def _attributes(
        self, attributes: Sequence[Any], outer: Mapping[str, Any], where: str
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        helper = self._onnx.helper
        for a in attributes:
            if a.ref_attr_name:
                if a.ref_attr_name in outer:
                    found[a.name] = outer[a.ref_attr_name]
                continue
            try:
                value = helper.get_attribute_value(a)
            except ValueError as error:
                raise ModelError(f"attribute {a.name!r}", where=where, why=str(error)) from error
            if isinstance(value, self._onnx.TensorProto):
                value = elements_of(value, self._external)
            elif isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            elif not isinstance(value, (int, float, str, self._onnx.GraphProto)):
                value = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]
            found[a.name] = value
        return found

    def _function(
        self,
        function: Any,
        inputs: tuple[Value | None, ...],
        attrs: Mapping[str, Any],
        opsets: Mapping[str, int],
        depth: int,
    ) -> Sequence[Value | None]:
        where = f"function {function.name!r}"
        scope = {n: v for n, v in zip(function.input, inputs, strict=False) if v is not None}
        defaults = self._attributes(function.attribute_proto, {}, where)
        here = {**opsets, **{o.domain: int(o.version) for o in function.opset_import}}
        missing = _Optional(scope, set(function.input))
        self._nodes(function.node, missing, here, {**defaults, **attrs}, depth + 1)
        return [missing.get(n) for n in function.output]

    def _by_schema(
        self,
        node: Any,
        inputs: tuple[Value | None, ...],
        attrs: Mapping[str, Any],
        opsets: Mapping[str, int],
        depth: int,
        where: str,
    ) -> Sequence[Value | None]:
        """Convert an op by the function that the standard defines it by."""
        opset = _opset(opsets, node.domain, where)
        domain = "" if node.domain in _STANDARD else node.domain
        unsupported = ModelError(
            f"the op {node.op_type!r} is not supported",
            where=where,
            why=f"domain {domain!r}, version {opset}",
            hint="docs/reference/onnx.md lists the ops",
        )
        try:
            schema = self._onnx.defs.get_schema(node.op_type, opset, domain)
        except self._onnx.defs.SchemaError as error:
            raise unsupported from error
        body = self._body_of(schema, opset, node, attrs, inputs)
        if not body:
            raise unsupported
        function = self._onnx.FunctionProto()
        function.ParseFromString(body)
        defaults = [a.default_value for a in schema.attributes.values() if a.default_value.type]
        known = {**self._attributes(defaults, {}, where), **attrs}
        return self._function(function, inputs, known, opsets, depth)

    def _body_of(
        self,
        schema: Any,
        opset: int,
        node: Any,
        attrs: Mapping[str, Any],
        inputs: tuple[Value | None, ...],
    ) -> bytes | None:
        """Return the function of an op, of the latest version that is not later than the file's."""
        plain = _latest(schema.function_opset_versions, opset)
        if plain is not None:
            return schema.get_function_with_opset_version(plain)  # type: ignore[no-any-return]
        depends = _latest(schema.context_dependent_function_opset_versions, opset)
        if depends is None:
            return None
        types = [self._type(v) for v in inputs]
        resolved = self._onnx.NodeProto()
        resolved.CopyFrom(node)
        del resolved.attribute[:]
        for a in node.attribute:
            if not a.ref_attr_name:
                resolved.attribute.append(a)
            elif a.name in attrs:
                made = self._onnx.helper.make_attribute(a.name, attrs[a.name])
                resolved.attribute.append(made)
        return schema.get_context_dependent_function_with_opset_version(  # type: ignore[no-any-return]
            depends, resolved.SerializeToString(), types
        )

    def _type(self, value: Value | None) -> bytes:
        kind = self._onnx.TypeProto()
        if value is not None:
            kind.tensor_type.elem_type = code_of(value.dtype)
            kind.tensor_type.shape.SetInParent()
            for n in value.shape:
                kind.tensor_type.shape.dim.add().dim_value = n
        return bytes(kind.SerializeToString())

    # --- control flow: what is known before is unrolled -----------------------------------------

    def _control(self, c: Call, scope: Scope, depth: int) -> Sequence[Value]:
        if c.op == "If":
            return self._if(c, scope, depth)
        return self._loop(c, scope, depth) if c.op == "Loop" else self._scan(c, scope, depth)

    def _if(self, c: Call, scope: Scope, depth: int) -> Sequence[Value]:
        then, other = (self._body(c, n) for n in ("then_branch", "else_branch"))
        return self.emit.choose(
            c.x(),
            lambda: self.graph(then, scope, depth + 1),
            lambda: self.graph(other, scope, depth + 1),
            c.where,
        )

    def _loop(self, c: Call, scope: Scope, depth: int) -> Sequence[Value]:
        body = self._body(c, "body")
        limit = int(c.const(0).reshape(-1)[0]) if c.has(0) else MAX_STEPS + 1
        goes_on = bool(c.const(1).reshape(-1)[0]) if c.has(1) else True
        carried = [c.x(i) for i in range(2, len(c.inputs))]
        names = [i.name for i in body.input]
        if len(names) != 2 + len(carried) or len(body.output) < 1 + len(carried):
            raise c.bad("its body has other inputs or outputs")
        scans: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
        step = 0
        while goes_on and step < limit:
            if step >= MAX_STEPS:
                raise c.bad(f"more than {MAX_STEPS:,} steps")
            first: list[Value] = [_integer(step), _boolean(goes_on)]
            inner = {**scope, **dict(zip(names, [*first, *carried], strict=True))}
            condition, *rest = self.graph(body, inner, depth + 1)
            if not isinstance(condition, Const):
                raise c.bad("when it ends must not depend on inputs of the model")
            goes_on = bool(condition.array.reshape(-1)[0])
            carried = rest[: len(carried)]
            for collected, value in zip(scans, rest[len(carried) :], strict=True):
                collected.append(value)
            step += 1
        return [*carried, *(self._stacked(c, s) for s in scans)]

    def _scan(self, c: Call, scope: Scope, depth: int) -> Sequence[Value]:
        body, count = self._body(c, "body"), c.need("num_scan_inputs", int)
        states = [c.x(i) for i in range(len(c.inputs) - count)]
        scanned = [c.x(i) for i in range(len(states), len(c.inputs))]
        if any(c.attrs.get(n) for n in ("scan_input_axes", "scan_output_axes")):
            raise c.bad("axes other than the first are not supported")
        flips = tuple(c.attr("scan_input_directions", (0,) * count))
        backs = tuple(c.attr("scan_output_directions", ()))
        steps = scanned[0].shape[0] if scanned and scanned[0].shape else 0
        if steps > MAX_STEPS or c.opset < 9:
            raise c.bad(f"more than {MAX_STEPS:,} steps, or op set 8")
        names = [i.name for i in body.input]
        scans: list[list[Value]] = [[] for _ in range(len(body.output) - len(states))]
        for step in range(steps):
            parts = []
            for x, flip in zip(scanned, flips, strict=True):
                at = _integer(steps - 1 - step if flip else step)
                parts.append(self.emit.op("gather", x, at, axis=0))
            inner = {**scope, **dict(zip(names, [*states, *parts], strict=True))}
            found = self.graph(body, inner, depth + 1)
            for collected, value in zip(scans, found[len(states) :], strict=True):
                collected.append(value)
            states = found[: len(states)]
        for i, back in enumerate(backs):
            if back:
                scans[i].reverse()
        return [*states, *(self._stacked(c, s) for s in scans)]

    def _stacked(self, c: Call, values: list[Value]) -> Value:
        if not values:
            raise c.bad("a loop without steps collects nothing")
        rows = [self.emit.reshape(v, (1, *v.shape)) for v in values]
        return rows[0] if len(rows) == 1 else self.emit.op("concat", *rows, axis=0)

    def _body(self, c: Call, name: str) -> Any:
        return c.need(name, self._onnx.GraphProto)


class _Optional(Scope):
    """The scope of a function, in which inputs that were left out are absent."""

    def __init__(self, values: Mapping[str, Value], optional: set[str]) -> None:
        super().__init__(values)
        self.optional = optional


def _where(node: Any, i: int) -> str:
    """Return what a message calls a node: its op, and its name, output or number."""
    return f"{node.op_type} {(node.name or node.output[0] if node.output else i)!r}"


def full_name(node: Any) -> str:
    """Return the name by which an op's converter is registered."""
    name, domain = text(node.op_type), text(node.domain)
    return name if domain in _STANDARD else f"{domain}.{name}"


def _found(scope: Scope, name: str, where: str) -> Any:
    try:
        return scope[name]
    except KeyError:
        if isinstance(scope, _Optional) and name in scope.optional:
            return None
        raise ModelError(
            f"{name!r} is used before it is made", where=where, why="nodes must be in order"
        ) from None


def _opset(opsets: Mapping[str, int], domain: str, where: str) -> int:
    names: Iterator[str] = iter(_STANDARD if domain in _STANDARD else (domain,))
    for name in names:
        if name in opsets:
            return opsets[name]
    raise ModelError(f"no version of the op set {domain!r} is imported", where=where)


def _latest(versions: Sequence[int], opset: int) -> int | None:
    before = [v for v in versions if v <= opset]
    return max(before) if before else min(versions, default=None)


def _integer(value: int) -> Const:
    return Const(np.array(value, np.int64))


def _boolean(value: bool) -> Const:
    return Const(np.array(value, bool))
