"""Ops of PyTorch one by one: the graph computes what eager computes."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from tests.importers.torch_programs import Lambda, compare  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

torch.manual_seed(0)
X = torch.randn(2, 3, 4)
Y = torch.randn(2, 3, 4)
P = torch.rand(2, 3, 4) + 0.5
I = torch.randint(-5, 6, (2, 3, 4))  # noqa: E741
J = torch.randint(1, 5, (2, 3, 4))
M = torch.rand(2, 3, 4) > 0.5
S = torch.randn(2, 4, 9, 7)
INF = torch.tensor([[float("inf"), 1.0], [float("nan"), -float("inf")]])

CASES = {
    "functions": ((X, P), lambda x, p: (
        x.exp(), x.expm1(), p.log(), p.log1p(), p.log2(), p.log10(), x.sin(), x.cos(), x.tan(),
        x.sinh(), x.cosh(), x.tanh(), x.atan(), p.rsqrt(), p.sqrt(), p.reciprocal(), x.sigmoid(),
        x.erf(), x.abs(), x.neg(), x.sign(), x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(),
        x.square(), torch.exp2(x), torch.atan2(x, p), torch.round(x, decimals=1))),
    "activations": ((X,), lambda x: (
        F.relu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.mish(x), F.elu(x, 0.5),
        F.selu(x), F.celu(x, 2.0), F.leaky_relu(x, 0.2), F.hardtanh(x), F.relu6(x), F.hardswish(x),
        F.hardsigmoid(x), F.softplus(x), F.softplus(x, 2.0, 1.0), F.logsigmoid(x), F.softsign(x),
        F.glu(x), F.prelu(x, torch.tensor([0.1, 0.2, 0.3])), F.tanhshrink(x), F.threshold(x, 0, 7),
        F.softmax(x, 1), F.log_softmax(x, -1), F.normalize(x, dim=-1), F.hardshrink(x))),
    "arithmetic": ((X, Y, I, J, M), lambda x, y, i, j, m: (
        x + y, x - y, x * y, x / y, x + 1, 2 - x, x * 3, 1 / y, x ** 2, j ** 2, 2.0 ** x, i + j,
        i * 2, i / j, i // j, i % j, x % 2.5, torch.fmod(x, 0.7), torch.fmod(i, 3), i + x, m + i,
        m * x, i - 0.5, torch.add(x, y, alpha=2), torch.sub(i, j, alpha=2), torch.rsub(x, 1),
        torch.div(x, y, rounding_mode="floor"), torch.div(i, j, rounding_mode="trunc"),
        torch.maximum(x, y), torch.minimum(i, j), x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=y),
        i.clamp(0, 2), i & j, i | j, i ^ j, ~i, i << 1, i >> 1, m & ~m, m | m, m ^ m)),
    "comparisons": ((X, Y, I, M), lambda x, y, i, m: (
        x == y, x != y, x < y, x <= 0, x > y, x >= 1, i == 2, i < 1.5, m == m, m > False,
        torch.logical_and(x, i), torch.logical_or(m, i), torch.logical_not(i), x.isfinite(),
        torch.where(m, x, y), torch.where(m, x, 0), x.masked_fill(m, -1.0), torch.where(m, 1, i))),
    "classes": ((INF,), lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.nan_to_num(0.5))),
    "reductions": ((X, I, M), lambda x, i, m: (
        x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.mean(-1), x.amax(1), x.amin((0, 1)),
        x.prod(2), i.sum(0), m.sum(), m.any(), m.any(1), m.all(), m.all(-1, keepdim=True),
        x.max(), *x.max(1), *i.min(-1, keepdim=True), x.argmax(), x.argmax(1), i.argmin(2, True),
        x.var(), x.var(1, correction=0), x.std(-1), x.logsumexp(1), x.norm(dim=1), x.norm(1),
        x.cumsum(1), i.cumsum(-1), x.cumprod(0), m.cumsum(0), *torch.var_mean(x, 1),
        *x.topk(2, 1), *x.sort(-1), *x.sort(1, descending=True), x.argsort(-1), x.max(1)[1],
        torch.linalg.vector_norm(x, float("inf"), 1), torch.linalg.vector_norm(x, 3),
        x.median(1)[0], x.median(-1, keepdim=True)[0])),
    "layout": ((X, I), lambda x, i: (
        x.view(6, 4), x.reshape(-1), x.permute(2, 0, 1), x.transpose(0, 1), x.mT, x.flatten(1),
        x.unflatten(2, (2, 2)), x.unsqueeze(1).squeeze(1), x[:, None].expand(2, 5, 3, 4), x[0, 1:],
        x[..., -1], x[:, ::2], x[1, :, -3:-1], x.flip(0, 2), x.roll(1, 2), x.roll((1, -1), (0, 1)),
        torch.cat([x, x], 1), torch.cat([x, i], -1), torch.stack([x, x], -1), *x.split(2, -1),
        *x.split([1, 2], 1), *x.chunk(2, 2), *x.unbind(1), x.repeat(2, 1, 3), x.tril(), x.triu(1),
        x.repeat_interleave(2, 1), x.narrow(2, 1, 2), x.diagonal(0, 1, 2), F.pad(x, (1, 2)),
        F.pad(x, (1, -1, 0, 2), value=3), F.pad(x, (1, 2), mode="reflect"),
        F.pad(x, (1, 2), mode="replicate"), x.contiguous(), x.clone(),
        torch.einsum("abc,abd->cd", x, x), torch.tensor(3.0) + x, x.new_zeros(2), x.long(),
        x.half(), i.float(), i.bool(), i.to(torch.int32), x.to(torch.float64), x.type_as(i),
        x.unfold(2, 2, 1), x.unfold(0, 1, 1))),
    "constants": ((X,), lambda x: (
        x + torch.arange(4), torch.zeros_like(x), torch.ones(2, 3), torch.full((2,), 7),
        torch.full_like(x, 2), torch.arange(0, 1, 0.25), torch.linspace(0, 1, 5), torch.eye(3),
        torch.tensor([1, 2]), torch.ones(3, 3).tril() * 2)),
    "images": ((S,), lambda x: (
        F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 2),
        *F.max_pool2d(x, 2, return_indices=True), F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), F.max_pool1d(x[0], 2),
        F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (4, 3)), F.avg_pool1d(x[0], 3),
        F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 14), mode="bilinear"),
        F.interpolate(x, (5, 14), mode="bilinear", align_corners=True), F.pixel_shuffle(x, 2),
        F.interpolate(x[0], 3), F.max_pool2d(x[0], 2), F.group_norm(x, 2), F.instance_norm(x),
        F.layer_norm(x, (9, 7)), F.layer_norm(x, (7,)), F.local_response_norm(x, 2),
        F.adaptive_max_pool2d(x, (3, 1)), F.bilinear(x[0, :, 0, :3], x[0, :, 1, :4],
        torch.ones(5, 3, 4)))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_ops_compute_what_eager_computes(name):
    args, f = CASES[name]
    compare(Lambda(f), args, atol=2e-5)


def indexed(x, i, m):
    rows, columns = i.abs()[0, 0] % 2, i.abs()[1, 0] % 3
    y = x.clone()
    y[:, 1] = 7
    z = x.clone()
    z[m] = 0
    v = x.clone()
    v[rows, columns] = 5.0
    w = x.clone()
    w[:, :, ::2] = x[:, :, 1::2]
    return (
        x[rows], x[:, columns], x[rows, columns], x[rows, :, columns], x[:, columns, columns],
        x[rows[:, None], columns], x.gather(2, i.abs() % 4), x.index_select(1, columns),
        torch.take_along_dim(x, i.abs() % 3, 1), x.scatter(1, x.argsort(1), x), y, z, v, w,
        x.scatter_add(2, i.abs() % 4, x), x.scatter(0, i.abs() % 2, 2.5), x[-rows],
        x.scatter_reduce(1, i.abs() % 3, x, "amax"), F.embedding(i.abs(), x.reshape(-1, 2)),
        x.index_put((rows,), x[rows], accumulate=True), x.select_scatter(x[:, 0] * 2, 1, 1),
        F.one_hot(i.abs() % 3, 3), x.index_add(1, columns, x[:, columns]),
    )  # fmt: skip


def test_indexing():
    i = torch.tensor([[[0, 1, 1, 0]] * 3, [[2, 0, 1, 2]] * 3])
    i = i + torch.zeros(2, 3, 4, dtype=torch.int64)
    x = torch.randn(2, 3, 4)
    compare(Lambda(indexed), (x, i, x > 0))


def test_views_of_memory():
    x = torch.randn(2, 4, 6, 5)

    def f(x):
        rows, channels_last = x[0, 0], x.permute(0, 2, 3, 1)
        return (
            F.adaptive_avg_pool2d(channels_last.permute(0, 3, 1, 2), 1),
            F.adaptive_avg_pool2d(channels_last, 1),
            rows.as_strided((4, 3), (5, 1)), rows.T.as_strided((3, 4), (1, 5), 2),
            rows[:, 1:4].as_strided((3, 3), (5, 1)), rows[1:].as_strided((2, 2), (5, 1)),
            x.as_strided((3, 2, 2), (0, 7, 1)), x.permute(3, 0, 2, 1).as_strided((7,), (3,), 4),
            torch.as_strided_scatter(rows.T, rows[:2, :3], (2, 3), (7, 2), 1),
        )  # fmt: skip

    compare(Lambda(f), (x,))


def test_views_of_memory_with_extents_that_change():
    module = Lambda(lambda x: F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1))
    args, more = (torch.randn(2, 5, 6, 4),), (torch.randn(3, 7, 6, 4),)
    shapes = {"args": ({0: torch.export.Dim("n", min=2), 1: torch.export.Dim("m", min=2)},)}
    compare(module, args, more=(more,), dynamic_shapes=shapes)


def test_counts_in_bins_places_and_distances():
    x, y = torch.randn(40, 3), torch.randn(30, 3)
    edges, values = torch.randn(2, 9).sort(-1)[0], torch.randn(2, 5)
    whole = torch.randint(0, 8, (20,)).float()

    def f(x, y, edges, values, whole):
        values = torch.cat([values, edges[:, 2:4]], 1)
        return (
            x.histc(), x.histc(5, -1, 1), x.histc(4, 1, 1), whole.histc(8, 0, 7), (x * 0).histc(3),
            torch.searchsorted(edges, values), torch.searchsorted(edges, values, right=True),
            torch.searchsorted(edges[0].contiguous(), values, side="right", out_int32=True),
            torch.searchsorted(x.flatten(), y, sorter=x.flatten().argsort()),
            torch.bucketize(values, edges[0].contiguous()), torch.searchsorted(edges[1], 0.3),
            torch.cdist(x, y), torch.cdist(x[:9], y[:9]), torch.cdist(x, y, p=1.0),
            torch.cdist(x, y, p=float("inf")), torch.cdist(x.round(), y.round(), p=0.0),
            torch.cdist(x[None, :4], y.reshape(2, 15, 3), p=3.0),
        )  # fmt: skip

    compare(Lambda(f), (x, y, edges, values, whole))


def test_products():
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    w, bias = torch.randn(5, 4), torch.randn(5)

    def f(a, b, w, bias):
        return (
            a @ b, a[0] @ b[0], a @ b[0], a[0] @ b, a[0, 0] @ b, a @ b[0, :, 0],
            a[0, 0] @ b[0, :, 0],
            F.linear(a, w, bias), F.linear(a[0, 0], w), F.linear(a[None, None, None], w, bias),
            torch.addmm(bias, a[0], w.T, beta=2, alpha=0.5), torch.baddbmm(bias, a, b),
            torch.bmm(a, b), torch.mv(w, a[0, 0]), torch.outer(bias, bias),
            F.cosine_similarity(a, a * 2, dim=-1),
        )  # fmt: skip

    compare(Lambda(f), (a, b, w, bias))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_convolutions(n):
    conv = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    x, w = torch.randn(2, 4, *(7, 6, 5)[:n]), torch.randn(6, 2, *(3,) * n)
    v, b = torch.randn(4, 3, *(3,) * n), torch.randn(6)

    def f(x, w, v, b):
        return (
            conv(x, w, b, groups=2), conv(x, w, stride=2, padding=1, groups=2),
            conv(x, w, b, dilation=2, padding=2, groups=2), conv(x[0], w, b, groups=2),
            conv(x, w, padding="same", groups=2), transposed(x, v, b, 2, 1, 1, groups=2),
        )  # fmt: skip

    compare(Lambda(f), (x, w, v, b))


def test_attention_with_masks():
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    keep = torch.rand(2, 1, 5, 6) > 0.4
    keep[0, 0, 2] = False  # a row that sees nothing
    bias = torch.where(keep, 0.0, -float("inf"))

    def f(q, k, v, keep, bias):
        attend = F.scaled_dot_product_attention
        return (
            attend(q, k, v), attend(q, k, v, is_causal=True), attend(q, k, v, keep),
            attend(q, k, v, bias), attend(q, k, v, scale=0.3),
            attend(q, k[:, :2], v[:, :2], enable_gqa=True),
        )  # fmt: skip

    compare(Lambda(f), (q, k, v, keep, bias))
