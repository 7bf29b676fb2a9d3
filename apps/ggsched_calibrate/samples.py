"""Samples: graphs of one op each, whose times give the rates of families of kernels and of ops.

The record of an op names its family (``OpDef.family``). The rate of the first op of a family stands
for ops that were not measured.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ggsched.errors import GgschedError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph
from ggsched.ir.ops import BUILT_IN, op_by_name
from ggsched.ir.tensor import Tensor
from ggsched.ops.nd import library
from ggsched.ops.record import ELEMENTS, FUNCTIONS, SELECTED, SORTED_LENGTHS, OpDef
from ggsched.passes.cost.work_size import node_work
from ggsched.topology.caps import DeviceFacts, offers

Params = dict[str, Any]
Maker = Callable[[int], Graph]
Samples = Mapping[str, Sequence[Maker]]

Recipe = Callable[[GraphBuilder, OpDef, int], Tensor]
"""Adds a node of an op to a builder; its work grows with a scale, which is a power of eight."""


def _conv(channels: int, *kernel: int, group: int = 1) -> Recipe:
    n = len(kernel)
    spatial = {1: (1024,), 2: (28, 28), 3: (8, 12, 12)}[n]

    def add(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
        x = g.input("x", (scale, channels, *spatial))
        w = g.weight("w", (channels, channels // group, *kernel))
        pads = tuple(k // 2 for k in kernel) * 2
        return g.op(op.name, x, w, strides=(1,) * n, dilations=(1,) * n, pads=pads, group=group)

    return add


def _conv_transpose(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    x, w = g.input("x", (scale, 32, 14, 14)), g.weight("w", (32, 16, 2, 2))
    return g.op(op.name, x, w, strides=(2, 2), dilations=(1, 1), pads=(0,) * 4, more=(0, 0))


def _pool(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    x = g.input("x", (scale, 32, 56, 56))
    return g.op(op.name, x, kernel=(3, 3), strides=(2, 2), dilations=(1, 1), pads=(0,) * 4)


def _recurrent(steps: int, width: int) -> Recipe:
    def add(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
        gates = {"nd.lstm": 4, "nd.gru": 3}.get(op.name, 1)
        x = g.input("x", (steps * scale, 1, width))
        w, r = (g.weight(name, (1, gates * width, width)) for name in ("w", "r"))
        return g.op(op.name, x, w, r)

    return add


def _gather(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    x = g.weight("x", (4096, 64))
    if op.name == "get_rows":
        return g.op(op.name, x, g.input("ids", (4096 * scale,), "i32"))
    shape = {"nd.gather_elements": (64 * scale, 64), "nd.gather_nd": (1024 * scale, 1)}
    ids = g.input("ids", shape.get(op.name, (1024 * scale,)), "i32")
    params: Params = {} if op.name == "nd.gather_nd" else {"axis": 0}
    return g.op(op.name, x, ids, **params)


def _scatter(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    rows = 1024 * scale
    x, updates = g.input("x", (1024, 64)), g.input("updates", (rows, 64))
    if op.name == "nd.scatter_nd":
        ids = g.input("ids", (rows, 1), "i32")
        return g.op(op.name, x, ids, updates, reduction="add")
    ids = g.input("ids", (rows, 64), "i32")
    return g.op(op.name, x, ids, updates, axis=0, reduction="add")


def _sort(length: int, taken: int) -> Recipe:
    def add(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
        x = g.input("x", (scale, length))
        params: Params = {"k": taken} if "k" in op.defaults else {}
        return g.op(op.name, x, **params)

    return add


def _along(**params: Any) -> Recipe:
    """Return the recipe of an op on rows, with those of the parameters that it has."""

    def add(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
        x = g.input("x", (64 * scale, 1024))
        return g.op(op.name, x, **{k: v for k, v in params.items() if k in op.defaults})

    return add


def _moves(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    rows, width = 64 * scale, 1024
    x = g.input("x", (rows, width))
    params: dict[str, Params] = {
        "nd.transpose": {"perm": (1, 0)},
        "nd.concat": {"axis": 0},
        "nd.slice": {"starts": (0, 1), "stops": (rows, width), "steps": (1, 1)},
        "nd.expand": {"shape": (2, rows, width)},
        "nd.tile": {"repeats": (2, 1)},
        "nd.pad": {"pads": (1, 1, 1, 1)},
        "repeat": {"shape": (2 * rows, width)},
    }
    more = (g.input("y", (rows, width)),) if len(op.operands) > 1 or op.name == "nd.concat" else ()
    return g.op(op.name, x, *more[: 0 if op.name == "nd.pad" else 1], **params.get(op.name, {}))


def _products(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    batch = 2 * scale
    a, b = g.input("a", (batch, 64, 64)), g.input("b", (batch, 64, 64))
    params: Params = {"equation": "bij,bjk->bik"} if op.name == "nd.einsum" else {}
    return g.op(op.name, a, b, **params)


def _sampling(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    return g.op(op.name, g.input("x", (scale, 16, 32, 32)), g.input("grid", (scale, 32, 32, 2)))


def _elements(g: GraphBuilder, op: OpDef, scale: int) -> Tensor:
    """Every operand has as many elements; ones that need other shapes are left out."""
    shape = (64 * scale, 1024)
    kinds = [_KINDS.get(types[0], types[0]) for types in op.types]
    kinds += kinds[:1] * (len(op.operands) - len(kinds))
    if op.name == "nd.where":
        kinds = ["bool", "f32", "f32"]
    shapes = [shape, *((),) * 2] if op.name == "nd.clip" else [shape] * len(kinds)
    operands = [
        g.input(f"x{i}", at, kind) for i, (at, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]
    params: Params = {"to": "f16"} if op.name == "nd.cast" else {}
    return g.op(op.name, *operands, **params)


_KINDS: Final = {"float": "f32", "kv": "f32"}

RECIPES: Final[Mapping[str, tuple[Recipe, ...]]] = {
    "conv:2d": (_conv(32, 3, 3),),
    "conv:1d": (_conv(32, 5),),
    "conv:3d": (_conv(16, 3, 3, 3),),
    "conv:points": (_conv(64, 1, 1),),
    "conv:depthwise": (_conv(64, 3, 3, group=64),),
    "conv:grouped": (_conv(64, 3, 3, group=8),),
    "conv_transpose": (_conv_transpose,),
    "pool": (_pool,),
    "recurrent": (_recurrent(8, 256), _recurrent(64, 16)),
    "gather": (_gather,),
    "scatter": (_scatter,),
    **{f"sort:first-of-{n}": (_sort(n, min(n // 32, SELECTED)),) for n in SORTED_LENGTHS},
    **{f"sort:all-of-{n}": (_sort(n, n),) for n in SORTED_LENGTHS},
    "scan": (_along(axis=1),),
    "reduce": (_along(axes=(1,), axis=1),),
    "reduce:places": (_along(axis=1),),
    "reduce:planes": (_along(axis=0),),
    "rows": (_along(axes=(1,), axis=1),),
    "moves": (_moves,),
    "matmul": (_products,),
    "sampling": (_sampling,),
    FUNCTIONS: (_elements,),
    ELEMENTS: (_elements,),
}
"""By family and variant. The second recipe of a family has many short parts, one after another."""


def samples(facts: DeviceFacts) -> tuple[Samples, Samples]:
    """Return what gives the rates of a device: those of families, and those of all ops.

    Both have by the name of a rate what makes the graphs that give it, for a scale.

    Args:
        facts: Of the device; ops that it does not offer are left out.
    """
    families: dict[str, list[Maker]] = {}
    others: dict[str, list[Maker]] = {}
    # Kernels of the library are often others than those of built-in ops, and most of its ops are
    # known by their family alone; so an op of the library stands for a family that has one.
    for op in (*library().values(), *map(op_by_name, BUILT_IN)):
        kind = "f32" if not op.types or "f32" in op.types[0] else op.types[0][0]
        if not offers(facts.ops, op.name, _KINDS.get(kind, kind)):
            continue
        for family, recipes in RECIPES.items():
            makers = [_maker(op, recipe) for recipe in recipes]
            if not _is_of(op, family, makers[0]):
                continue
            others[op.name + family[len(family.partition(":")[0]) :]] = makers
            if family != ELEMENTS:  # the rate of that family is that of long sums
                families.setdefault(family, makers)
    return families, dict(reversed(others.items()))


def _maker(op: OpDef, recipe: Recipe) -> Maker:
    def make(scale: int) -> Graph:
        g = GraphBuilder(op.name)
        return g.build(recipe(g, op, scale))

    return make


def _is_of(op: OpDef, family: str, make: Maker) -> bool:
    """Whether a recipe of a family makes a node of an op that belongs to the family."""
    if isinstance(op.family, str) and op.family != family:
        return False
    try:
        graph = make(1)
    except GgschedError:
        return False
    return node_work(graph, graph.nodes[0]).family == family
