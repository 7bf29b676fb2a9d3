"""ONNX's own tests of its ops: which are run, and running one."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from ggsched import GgschedError, GraphBuilder, Scheduler, from_onnx
from ggsched.topology.caps import offers
from ggsched_import.onnx import BoundModel, OnnxModel

EXCLUDED = Path(__file__).with_name("onnx_excluded.txt")

TYPES = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13}
"""Numbers of the element types that ggsched has."""

RTOL, ATOL, HALF_ATOL = 1e-3, 1e-5, 2e-3
"""Those of ONNX's runner, and a unit of the last place of f16 results that two roundings make."""


def excluded() -> dict[str, str]:
    """Return the reason by pattern."""
    lines = [line for line in EXCLUDED.read_text().splitlines() if line and line[0] != "#"]
    return {pattern: why.strip() for pattern, _, why in (line.partition(" ") for line in lines)}


def covered(case: Any, patterns: Mapping[str, str]) -> bool:
    """Whether a test is one of those that must pass."""
    if any(fnmatch(case.name, pattern) for pattern in patterns):
        return False
    return all(kind in TYPES for kind in types(case.model.graph))


def types(graph: Any) -> Iterator[int]:
    """Yield the numbers of the element types of inputs, outputs and attributes; -1 for others."""
    for info in (*graph.input, *graph.output):
        yield info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else -1
    for node in graph.node:
        for a in node.attribute:
            if node.op_type == "Cast" and a.name == "to":
                yield a.i
            if a.HasField("t"):
                yield a.t.data_type
            if a.HasField("g"):
                yield from types(a.g)


def bound(case: Any, given: Mapping[str, np.ndarray]) -> tuple[OnnxModel, BoundModel]:
    """Return the graph; inputs that shapes depend on are constants."""
    small = {n: a for n, a in given.items() if a.dtype.kind in "iub" or a.size <= 64}
    first = next(iter(given), "")
    choices: list[dict[str, np.ndarray]] = [
        {},
        {n: a for n, a in small.items() if n != first or a.dtype.kind in "iub"},
        dict(given),
    ]
    for i, constants in enumerate(choices):
        try:
            model = from_onnx(case.model, constants=constants)
            shapes = {n: a.shape for n, a in given.items() if n not in constants}
            return model, model.bind(shapes=shapes)
        except GgschedError as error:
            if "constant" not in str(error) or i == len(choices) - 1:
                raise
    raise AssertionError


def check(case: Any, devices: Any, shared: Scheduler) -> BoundModel:
    """Run a test and compare its results."""
    for inputs, outputs in case.data_sets:
        named = [i.name for i in case.model.graph.input]
        known = {t.name for t in case.model.graph.initializer}
        names = [n for n in named if n not in known]
        given = {n: array(x) for n, x in zip(names, inputs, strict=False)}
        model, made = bound(case, given)
        used = {n: given[n] for n in made.inputs}
        if made.weights:  # names of weights are those of one model
            with Scheduler(devices, weights=model.weight) as own:
                found = made.named(own.run(made.graph, used))
        else:
            found = made.named(shared.run(made.graph, used))
        for name, wanted in zip(model.outputs, outputs, strict=False):
            compare(found[name], array(wanted), case)
    return made


def compare(found: np.ndarray, wanted: np.ndarray, case: Any) -> None:
    assert found.dtype == wanted.dtype, f"{found.dtype} instead of {wanted.dtype}"
    assert found.shape == wanted.shape, f"{found.shape} instead of {wanted.shape}"
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
        return
    atol = HALF_ATOL if wanted.dtype == np.float16 else max(case.atol, ATOL)
    np.testing.assert_allclose(found, wanted, rtol=max(case.rtol, RTOL), atol=atol)


def array(value: Any) -> np.ndarray:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def keys_of(case):
    """Return ``op:dtype`` of each node of a case's graph."""
    initial = {t.name for t in case.model.graph.initializer}
    names = [i.name for i in case.model.graph.input if i.name not in initial]
    given = {n: array(x) for n, x in zip(names, case.data_sets[0][0], strict=False)}
    graph = bound(case, given)[1].graph
    return {(n.op, graph.tensors[n.inputs[0]].dtype.name) for n in graph.nodes}


def run(device, cases, wanted):
    """Run the wanted cases whose ops a device offers; return how many these are."""
    ops = device.facts.ops
    failed, count, seen = [], 0, set()
    with Scheduler([device], plan_limit=1) as shared:
        for case in cases:
            keys = keys_of(case)
            if not all(offers(ops, *key) for key in keys) or not wanted(keys, seen):
                continue
            seen |= keys
            count += 1
            try:
                check(case, [device], shared)
            except (GgschedError, AssertionError) as error:
                failed.append(f"{case.name}: {' '.join(str(error).split())[:200]}")
    assert not failed, "\n".join(failed)
    return count


def is_new(keys, seen):
    """Whether a case has an op that none before it has."""
    return any(op not in {s for s, _ in seen} for op, _ in keys)


FEW = (
    "test_add", "test_mod_mixed_sign_float32", "test_where_example", "test_cast_FLOAT_to_FLOAT16",
    "test_reduce_mean_keepdims_example", "test_conv_with_strides_padding",
    "test_maxpool_2d_ceil", "test_averagepool_2d_pads_count_include_pad",
    "test_gather_negative_indices", "test_slice_neg_steps", "test_concat_3d_axis_negative_1",
    "test_transpose_all_permutations_3",
)  # fmt: skip
"""One for each way in which kernels are made."""


def gather(device: Any, ids: list[int]) -> None:
    """Gather rows of a table of 5 by two ids."""
    g = GraphBuilder()
    graph = g.build(g.op("nd.gather", g.input("x", (5, 2)), g.input("i", (2,), "i64")))
    with Scheduler([device]) as scheduler:
        scheduler.run(graph, {"x": np.zeros((5, 2), np.float32), "i": np.array(ids)})
