"""Ops of ``ai.onnx.ml`` against the reference implementation of the package onnx."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ggsched import Scheduler, from_onnx
from ggsched.errors import ModelError

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(1)


def model_of(op, x, kinds, **attrs):
    outputs = [helper.make_tensor_value_info(f"y{i}", k, None) for i, k in enumerate(kinds)]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(op, ["x"], [o.name for o in outputs], domain=DOMAIN, **attrs)
    given = [helper.make_tensor_value_info("x", kind, x.shape)]
    graph = helper.make_graph([node], "one", given, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def compare(op, x, kinds=(TensorProto.FLOAT,), **attrs):
    made = model_of(op, x, kinds, **attrs)
    wanted = ReferenceEvaluator(made).run(None, {"x": x})
    model = from_onnx(made)
    with Scheduler(["cpu:0"], weights=model.weight) as scheduler:
        found = model.run(scheduler, {"x": x})
    for a, b in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def trees(count, depth, features, *, modes=("BRANCH_LEQ",), kind="target", ids=1, sign=1):
    """Return attributes of random trees: nodes beyond the first levels are leaves by chance."""
    made = {n: [] for n in ("treeids", "nodeids", "truenodeids", "falsenodeids", "featureids",
                            "modes", "values", "missing_value_tracks_true")}  # fmt: skip
    leaves = {n: [] for n in ("treeids", "nodeids", "ids", "weights")}

    def add(tree, node, level, free):
        is_leaf = level == depth or (level > 1 and RNG.random() < 0.3)
        then, other = (0, 0) if is_leaf else (free, free + 1)
        row = (tree, node, then, other, int(RNG.integers(features)),
               "LEAF" if is_leaf else str(RNG.choice(modes)),
               round(float(RNG.standard_normal()), 1), int(RNG.integers(2)))  # fmt: skip
        for values, value in zip(made.values(), row, strict=True):
            values.append(value)
        free += 0 if is_leaf else 2
        if is_leaf:
            one = (tree, node, int(RNG.integers(ids)), sign * float(RNG.random()))
            for values, value in zip(leaves.values(), one, strict=True):
                values.append(value)
        for child in () if is_leaf else (then, other):
            free = add(tree, child, level + 1, free)
        return free

    for tree in range(count):
        add(tree, 0, 0, 1)
    return {f"nodes_{n}": v for n, v in made.items()} | {
        f"{kind}_{n}": v for n, v in leaves.items()
    }


MODES = [("BRANCH_LEQ",), ("BRANCH_LT", "BRANCH_GT", "BRANCH_GTE"), ("BRANCH_EQ", "BRANCH_NEQ")]


def rows(count, features):
    x = RNG.standard_normal((count, features)).round(1).astype(np.float32)
    x[0, 0] = np.nan
    return x


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regression_by_trees(modes, how):
    attrs = trees(3, 4, 5, modes=modes)
    compare("TreeEnsembleRegressor", rows(7, 5), n_targets=1, base_values=[0.25],
            aggregate_function=how, **attrs)  # fmt: skip


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_classification_by_trees(post):
    attrs = trees(3, 4, 5, kind="class", ids=3)
    attrs["class_ids"][:3] = [0, 1, 2]
    kinds = (TensorProto.INT64, TensorProto.FLOAT)
    compare("TreeEnsembleClassifier", rows(9, 5), kinds, classlabels_int64s=[4, 7, 1],
            post_transform=post, **attrs)  # fmt: skip
    for sign in (1, -1):
        if sign < 0 and post == "NONE":
            continue  # where the reference and onnxruntime differ
        attrs = trees(2, 3, 5, kind="class", ids=1, sign=sign)
        compare("TreeEnsembleClassifier", rows(9, 5), kinds, classlabels_int64s=[0, 1],
                post_transform=post, **attrs)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("nodes_truenodeids", 0, 0, "a tree has a cycle"),
        ("nodes_truenodeids", 0, 99, "nodes that are not there"),
        ("nodes_modes", 0, "BRANCH_MEMBER", "modes .'BRANCH_MEMBER'."),
        ("target_nodeids", 0, 99, "node 99 of tree 0, or target 0, is not there"),
        ("target_weights", slice(None), [1.0], "do not fit"),
    ],
)
def test_trees_that_are_broken(name, at, value, words):
    attrs = trees(1, 2, 3)
    attrs[name][at] = value
    made = from_onnx(model_of("TreeEnsembleRegressor", rows(2, 3), (1,), **attrs))
    with pytest.raises(ModelError, match=words):
        made.bind()


def test_linear_models():
    x, w = rows(6, 4)[1:], RNG.standard_normal(12).astype(np.float32).tolist()
    compare("LinearRegressor", x, coefficients=w, intercepts=[0.1, 0.2, 0.3], targets=3)
    kinds = (TensorProto.INT64, TensorProto.FLOAT)
    for post in ("NONE", "SOFTMAX", "LOGISTIC"):
        compare("LinearClassifier", x, kinds, coefficients=w, intercepts=[0.1, 0.2, 0.3],
                classlabels_ints=[3, 1, 2], post_transform=post)  # fmt: skip
    compare("LinearClassifier", x, kinds, coefficients=w[:4], intercepts=[0.1],
            classlabels_ints=[0, 1], post_transform="LOGISTIC")  # fmt: skip


def test_scaled_and_encoded_inputs():
    x = rows(6, 4)[1:]
    compare("Scaler", x, offset=[0.1, 0.2, 0.3, 0.4], scale=[2.0, 3.0, 0.5, 1.0])
    for norm in ("MAX", "L1", "L2"):
        compare("Normalizer", x, norm=norm)
    compare("Binarizer", x, threshold=0.2)
    whole = np.array([[3, 1], [2, 9]], np.int64)
    compare("LabelEncoder", whole, keys_int64s=[1, 2, 3], values_floats=[0.5, 1.5, 2.5],
            default_float=-1.0)  # fmt: skip
    compare("LabelEncoder", whole, (TensorProto.INT64,), keys_int64s=[1, 3], values_int64s=[7, 8],
            default_int64=5)  # fmt: skip


def test_strings_are_refused_in_one_line():
    x = np.array([["a"]], object)
    with pytest.raises(ModelError, match="input 'x': elements of type string") as found:
        from_onnx(model_of("LabelEncoder", x.astype(np.str_), (TensorProto.INT64,)))
    assert "\n" not in str(found.value)
    whole = np.array([[3]], np.int64)
    attrs = {"keys_int64s": [3], "values_strings": ["c"]}
    made = from_onnx(model_of("LabelEncoder", whole, (TensorProto.STRING,), **attrs))
    with pytest.raises(ModelError, match="labels that are strings are not supported"):
        made.bind()
