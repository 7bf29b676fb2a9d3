"""Reads ``torch.export.ExportedProgram``: which ops stay whole, weights, names of outputs."""

from collections.abc import Iterator
from typing import Any, Final

from ggsched.errors import ModelError, UsageError
from ggsched_import.common.emit import Array, Const
from ggsched_import.torch.types import Complex, const_of

WHOLE: Final = (
    "gru.input", "layer_norm.default", "linear.default", "lstm.input", "matmul.default",
    "rnn_relu.input", "rnn_tanh.input", "scaled_dot_product_attention.default", "silu.default",
    "softplus.default", "hardswish.default", "hardsigmoid.default", "mish.default",
    "group_norm.default", "prelu.default", "upsample_nearest2d.vec", "upsample_bilinear2d.vec",
    "roll.default",
)  # fmt: skip
"""Ops outside core ATen that are converted as they are: sequences are not unrolled, weights not
transposed."""

_MUTATIONS: Final = {
    "BUFFER_MUTATION": "a buffer",
    "PARAMETER_MUTATION": "a parameter",
    "USER_INPUT_MUTATION": "an input",
}


def import_torch() -> Any:
    """Return the package ``torch``.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            "the package torch is missing", where="from_torch", hint="pip install 'ggsched[torch]'"
        ) from error
    return torch


def decomposed(program: Any) -> Any:
    """Return a program in core ATen and the ops that stay whole."""
    torch = import_torch()
    table = torch.export.default_decompositions()
    for op in whole_ops():
        table.pop(op, None)
    with torch.no_grad():
        return program.run_decompositions(table)


def whole_ops() -> Iterator[Any]:
    """Yield the overloads of ``WHOLE`` that this version has."""
    aten = import_torch().ops.aten
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        found = getattr(getattr(aten, packet, None), overload, None)
        if found is not None:
            yield found


def check_signature(program: Any) -> None:
    """Refuse what a graph without state cannot do.

    Raises:
        ModelError: a program that changes a buffer, a parameter or an input.
    """
    for spec in program.graph_signature.output_specs:
        what = _MUTATIONS.get(spec.kind.name)
        if what is not None:
            raise ModelError(
                f"the program changes {what}, {spec.target!r}",
                where="from_torch",
                why="graphs have no side effects",
                hint=(
                    "call model.eval() before the export, or return the new value as an output and"
                    " pass it back as an input"
                ),
            )
        if spec.kind.name not in ("USER_OUTPUT", "TOKEN"):  # those of checks, which are ops
            raise ModelError(f"outputs of kind {spec.kind.name} are not supported")


class Weights:
    """The weights of a program as constants; tensors that share memory are one."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._made: dict[tuple[object, ...], Const | Complex] = {}
        self.arrays: dict[str, Array] = {}

    def of(self, spec: Any) -> Any:
        """Return the constant of an input of the graph's signature."""
        kind, target = spec.kind.name, spec.target
        if kind == "TOKEN":  # orders checks, which are left out
            return None
        state = self._program.state_dict
        if kind == "PARAMETER" or (kind == "BUFFER" and target in state):
            tensor = state[target]
        elif kind in ("BUFFER", "CONSTANT_TENSOR"):
            tensor = self._program.constants[target]
        else:
            raise ModelError(f"inputs of kind {kind} are not supported", where=str(target))
        place: tuple[object, ...] = (
            tensor.data_ptr(),
            tuple(tensor.shape),
            tensor.stride(),
            str(tensor.dtype),
        )
        if not tensor.data_ptr():
            place = (target,)
        if place not in self._made:
            self._made[place] = const_of(tensor, target)
        return self._made[place]


def output_names(tree: Any, count: int) -> list[str]:
    """Return a name for each output: keys of dicts and data classes, places in tuples.

    Args:
        tree: The ``TreeSpec`` of the outputs.
        count: Number of outputs.
    """
    found = list(_paths(tree))
    if len(found) != count:
        found = [(i,) for i in range(count)]
    if found == [()]:
        return ["output"]
    lead = all(isinstance(p[0], int) for p in found)
    return [("output." if lead else "") + ".".join(map(str, p)) for p in found]


def _paths(tree: Any) -> Iterator[tuple[Any, ...]]:
    if not tree.num_children:
        if tree.type is None or tree.num_leaves:
            yield ()
        return
    keys: Any = tree.context
    if isinstance(keys, tuple) and len(keys) == 2 and isinstance(keys[1], list):
        keys = keys[1]  # an OrderedDict or a defaultdict
    is_named = isinstance(keys, (list, tuple)) and len(keys) == tree.num_children
    children = [tree.child(i) for i in range(tree.num_children)]
    for i, child in enumerate(children):
        for rest in _paths(child):
            yield (keys[i] if is_named else i, *rest)
