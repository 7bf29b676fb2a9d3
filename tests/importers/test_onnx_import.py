"""What ``from_onnx`` makes of a file: graph, weights, names, shapes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ggsched
from ggsched.cli.main import main
from ggsched.errors import DeviceFault, ModelError, UsageError
from ggsched.files.mapping import file_behind
from ggsched.ir.tensor import Role
from ggsched.plan.codec import plan_to_json
from ggsched_import.onnx import page
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.sim import SimConfig, SimWorld
from tests.importers.onnx_files import BOOL, I64, F, model, node, tensor

PAGE = Path(__file__).parents[2] / "docs/reference/onnx.md"
RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 3)).astype(np.float32)


def test_initialisers_that_are_inputs_can_be_given():
    kind = TensorProto.FLOAT
    x, w, y = (helper.make_tensor_value_info(n, kind, [2]) for n in "xwy")
    own = numpy_helper.from_array(np.ones(2, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x, w], [y], [own])
    file, given = helper.make_model(graph), np.array([1, 2], np.float32)
    for constants, wanted in (({}, [2, 3]), ({"w": [5, 6]}, [6, 8])):
        made = ggsched.from_onnx(file, constants=constants)
        assert list(made.inputs) == ["x"]
        with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
            assert made.run(scheduler, {"x": given})["y"].tolist() == wanted
    with pytest.raises(UsageError, match=r"no input 'v'.*w f32\[2\]"):
        ggsched.from_onnx(file, constants={"v": 1})


def test_the_page_lists_the_ops():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page.filled(text), "python -m ggsched_import.onnx.page docs/reference/onnx.md"


def shaped():
    """Reshape by shape arithmetic: flattens all but the first axis, in several nodes."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "batch"),
        node("Unsqueeze", "batch axes", "b"),
        node("Concat", "b rest", "shape", axis=0),
        node("Reshape", "x shape", "flat"),
        node("MatMul", "flat w", "y"),
    ]
    weights = {
        "zero": np.array(0),
        "axes": np.array([0]),
        "rest": np.array([-1]),
        "w": W,
    }
    return model(nodes, [tensor("x", ["batch", 2, 2])], [tensor("y", ["batch", 3])], weights)


def test_shape_arithmetic_folds():
    made = ggsched.from_onnx(shaped(), dims={"batch": 5})
    assert [n.op for n in made.graph.nodes] == ["mul_mat"]
    (weight,) = made.weights.values()
    np.testing.assert_array_equal(weight, W.T)
    assert list(made.inputs) == ["x"]
    assert made.outputs == ("y",)
    assert str(made.inputs["x"]) == "x f32[batch, 2, 2]"


def test_one_model_runs_with_several_shapes():
    made = ggsched.from_onnx(shaped())
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        for batch in (1, 3, 1):
            x = RNG.standard_normal((batch, 2, 2)).astype(np.float32)
            y = made.run(scheduler, {"x": x})["y"]
            np.testing.assert_allclose(y, x.reshape(batch, 4) @ W, rtol=1e-5)
    assert made.bind(shapes={"x": (1, 2, 2)}) is made.bind({"batch": 1})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.graph, "is open"),
        (lambda m: m.bind(shapes={"z": (1,)}), "no input 'z'"),
        (lambda m: m.bind(shapes={"x": (1, 2)}), r"shape \[1, 2\] for x"),
        (lambda m: m.bind(shapes={"x": (1, 2, 3)}), r"shape \[1, 2, 3\] for x"),
        (lambda m: m.bind({"batch": 2}, shapes={"x": (1, 2, 2)}), "for x"),
    ],
)
def test_shapes_that_do_not_fit(call, words):
    with pytest.raises(UsageError, match=words):
        call(ggsched.from_onnx(shaped()))


def test_equal_folded_constants_are_one_weight_and_shapes_share_them():
    nodes = [
        node("Add", "c c", "d"),
        node("Add", "c c", "e"),
        node("Mul", "x d", "f"),
        node("Mul", "f e", "y"),
    ]
    c = {"c": np.full(2, 1.5, np.float32)}
    made = ggsched.from_onnx(model(nodes, [tensor("x", ["n", 2])], [tensor("y", None)], c))
    one, two = made.bind({"n": 1}), made.bind({"n": 2})
    assert len(one.weights) == 1
    assert set(one.weights) == set(two.weights)


def test_outputs_that_are_inputs_weights_or_twice_the_same():
    nodes = [node("Identity", "x", "a"), node("Identity", "w", "b"), node("Exp", "x", "c"),
             node("Identity", "c", "d")]  # fmt: skip
    outputs = [tensor(n, None) for n in "abcd"]
    made = ggsched.from_onnx(model(nodes, [tensor("x", [4, 3])], outputs, {"w": W}))
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        found = made.run(scheduler, {"x": 2 * W})
    for name, wanted in zip("abcd", (2 * W, W, np.exp(2 * W), np.exp(2 * W)), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


def branches():
    def branch(name, op):
        return helper.make_graph([node(op, "x", name)], name, [], [tensor(name, None)])

    choice = node("If", "c", "y", then_branch=branch("t", "Exp"), else_branch=branch("e", "Neg"))
    inputs = [tensor("x", [3]), tensor("c", [], onnx.TensorProto.BOOL)]
    return model([choice], inputs, [tensor("y", None)])


@pytest.mark.parametrize("taken", [False, True])
def test_if_takes_a_branch_if_it_is_known_and_chooses_otherwise(taken):
    x = np.array([1, 2, 3], np.float32)
    wanted = np.exp(x) if taken else -x
    known = ggsched.from_onnx(branches(), constants={"c": taken})
    assert [n.op for n in known.graph.nodes] == ["nd.exp" if taken else "nd.neg"]
    for made in (known, ggsched.from_onnx(branches())):
        with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
            found = made.run(scheduler, {"x": x, "c": np.array(taken)})
        np.testing.assert_allclose(found["y"], wanted, rtol=1e-6)


def graph(name, nodes, inputs=(), outputs=()):
    return helper.make_graph(nodes, name, list(inputs), [tensor(name, None), *outputs])


def in_a_loop(choice):
    """Return nodes that run a node in a branch of an equal condition, in a loop of one step."""
    negative = graph("n", [node("Neg", "x", "n")])
    outer = node("If", "c", "mid", then_branch=graph("y", [choice]), else_branch=negative)
    keeps_on = node("Identity", "go", "still")
    inputs = [tensor("i", [], I64), tensor("go", [], BOOL)]
    body = graph("still", [outer, keeps_on], inputs, [tensor("mid", None)])
    return [node("Loop", "one _", "steps", body=body), node("Squeeze", "steps first", "y")]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("index", ["far", "input"])
@pytest.mark.parametrize(
    ("op", "updates"),
    [("GatherElements", ""), ("GatherND", ""), ("ScatterElements", " x"), ("ScatterND", " x")],
)
def test_a_fault_of_the_branch_that_is_not_taken_is_none(op, updates, index, is_nested):
    then = graph("t", [node(op, f"x {index}{updates}", "t")])
    other = graph("e", [node("Neg", "x", "e")])
    choice = node("If", "c", "y", then_branch=then, else_branch=other)
    far = np.array([[7], [1], [0]])
    weights = {"far": far, "one": np.array(1), "first": np.array([0])}
    inputs = [tensor("x", [3, 1]), tensor("c", [], BOOL), tensor("input", [3, 1], I64)]
    nodes = in_a_loop(choice) if is_nested else [choice]
    made = ggsched.from_onnx(model(nodes, inputs, [tensor("y", None)], weights))
    values = {"x": np.array([[1], [2], [3]], np.float32), "c": np.array(False), "input": far}
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        np.testing.assert_array_equal(made.run(scheduler, values)["y"], -values["x"])
        with pytest.raises(DeviceFault):
            made.run(scheduler, {**values, "c": np.array(True)})


def test_functions_of_the_file_are_expanded():
    body = [node("Mul", "a a", "s"), helper.make_node("Elu", ["s"], ["r"])]
    body[1].attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    f = helper.make_function(
        "own", "squared", ["a"], ["r"], body, [helper.make_opsetid("", 18)], ["slope"]
    )
    call = helper.make_node("squared", ["x"], ["y"], domain="own", slope=0.5)
    made = ggsched.from_onnx(
        model([call], [tensor("x", [2])], [tensor("y", None)], functions=[f], domains=["own"])
    )
    ops = [(n.op, dict(n.params)) for n in made.graph.nodes]
    assert ops == [("mul", {}), ("nd.elu", {"alpha": 0.5})]


def mixed():
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f w", "m"),
        node("Softmax", "m", "y"),
        node("TopK", "m k1", "v i"),
    ]
    weights = {
        "k": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "w": W,
        "k1": np.array([2]),
    }
    outputs = [tensor("y", None), tensor("i", None, I64)]
    return model(nodes, [tensor("x", [2, 3, 5, 5])], outputs, weights)


def test_a_graph_is_split_over_devices_and_means_the_same():
    made = ggsched.from_onnx(mixed()).bind()
    x = RNG.standard_normal((2, 3, 5, 5)).astype(np.float32)
    wanted = run_oracle(made.graph, {"x": x, **made.weights})
    some = frozenset(f"nd.{op}:f32" for op in ("conv", "top_k", "reduce_mean"))
    world = SimWorld([SimConfig(ops=some), SimConfig()])
    devices = [world.open(0), world.open(1)]
    with ggsched.Scheduler(devices, weights=made.weights, placement="ggml") as scheduler:
        plan = scheduler.plan(made.graph)
        found = scheduler.run(made.graph, {"x": x})
    assert {c.device for c in plan.placement.choices} == {0, 1}
    for tid, value in wanted.items():
        np.testing.assert_allclose(found[tid], value, rtol=1e-5)


def test_inputs_weights_and_outputs_have_their_roles():
    made = ggsched.from_onnx(mixed()).bind()
    assert made.inputs["x"].role is Role.INPUT
    assert {t.name for t in made.graph.roots(Role.WEIGHT)} == set(made.weights)
    assert "k" in made.weights
    assert list(made.outputs) == ["y", "i"]


def test_weights_in_another_file_are_mapped(tmp_path):
    onnx.save_model(
        mixed(),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.bin",
        size_threshold=0,
    )
    made = ggsched.from_onnx(tmp_path / "m.onnx")
    file, _ = file_behind(made.weights["k"])
    assert file.path == str(tmp_path / "m.bin")


CUT_WHILE_OPEN = """
import os, sys
import numpy as np
import ggsched
from ggsched.errors import ModelError
path, when = sys.argv[1:]
model = ggsched.from_onnx(path)
if when == "before":
    model.bind()
    os.truncate(path + ".bin", 4096)
with ggsched.Scheduler(["cpu:0"], weights=model.weight) as s:
    for _ in range(2):
        try:
            model.run(s, {"x": np.zeros(1 << 16, np.float32)})
            print("ran")
        except ModelError as error:
            print(error.what)
        os.truncate(path + ".bin", 4096)
"""


@pytest.mark.parametrize("when", ["before", "between"])
def test_data_of_another_file_that_is_cut_short_is_named(tmp_path, when):
    """Reading the rest of the mapping ended the process by SIGBUS."""
    w = {"w": np.ones(1 << 16, np.float32)}
    made = model([node("Add", "x w", "y")], [tensor("x", [1 << 16])], [tensor("y", None)], w)
    path, file = tmp_path / "m.onnx", "m.onnx.bin"
    onnx.save_model(made, path, save_as_external_data=True, location=file, size_threshold=0)
    done = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_OPEN, str(path), when],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    *first, last = done.stdout.splitlines()
    assert last == "the file was truncated"
    assert first == (["the file was truncated"] if when == "before" else ["ran"])


@pytest.mark.parametrize(
    ("opset", "nodes"),
    [
        (9, [node("Upsample", "x scales", "y", mode="nearest")]),
        (10, [node("Resize", "x scales", "y", mode="nearest")]),
    ],
)
def test_older_op_sets_that_files_still_have(opset, nodes):
    weights = {"scales": np.array([1, 2], np.float32)}
    made = ggsched.from_onnx(
        model(nodes, [tensor("x", [1, 2])], [tensor("y", None)], weights, opset=opset)
    )
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        found = made.run(scheduler, {"x": np.array([[1, 2]], np.float32)})["y"]
    np.testing.assert_array_equal(found, [[1, 1, 2, 2]])


def test_softmax_before_op_set_13_joins_axes():
    nodes = [node("Softmax", "x", "y")]
    made = ggsched.from_onnx(model(nodes, [tensor("x", [2, 3, 4])], [tensor("y", None)], opset=11))
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    with ggsched.Scheduler(["cpu:0"]) as scheduler:
        found = made.run(scheduler, {"x": x})["y"]
    e = np.exp(x)
    np.testing.assert_allclose(found, e / e.sum((1, 2), keepdims=True), rtol=1e-5)


def test_an_op_that_is_not_supported_is_named():
    proto = model([node("Bernoulli2", "x", "y")], [tensor("x", [2])], [tensor("y", None)])
    with pytest.raises(ModelError, match="Bernoulli2 'y': the op 'Bernoulli2' is not supported"):
        ggsched.from_onnx(proto)


def test_what_depends_on_data_names_the_remedy():
    nodes = [node("Reshape", "x s", "y")]
    inputs = [tensor("x", [4], F), tensor("s", [2], I64)]
    proto = model(nodes, inputs, [tensor("y", None)])
    with pytest.raises(ModelError, match="input 1 must be a constant"):
        ggsched.from_onnx(proto).bind()
    known = ggsched.from_onnx(proto, constants={"s": [2, 2]})
    assert known.graph.tensors[known.bind().outputs["y"]].shape == (2, 2)


def test_scales_and_channels_go_into_the_convolution_before():
    k = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
    each = {n: RNG.uniform(0.5, 2, 4).astype(np.float32) for n in ("s", "b", "m", "v")}
    per = {"f": RNG.standard_normal((1, 4, 1, 1)).astype(np.float32)}
    numbers = {"two": np.float32(2), "one": np.float32(1)}
    nodes = [
        node("Conv", "x k", "c"),
        node("BatchNormalization", "c s b m v", "n"),
        node("Mul", "n f", "p"),
        node("Mul", "p two", "q"),
        node("Add", "q one", "r"),
        node("Mul", "r two", "t"),
        node("Relu", "t", "y"),
        node("Exp", "x", "unused"),
    ]
    proto = model(nodes, [tensor("x", [1, 3, 5, 5])], [tensor("y", None)],
                  {"k": k, **each, **per, **numbers})  # fmt: skip
    made = ggsched.from_onnx(proto)
    assert [n.op for n in made.graph.nodes] == ["nd.conv", "clamp"]
    assert len(made.weights) == 2
    x = RNG.standard_normal((1, 3, 5, 5)).astype(np.float32)
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        found = made.run(scheduler, {"x": x})["y"]
    from onnx.reference import ReferenceEvaluator

    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


GELU = [
    node("Pow", "x three", "c"),
    node("Mul", "c share", "d"),
    node("Add", "x d", "e"),
    node("Mul", "e root", "f"),
    node("Tanh", "f", "t"),
    node("Add", "t one", "u"),
    node("Mul", "x half", "h"),
]
ACTIVATIONS = {
    "silu": ([node("Sigmoid", "x", "s"), node("Mul", "x s", "y")], "silu"),
    "gelu": ([*GELU, node("Mul", "h u", "y")], "gelu"),
    "gelu halved at last": (
        [*GELU[:-1], node("Mul", "x u", "v"), node("Mul", "v half", "y")],
        "gelu",
    ),
    "gelu of no cube": (
        [node("Tanh", "x", "s"), node("Mul", "s x", "c"), *GELU[1:], node("Mul", "h u", "y")],
        "mul",
    ),
    "gelu of another cube": (
        [node("Mul", "x x", "s"), node("Mul", "s s", "c"), *GELU[1:], node("Mul", "h u", "y")],
        "mul",
    ),
    "hard_swish by hard_sigmoid": (
        [node("HardSigmoid", "x", "s", alpha=1 / 6, beta=0.5), node("Mul", "s x", "y")],
        "nd.hard_swish",
    ),
    "hard_swish by six": (
        [
            node("Add", "x three", "a"),
            node("Clip", "a zero six", "b"),
            node("Mul", "x b", "c"),
            node("Div", "c six", "y"),
        ],
        "nd.hard_swish",
    ),
    "another slope": (
        [node("HardSigmoid", "x", "s", alpha=0.2, beta=0.5), node("Mul", "s x", "y")],
        "mul",
    ),
    "another operand": ([node("Sigmoid", "x", "s"), node("Mul", "s three", "y")], "scale"),
}
"""Nodes, and the op of the last one that is made of them."""


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_that_are_spelled_out(name):
    nodes, op = ACTIVATIONS[name]
    numbers = {"three": 3, "zero": 0, "six": 6, "half": 0.5, "one": 1, "share": 0.044715}
    numbers = {n: np.float32(v) for n, v in {**numbers, "root": np.sqrt(2 / np.pi)}.items()}
    proto = model(nodes, [tensor("x", [2, 40])], [tensor("y", None)], numbers)
    made = ggsched.from_onnx(proto)
    assert made.graph.nodes[-1].op == op
    assert (len(made.graph.nodes) == 1) == (op in ("silu", "gelu", "nd.hard_swish"))
    x = 4 * RNG.standard_normal((2, 40)).astype(np.float32)
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        found = made.run(scheduler, {"x": x})["y"]
    from onnx.reference import ReferenceEvaluator

    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_an_activation_whose_parts_are_read_elsewhere_stays():
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "x s", "m"), node("Add", "m s", "y")]
    made = ggsched.from_onnx(model(nodes, [tensor("x", [4])], [tensor("y", None)], {}))
    assert [n.op for n in made.graph.nodes] == ["sigmoid", "mul", "add"]


def test_a_result_that_is_read_twice_is_computed_once():
    nodes = [
        node("Conv", "x k", "c"),
        node("Mul", "c two", "d"),
        node("Mul", "d two", "e"),
        node("Add", "d e", "f"),
        node("Add", "c f", "y"),
    ]
    weights = {"k": np.ones((1, 1, 1, 1), np.float32), "two": np.float32(2)}
    made = ggsched.from_onnx(
        model(nodes, [tensor("x", [1, 1, 2, 2])], [tensor("y", None)], weights)
    )
    assert [n.op for n in made.graph.nodes].count("nd.conv") == 1
    x = RNG.standard_normal((1, 1, 2, 2)).astype(np.float32)
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        np.testing.assert_allclose(made.run(scheduler, {"x": x})["y"], 7 * x, rtol=1e-6)


def test_a_plan_of_a_model_is_written_read_and_checked(tmp_path, capsys):
    made = ggsched.from_onnx(mixed()).bind()
    world = SimWorld([SimConfig(ops=frozenset({"nd.conv:f32"})), SimConfig()])
    with ggsched.Scheduler([world.open(0), world.open(1)], weights=made.weights) as scheduler:
        plan = scheduler.plan(made.graph)
    path = tmp_path / "plan.json"
    path.write_bytes(plan_to_json(plan))
    assert {n.version for n in plan.nodes if n.op.startswith("nd.")} == {"1"}
    assert main(["check", str(path)]) == 0
    path.write_bytes(path.read_bytes().replace(b"nd.conv", b"nd.wrap"))
    assert main(["check", str(path)]) == 2
    assert "nd.wrap" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "mode", "ops"),
    [
        ((1, 2, 6, 12), "asymmetric", ["nd.expand"]),
        ((1, 2, 6, 12), "half_pixel", ["nd.expand"]),
        ((1, 2, 4, 12), "half_pixel", ["nd.gather", "nd.expand"]),
        ((1, 2, 2, 3), "asymmetric", ["nd.gather", "nd.gather"]),
        ((2, 4, 6, 8), "asymmetric", ["nd.expand"]),
    ],
)
def test_whole_factors_repeat_elements(size, mode, ops):
    """An image of twice the size has each pixel four times; other factors take indices."""
    nodes = [
        node("Resize", "x _ _ size", "y", mode="nearest", coordinate_transformation_mode=mode,
             nearest_mode="round_prefer_floor" if mode == "half_pixel" else "floor")
    ]  # fmt: skip
    nodes[0].input[1] = nodes[0].input[2] = ""
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    made = ggsched.from_onnx(
        model(nodes, [tensor("x", x.shape)], [tensor("y", size)], {"size": np.array(size)})
    )
    assert [n.op for n in made.graph.nodes] == ops
    (found,) = run_oracle(made.graph, {"x": x, **made.weights}).values()
    for a, (old, new) in enumerate(zip(x.shape, size, strict=True)):
        places = np.arange(new) * old / new
        at = np.ceil((np.arange(new) + 0.5) * old / new - 1) if mode == "half_pixel" else places
        x = np.take(x, at.astype(int), a)
    np.testing.assert_array_equal(found, x)
