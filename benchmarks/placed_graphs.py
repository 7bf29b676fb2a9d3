"""Graphs of the kinds that people import, in usual shapes, for the suite ``placement``."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role

Made = Callable[["Net"], Any]

GRAPHS: Final[dict[str, Made]] = {}
"""By name what adds the nodes of a graph and returns its output."""


class Net:
    """A builder with the layers of usual networks; weights are numbered."""

    def __init__(self, name: str) -> None:
        self.g = GraphBuilder(name)
        self._count = 0

    def x(self, *shape: int, dtype: str = "f32") -> Any:
        """Return an input."""
        self._count += 1
        return self.g.input(f"x{self._count}", shape, dtype)

    def w(self, *shape: int) -> Any:
        """Return a weight."""
        self._count += 1
        return self.g.weight(f"w{self._count}", shape)

    def nd(self, op: str, *operands: Any, **params: Any) -> Any:
        """Add a node of the library ``nd``."""
        return self.g.op(f"nd.{op}", *operands, **params)

    def linear(self, x: Any, width: int) -> Any:
        """Add a product and its bias."""
        return self.g.add(self.g.mul_mat(self.w(width, x.shape[-1]), x), self.w(width))

    def relu(self, x: Any) -> Any:
        """Add an activation."""
        return self.nd("relu", x) if len(x.shape) > 4 else self.g.clamp(x, 0.0, 3e38)

    def conv(self, x: Any, channels: int, size: int, stride: int = 1, group: int = 1) -> Any:
        """Add a convolution in as many dimensions as x has, with a bias."""
        n = len(x.shape) - 2
        w = self.w(channels, x.shape[1] // group, *(size,) * n)
        return self.nd(
            "conv",
            x,
            w,
            self.w(channels),
            strides=(stride,) * n,
            dilations=(1,) * n,
            pads=(size // 2,) * 2 * n,
            group=group,
            bias=True,
        )

    def batch_norm(self, x: Any) -> Any:
        """Add a factor and a term for each channel."""
        shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
        return self.g.add(self.g.mul(x, self.w(*shape)), self.w(*shape))

    def pool(self, kind: str, x: Any, size: int = 2) -> Any:
        """Add a pooling."""
        n = len(x.shape) - 2
        more = {"counts_pads": False} if kind == "average_pool" else {}
        return self.nd(
            kind,
            x,
            kernel=(size,) * n,
            strides=(size,) * n,
            dilations=(1,) * n,
            pads=(0,) * 2 * n,
            **more,
        )

    def embedding(self, rows: int, width: int, *shape: int) -> Any:
        """Add rows of a table, chosen by an input of ids."""
        return self.nd("gather", self.w(rows, width), self.x(*shape, dtype="i32"), axis=0)

    def recurrent(self, op: str, x: Any, hidden: int, directions: str = "forward") -> Any:
        """Add an LSTM or a GRU over x (T, B, I); return the outputs (T, B, D * H)."""
        gates = {"lstm": 4, "gru": 3}[op]
        count = 2 if directions == "bidirectional" else 1
        w = self.w(count, gates * hidden, x.shape[2])
        r = self.w(count, gates * hidden, hidden)
        b = self.w(count, 2 * gates * hidden)
        out = self.nd(op, x, w, r, b, directions=directions, bias=True)
        steps, batch = x.shape[0], x.shape[1]
        whole = (steps, count, batch, hidden)
        taken = self.nd("slice", out, starts=(0,) * 4, stops=whole, steps=(1,) * 4)
        turned = self.nd("transpose", taken, perm=(0, 2, 1, 3))
        return self.g.reshape(turned, steps, batch, count * hidden)

    def mean(self, x: Any, *axes: int) -> Any:
        """Add a mean over axes, which go."""
        return self.nd("reduce_mean", x, axes=axes, keepdims=False)

    def attention(self, x: Any, heads: int) -> Any:
        """Add a layer of an encoder over x (T, W)."""
        g, (tokens, width) = self.g, x.shape
        each = width // heads
        y = g.norm(x)
        q, k, v = (
            self.nd("transpose", g.reshape(z, tokens, heads, each), perm=(1, 0, 2))
            for z in [self.linear(y, width) for _ in range(3)]
        )
        p = g.soft_max(g.scale(g.mul_mat(k, q), each**-0.5))
        o = g.mul_mat(self.nd("transpose", v, perm=(0, 2, 1)), p)
        o = g.reshape(self.nd("transpose", o, perm=(1, 0, 2)), tokens, width)
        x = g.add(x, self.linear(o, width))
        return g.add(x, self.linear(g.gelu(self.linear(g.norm(x), 4 * width)), width))


def graph_of(name: str) -> Callable[[Made], Made]:
    """Register what makes a graph."""

    def keep(made: Made) -> Made:
        GRAPHS[name] = made
        return made

    return keep


def build(name: str) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a graph, its weights and its inputs."""
    net = Net(name)
    graph = net.g.build(GRAPHS[name](net))
    random = np.random.default_rng(0)
    found: Mapping[Role, dict[str, np.ndarray]] = {Role.WEIGHT: {}, Role.INPUT: {}}
    for t in graph.tensors:
        if t.role in found and not t.is_view:
            is_float = t.dtype.name == "f32"
            array = (
                random.standard_normal(t.shape) / 16
                if is_float
                else random.integers(0, 64, t.shape)
            )
            found[t.role][t.name] = np.asarray(array, t.dtype.host)
    return graph, found[Role.WEIGHT], found[Role.INPUT]


# --- convolutions ---------------------------------------------------------------------------------


def _residual(n: Net, x: Any, channels: int) -> Any:
    y = n.relu(n.batch_norm(n.conv(x, channels, 3)))
    return n.relu(n.g.add(n.batch_norm(n.conv(y, channels, 3)), x))


@graph_of("cnn of digits")
def _(n: Net) -> Any:
    x = n.x(1, 1, 28, 28)
    for channels in (16, 32):
        x = n.pool("max_pool", n.relu(n.conv(x, channels, 3)))
    return n.linear(n.g.reshape(x, 1, 32 * 49), 10)


@graph_of("residual blocks")
def _(n: Net) -> Any:
    x = n.relu(n.conv(n.x(1, 3, 64, 64), 32, 7, stride=2))
    for _ in range(4):
        x = _residual(n, x, 32)
    return n.linear(n.mean(x, 2, 3), 100)


@graph_of("residual block of 4 images")
def _(n: Net) -> Any:
    return _residual(n, n.x(4, 64, 28, 28), 64)


@graph_of("mobile blocks")
def _(n: Net) -> Any:
    x = n.conv(n.x(1, 3, 96, 96), 16, 3, stride=2)
    for _ in range(4):
        y = n.nd("hard_swish", n.conv(x, 64, 1))
        y = n.nd("hard_swish", n.conv(y, 64, 3, group=64))
        x = n.g.add(x, n.conv(y, 16, 1))
    return n.linear(n.mean(x, 2, 3), 10)


@graph_of("depthwise alone")
def _(n: Net) -> Any:
    return n.conv(n.x(1, 128, 56, 56), 128, 5, group=128)


@graph_of("grouped convolution")
def _(n: Net) -> Any:
    return n.conv(n.x(1, 128, 28, 28), 128, 3, group=8)


@graph_of("u-net")
def _(n: Net) -> Any:
    x = n.relu(n.conv(n.x(1, 3, 64, 64), 16, 3))
    y = n.relu(n.conv(n.pool("max_pool", x), 32, 3))
    z = n.relu(n.conv(n.pool("max_pool", y), 64, 3))
    for skip in (y, x):
        c = skip.shape[1]
        z = n.nd(
            "conv_transpose", z, n.w(z.shape[1], c, 2, 2), strides=(2, 2), dilations=(1, 1),
            pads=(0, 0, 0, 0), more=(0, 0), group=1, bias=False,
        )  # fmt: skip
        z = n.relu(n.conv(n.nd("concat", z, skip, axis=1), c, 3))
    return n.conv(z, 1, 1)


@graph_of("speech, 1-D convolutions")
def _(n: Net) -> Any:
    x = n.x(1, 80, 400)
    for _ in range(3):
        x = n.relu(n.batch_norm(n.conv(x, 128, 5)))
    return n.linear(n.mean(x, 2), 30)


@graph_of("volume, 3-D convolutions")
def _(n: Net) -> Any:
    x = n.x(1, 1, 24, 24, 24)
    for channels in (8, 16):
        x = n.pool("max_pool", n.relu(n.conv(x, channels, 3)))
    return n.linear(n.g.reshape(x, 1, 16 * 216), 4)


@graph_of("max pooling")
def _(n: Net) -> Any:
    return n.pool("max_pool", n.x(4, 64, 112, 112))


@graph_of("average pooling")
def _(n: Net) -> Any:
    return n.pool("average_pool", n.x(4, 64, 112, 112), 7)


# --- sequences ------------------------------------------------------------------------------------


@graph_of("text classifier, lstm")
def _(n: Net) -> Any:
    x = n.embedding(5000, 128, 64, 1)
    x = n.recurrent("lstm", x, 128, "bidirectional")
    return n.linear(n.mean(x, 0), 4)


@graph_of("text classifier, gru of 8")
def _(n: Net) -> Any:
    x = n.embedding(5000, 64, 40, 8)
    return n.linear(n.mean(n.recurrent("gru", x, 96), 0), 4)


@graph_of("lstm, 2 layers of 256")
def _(n: Net) -> Any:
    x = n.x(32, 1, 128)
    for _ in range(2):
        x = n.recurrent("lstm", x, 256)
    return x


@graph_of("speech, convolution and gru")
def _(n: Net) -> Any:
    x = n.relu(n.conv(n.x(1, 40, 100), 64, 5, stride=2))
    x = n.nd("transpose", x, perm=(2, 0, 1))
    return n.linear(n.recurrent("gru", x, 64, "bidirectional"), 30)


@graph_of("encoder of text")
def _(n: Net) -> Any:
    x = n.embedding(2000, 256, 64)
    for _ in range(3):
        x = n.attention(x, 4)
    return n.linear(n.g.reshape(n.mean(x, 0), 1, 256), 2)


@graph_of("attention block of 512")
def _(n: Net) -> Any:
    return n.attention(n.x(128, 512), 8)


@graph_of("vision transformer")
def _(n: Net) -> Any:
    x = n.nd(
        "conv", n.x(1, 3, 112, 112), n.w(192, 3, 16, 16), n.w(192), strides=(16, 16),
        dilations=(1, 1), pads=(0,) * 4, group=1, bias=True,
    )  # fmt: skip
    x = n.nd("transpose", n.g.reshape(x, 192, 49), perm=(1, 0))
    for _ in range(2):
        x = n.attention(x, 3)
    return n.linear(n.g.reshape(n.mean(x, 0), 1, 192), 10)


# --- tables and features --------------------------------------------------------------------------


@graph_of("recommender")
def _(n: Net) -> Any:
    parts = [n.embedding(1000, 32, 256) for _ in range(8)]
    x = n.nd("concat", *parts, n.x(256, 13), axis=1)
    for width in (256, 128):
        x = n.relu(n.linear(x, width))
    return n.nd("sigmoid", n.linear(x, 1))


@graph_of("graph network, gather and scatter")
def _(n: Net) -> Any:
    x, src = n.x(64, 64), n.x(4000, dtype="i32")
    dst = n.x(4000, 1, dtype="i32")
    for _ in range(2):
        sent = n.nd("gather", n.linear(x, 64), src, axis=0)
        x = n.relu(n.nd("scatter_nd", x, dst, sent, reduction="add"))
    return n.linear(x, 8)


@graph_of("scatter of elements")
def _(n: Net) -> Any:
    x, ids = n.x(64, 512), n.x(64, 512, dtype="i32")
    return n.nd("scatter_elements", x, ids, n.x(64, 512), axis=1, reduction="add")


@graph_of("rows of a large table")
def _(n: Net) -> Any:
    return n.nd("gather", n.w(50_000, 128), n.x(4096, dtype="i32"), axis=0)


@graph_of("top k of logits")
def _(n: Net) -> Any:
    return n.nd("top_k", n.linear(n.x(16, 128), 8000), k=50, axis=-1, largest=True)


@graph_of("sorting")
def _(n: Net) -> Any:
    return n.nd("top_k", n.x(64, 2000), k=2000, axis=-1, largest=False)


@graph_of("running sums")
def _(n: Net) -> Any:
    return n.nd("cum_sum", n.x(256, 2048), axis=1, exclusive=False, reverse=False)


@graph_of("classes of pixels")
def _(n: Net) -> Any:
    return n.nd("arg_max", n.conv(n.x(1, 16, 96, 96), 21, 1), axis=1, keepdims=False, last=False)


# --- elements and products ------------------------------------------------------------------------


@graph_of("mlp, 1 row")
def _(n: Net) -> Any:
    x = n.x(1, 784)
    for width in (512, 256):
        x = n.relu(n.linear(x, width))
    return n.linear(x, 10)


@graph_of("mlp, 256 rows")
def _(n: Net) -> Any:
    x = n.x(256, 512)
    for _ in range(3):
        x = n.relu(n.linear(x, 1024))
    return n.linear(x, 10)


@graph_of("elements, long chain")
def _(n: Net) -> Any:
    g, x = n.g, n.x(1024, 1024)
    for _ in range(4):
        x = g.add(g.mul(x, n.w(1024)), g.tanh(x))
    return x


@graph_of("elements, small chain")
def _(n: Net) -> Any:
    g, x = n.g, n.x(8, 64)
    for _ in range(12):
        x = g.add(g.scale(x, 0.5), g.sigmoid(x))
    return x


@graph_of("waves")
def _(n: Net) -> Any:
    x = n.x(512, 1024)
    return n.g.add(n.nd("sin", x), n.nd("exp", n.nd("cos", x)))


@graph_of("powers and logarithms")
def _(n: Net) -> Any:
    x = n.nd("abs", n.x(256, 1024))
    return n.nd("log", n.g.add(n.nd("pow", x, n.w(1024)), n.nd("log1p", x)))


@graph_of("masks")
def _(n: Net) -> Any:
    x, y = n.x(512, 1024), n.x(512, 1024)
    return n.nd("where", n.nd("greater", x, y), x, n.g.mul(y, y))


@graph_of("statistics")
def _(n: Net) -> Any:
    x = n.x(512, 2048)
    spread = n.nd("reduce_l2", n.g.sub(x, n.nd("reduce_mean", x, axes=(1,), keepdims=True)),
                  axes=(1,), keepdims=True)  # fmt: skip
    return n.g.add(spread, n.nd("reduce_max", x, axes=(1,), keepdims=True))


@graph_of("moves")
def _(n: Net) -> Any:
    x = n.nd("transpose", n.x(64, 128, 128), perm=(2, 0, 1))
    x = n.nd("pad", x, pads=(0, 1, 1, 0, 1, 1), mode="constant", value=False)
    return n.nd("concat", x, x, axis=0)


@graph_of("batched products")
def _(n: Net) -> Any:
    return n.nd("matmul", n.x(8, 128, 64), n.x(8, 64, 128))


@graph_of("softmax of rows")
def _(n: Net) -> Any:
    return n.nd("softmax", n.x(1024, 1000), axis=-1)
