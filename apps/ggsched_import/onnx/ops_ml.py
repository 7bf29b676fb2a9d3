"""Converters of ops of ``ai.onnx.ml``: trees, linear models, and what prepares their inputs."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ggsched.ir.dtype import F32, F64
from ggsched_import.common.emit import Array, Const, Value
from ggsched_import.onnx.call import Call, converts
from ggsched_import.onnx.ops_elements import cast_to

_TESTS: Final = {
    "BRANCH_LEQ": ("less_equal", False),
    "BRANCH_LT": ("less", False),
    "BRANCH_GTE": ("greater_equal", False),
    "BRANCH_GT": ("greater", False),
    "BRANCH_EQ": ("equal", False),
    "BRANCH_NEQ": ("equal", True),
}
"""By mode of a node: the comparison of a feature with its number, and whether it is negated."""


def _floats(c: Call, x: Value) -> Value:
    return x if x.dtype in (F32, F64) else cast_to(c, x, "f32")


def _numbers(c: Call, name: str, default: Any = None) -> Any:
    """Return an attribute of numbers: a list, or a tensor, whose name is longer."""
    found = c.attrs.get(f"{name}_as_tensor", c.attrs.get(name, default))
    if found is None:
        raise c.bad(f"attribute {name!r} is missing")
    return np.asarray(found)


def _labels(c: Call, *names: str) -> Array:
    """Return the labels of classes.

    Raises:
        ModelError: they are strings.
    """
    for name in names:
        if c.attrs.get(name):
            return np.asarray(c.attrs[name], np.int64)
    raise c.bad("labels of classes that are not integers are not supported")


# --- trees ----------------------------------------------------------------------------------------


class _Trees:
    """The nodes of all trees in one table; leaves lead to themselves."""

    def __init__(self, c: Call) -> None:
        trees, nodes, *following = (
            _numbers(c, f"nodes_{n}ids").tolist() for n in ("tree", "node", "truenode", "falsenode")
        )
        self.at = {pair: i for i, pair in enumerate(zip(trees, nodes, strict=True))}
        self.modes = list(c.attrs["nodes_modes"])
        is_leaf = np.array([m == "LEAF" for m in self.modes])
        self.then, self.other = (
            np.array([
                i if is_leaf[i] else self.at.get(pair, -1)
                for i, pair in enumerate(zip(trees, follow, strict=True))
            ]) for follow in following
        )  # fmt: skip
        unknown = {m for m in self.modes if m != "LEAF" and m not in _TESTS}
        if unknown or min(self.then.min(), self.other.min()) < 0:
            raise c.bad(f"modes {sorted(unknown)} or nodes that are not there")
        # The first node of each tree.
        self.roots = [*{t: i for i, t in reversed([*enumerate(trees)])}.values()]
        self.depth = self._depth(c, is_leaf)

    def _depth(self, c: Call, is_leaf: Array) -> int:
        """Return how many steps lead to the deepest leaf."""
        front, depth = set(self.roots), 0
        while front := {i for i in front if not is_leaf[i]}:
            front = {int(t[i]) for i in front for t in (self.then, self.other)}
            depth += 1
            if depth > len(is_leaf):
                raise c.bad("a tree has a cycle")
        return depth

    def leaves(self, c: Call, x: Value) -> Value:
        """Return for each row and each tree (rows, trees) the leaf, by its place in the table."""
        rows = x.shape[0]
        values = Const(_numbers(c, "nodes_values").astype(x.dtype.host))
        features = Const(_numbers(c, "nodes_featureids").astype(np.int64))
        none = np.zeros(len(self.modes))
        nan_is_true = _numbers(c, "nodes_missing_value_tracks_true", none).astype(bool)
        modes = sorted({m for m in self.modes if m != "LEAF"})
        at: Value = c.nd("expand", Const(np.array([self.roots])), shape=(rows, len(self.roots)))
        for _ in range(self.depth):
            wanted = c.nd("gather", features, at, axis=0)
            given = c.nd("gather_elements", x, wanted, axis=1)
            limit = c.nd("gather", values, at, axis=0)
            goes: Value | None = None
            for mode in modes:
                op, is_negated = _TESTS[mode]
                test = c.nd(op, given, limit)
                test = c.nd("not", test) if is_negated else test
                if goes is not None:
                    has_mode = Const(np.array([m == mode for m in self.modes]))
                    test = c.nd("where", c.nd("gather", has_mode, at, axis=0), test, goes)
                goes = test
            assert goes is not None
            if nan_is_true.any() or "BRANCH_NEQ" in modes:  # which holds of NaN
                tracks = c.nd("gather", Const(nan_is_true), at, axis=0)
                goes = c.nd("where", c.nd("is_nan", given), tracks, goes)
            then, other = (c.nd("gather", Const(t), at, axis=0) for t in (self.then, self.other))
            at = c.nd("where", goes, then, other)
        return at

    def weights(self, c: Call, x: Value, kind: str, count: int) -> Value:
        """Return what leaves add to each target or class (rows, trees, count)."""
        table = np.zeros((len(self.modes), count), x.dtype.host)
        lists = (_numbers(c, f"{kind}_{n}") for n in ("treeids", "nodeids", "ids", "weights"))
        for tree, node, i, weight in zip(*(v.tolist() for v in lists), strict=True):
            if (tree, node) not in self.at or not 0 <= i < count:
                raise c.bad(f"node {node} of tree {tree}, or target {i}, is not there")
            table[self.at[tree, node], i] += weight
        return c.nd("gather", Const(table), self.leaves(c, x), axis=0)


def _plus(c: Call, x: Value, name: str, first: int = 0) -> Value:
    """Add an attribute of numbers from the first on, if it has any."""
    more = _numbers(c, name, ())[first:]
    return c.nd("add", x, c.like(more, x)) if len(more) else x


@converts("ai.onnx.ml.TreeEnsembleRegressor")
def _regressor(c: Call) -> Value:
    x, trees = _floats(c, c.x()), _Trees(c)
    each = trees.weights(c, x, "target", c.attr("n_targets", 1))
    how = c.attr("aggregate_function", "SUM")
    op = {"SUM": "sum", "AVERAGE": "mean", "MIN": "min", "MAX": "max"}[how]
    made = c.nd(f"reduce_{op}", each, axes=(1,), keepdims=False)
    return cast_to(c, _transformed(c, _plus(c, made, "base_values")), "f32")


@converts("ai.onnx.ml.TreeEnsembleClassifier")
def _classifier(c: Call) -> Sequence[Value]:
    labels = _labels(c, "classlabels_int64s")
    x, trees = _floats(c, c.x()), _Trees(c)
    ids = _numbers(c, "class_ids")
    is_binary = len(set(ids.tolist())) == 1 and len(labels) == 2
    each = trees.weights(c, x, "class", len(labels))
    total = cast_to(c, c.nd("reduce_sum", each, axes=(1,), keepdims=False), "f32")
    if not is_binary:
        return _chosen(c, _transformed(c, _plus(c, total, "base_values")), labels)
    score = c.nd("gather", total, Const(ids[:1].astype(np.int64)), axis=1)
    score = _plus(c, score, "base_values", -1)
    is_linear = c.attr("post_transform", "NONE") in ("NONE", "PROBIT")
    if is_linear and (_numbers(c, "class_weights") >= 0).all():
        other = c.nd("sub", c.like(1, score), score)
    else:
        other = c.nd("neg", score)
    return _chosen(c, _transformed(c, c.nd("concat", other, score, axis=1)), labels)


def _chosen(c: Call, scores: Value, labels: Array) -> Sequence[Value]:
    """Return the label of the highest score, and the scores."""
    best = c.nd("arg_max", scores, axis=1, keepdims=False)
    return c.nd("gather", Const(labels), best, axis=0), scores


def _transformed(c: Call, x: Value) -> Value:
    match c.attr("post_transform", "NONE"):
        case "NONE":
            return x
        case "LOGISTIC":
            return c.nd("sigmoid", x)
        case "SOFTMAX":
            return c.nd("softmax", x, axis=-1)
        case other:
            raise c.bad(f"post_transform {other!r} is not supported")


# --- linear models --------------------------------------------------------------------------------


def _linear(c: Call, rows: int) -> Value:
    x = _floats(c, c.x())
    if len(x.shape) == 1:
        x = c.emit.reshape(x, (1, *x.shape))
    factors = _numbers(c, "coefficients").reshape(rows, -1).astype(x.dtype.host)
    made = c.nd("matmul", x, Const(np.ascontiguousarray(factors.T)))
    return _plus(c, made, "intercepts")


@converts("ai.onnx.ml.LinearRegressor")
def _linear_regressor(c: Call) -> Value:
    return _transformed(c, _linear(c, c.attr("targets", 1)))


@converts("ai.onnx.ml.LinearClassifier")
def _linear_classifier(c: Call) -> Sequence[Value]:
    labels, x = _labels(c, "classlabels_ints"), c.x()
    rows = len(_numbers(c, "coefficients")) // x.shape[-1]
    scores = _linear(c, rows)
    if rows == 1 and len(labels) == 2:
        scores = c.nd("concat", c.nd("neg", scores), scores, axis=1)
    elif rows != len(labels):
        raise c.bad(f"{rows} rows of coefficients for {len(labels)} classes")
    return _chosen(c, _transformed(c, cast_to(c, scores, "f32")), labels)


# --- what prepares inputs -------------------------------------------------------------------------


@converts("ai.onnx.ml.Scaler")
def _scaler(c: Call) -> Value:
    x = cast_to(c, c.x(), "f32")
    moved = c.nd("sub", x, c.like(_numbers(c, "offset", [0.0]), x))
    return c.nd("mul", moved, c.like(_numbers(c, "scale", [1.0]), x))


@converts("ai.onnx.ml.Normalizer")
def _normalizer(c: Call) -> Value:
    x, how = cast_to(c, c.x(), "f32"), c.attr("norm", "MAX")
    name = {"MAX": "max", "L1": "l1", "L2": "l2"}.get(how)
    if name is None:
        raise c.bad(f"norm {how!r} is not supported")
    size = c.nd(f"reduce_{name}", c.nd("abs", x), axes=(-1,), keepdims=True)
    return c.nd("div", x, c.nd("max", size, c.like(1e-30, x)))


@converts("ai.onnx.ml.ArrayFeatureExtractor")
def _features(c: Call) -> Value:
    x, places = c.x(), c.x(1)
    made = c.nd("gather", x, c.emit.reshape(places, (-1,)), axis=len(x.shape) - 1)
    return c.emit.reshape(made, (1, *made.shape)) if len(x.shape) == 1 else made


@converts("ai.onnx.ml.Binarizer")
def _binarizer(c: Call) -> Value:
    x = c.x()
    return cast_to(c, c.nd("greater", x, c.like(c.attr("threshold", 0.0), x)), x.dtype.name)


@converts("ai.onnx.ml.LabelEncoder")
def _label_encoder(c: Call) -> Value:
    """Look up by comparing with all keys; the first that is equal counts."""
    if any(c.attrs.get(f"{n}_strings") for n in ("keys", "values")):
        raise c.bad("labels that are strings are not supported")
    keys, values = (_first(c, n) for n in ("keys", "values"))
    x, tensor = c.x(), c.attrs.get("default_tensor")
    name, default = ("int64", -1) if values.dtype.kind == "i" else ("float", -0.0)
    default = c.attrs.get(f"default_{name}", default) if tensor is None else tensor.reshape(-1)[0]
    wide = c.emit.reshape(x, (*x.shape, 1))
    same = c.nd("equal", wide, c.like(keys, x))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        both = c.nd("and", c.nd("is_nan", wide), Const(np.isnan(keys)))
        same = c.nd("or", same, both)
    at = c.nd("arg_max", cast_to(c, same, "u8"), axis=len(x.shape), keepdims=False)
    found = c.nd("gather", Const(values), at, axis=0)
    is_known = c.nd("reduce_max", same, axes=(-1,), keepdims=False)
    return c.nd("where", is_known, found, c.like(default, found))


def _first(c: Call, name: str) -> Array:
    for suffix, kind in (("tensor", None), ("int64s", np.int64), ("floats", np.float32)):
        found = c.attrs.get(f"{name}_{suffix}")
        if found is not None and len(found):
            return np.ascontiguousarray(found, kind)
    raise c.bad(f"it has no {name}")
