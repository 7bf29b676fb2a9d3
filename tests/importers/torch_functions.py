"""Functions of PyTorch beyond those of ``test_torch_ops``.

``python -m tests.importers.torch_functions`` prints which of them are refused or wrong.
"""

import sys

import torch
import torch.nn.functional as F
import torchvision  # noqa: F401  (has ops)
from torch import nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)
X, Y, P = torch.randn(2, 6, 8), torch.randn(2, 6, 8), torch.rand(2, 6, 8) + 0.1
I, J = torch.randint(1, 9, (2, 6, 8)), torch.randint(1, 9, (2, 6, 8))  # noqa: E741
C = torch.randn(4, 3, 5, 4, dtype=torch.cfloat)
V, W, M = torch.randn(6), torch.randn(6), torch.randn(6, 6)
S, B = torch.randn(2, 4, 9, 7), torch.rand(2, 6, 8) > 0.5
BOXES = torch.tensor([[0.0, 0, 4, 4], [0.5, 0, 4, 4.5], [3, 3, 8, 8], [0, 5, 3, 8]])
IDS = torch.tensor([0, 2, 1, 2])

FUNCTIONS = {
    # elements
    "mode ": (lambda x: torch.mode(x, 1, True)[0], I),
    "acosh": (lambda p: torch.acosh(p + 1), P),
    "addcdiv": (lambda x, y, p: torch.addcdiv(x, y, p, value=0.5), X, Y, P),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), X, Y),
    "asin": (lambda p: torch.asin(p / 2), P),
    "asinh": (torch.asinh, X),
    "atanh": (lambda p: torch.atanh(p / 2), P),
    "bitwise_and": (torch.bitwise_and, I, J),
    "clamp tensors": (lambda x, p: torch.clamp(x, -p, p), X, P),
    "copysign": (torch.copysign, X, Y),
    "deg2rad": (torch.deg2rad, X),
    "digamma": (torch.digamma, P),
    "erfc": (torch.erfc, X),
    "erfinv": (lambda p: torch.erfinv(p / 2), P),
    "exp2": (torch.exp2, X),
    "fake_quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255), X),
    "float_power": (lambda p: torch.float_power(p, 2), P),
    "fmax": (lambda x, y: torch.fmax(x.log(), y.log()), X, Y),
    "fmin": (torch.fmin, X, Y),
    "fmod": (torch.fmod, X, P),
    "frac": (torch.frac, X),
    "frexp": (torch.frexp, X),
    "gcd": (torch.gcd, I, J),
    "heaviside": (torch.heaviside, X, Y),
    "hypot": (lambda x, y: torch.hypot(x, y.round()), X, Y),
    "i0": (torch.i0, X),
    "i0e": (torch.special.i0e, X),
    "i1": (torch.special.i1, X),
    "i1e": (torch.special.i1e, X),
    "isclose": (lambda x: torch.isclose(x, x + 1e-9), X),
    "isneginf": (lambda p: torch.isneginf(-1 / (p - p)), P),
    "isposinf": (lambda p: torch.isposinf(1 / (p - p)), P),
    "lcm": (torch.lcm, I, J),
    "ldexp": (torch.ldexp, X, I),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), X, Y),
    "lgamma": (torch.lgamma, P),
    "log_sigmoid": (F.logsigmoid, X),
    "logaddexp": (torch.logaddexp, X, Y),
    "logit": (lambda p: torch.logit(p / 2), P),
    "nextafter": (torch.nextafter, X, Y),
    "polar": (torch.polar, P, P),
    "polygamma": (lambda p: torch.polygamma(1, p), P),
    "rad2deg": (torch.rad2deg, X),
    "rrelu": (F.rrelu, X),
    "signbit": (torch.signbit, X),
    "sinc": (torch.sinc, X),
    "softshrink": (F.softshrink, X),
    "xlogy": (torch.xlogy, X, P),
    # reductions, sorts, counts
    "aminmax": (lambda x: torch.stack(torch.aminmax(x, dim=1)), X),
    "argwhere": (torch.argwhere, B),
    "bincount": (lambda i: torch.bincount(i.flatten(), minlength=9), I),
    "count_nonzero": (lambda i: torch.count_nonzero(i - 3, 1), I),
    "cummax": (lambda i: torch.stack(torch.cummax(i, 1)), I),
    "cummin": (lambda x: torch.cummin(x, 1)[1], X),
    "diff": (torch.diff, X),
    "histc": (lambda x: torch.histc(x, 5, -1, 1), X),
    "histogram": (lambda x: torch.histogram(x, 5, range=(-1.0, 1.0))[0], X),
    "kthvalue": (lambda x: torch.kthvalue(x, 3)[0], X),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), X),
    "median": (torch.median, X),
    "mode": (lambda i: torch.mode(i, -1)[0], I),
    "msort": (torch.msort, X),
    "nanmedian": (lambda x: torch.nanmedian(torch.log(x)), X),
    "nanmean": (lambda x: torch.nanmean(torch.log(x), 1), X),
    "nonzero": (torch.nonzero, B),
    "nonzero_static": (lambda b: torch.nonzero_static(b, size=60), B),
    "quantile": (lambda x: torch.quantile(x, 0.3, dim=-1), X),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), X),
    "searchsorted": (lambda v, w: torch.searchsorted(v.sort()[0], w), V, W),
    "std_mean": (lambda x: torch.stack(torch.std_mean(x, 1)), X),
    "trapezoid": (torch.trapezoid, X),
    "unique": (torch.unique, I),
    # layout and indices
    "as_strided": (lambda x: x.as_strided((3, 2), (2, 5)), X),
    "block_diag": (torch.block_diag, M, M),
    "cartesian_prod": (torch.cartesian_prod, V, W),
    "channel_shuffle": (lambda s: F.channel_shuffle(s, 2), S),
    "combinations": (torch.combinations, V),
    "diag": (torch.diag, V),
    "diag_embed": (torch.diag_embed, X),
    "diagonal_scatter": (torch.diagonal_scatter, M, V),
    "fold": (lambda x: F.fold(x.reshape(2, 8, 6), (4, 3), (2, 2)), X[:, :, :8]),
    "index_add": (lambda m, v: m.index_add(0, IDS, m[:4], alpha=2), M, V),
    "index_copy": (lambda m: m.index_copy(0, IDS[:3], m[3:]), M),
    "index_fill": (lambda m: m.index_fill(1, IDS, 7.0), M),
    "masked_scatter": (lambda x, b: x.masked_scatter(b, x.flatten()), X, B),
    "masked_select": (torch.masked_select, X, B),
    "meshgrid": (lambda v, w: torch.stack(torch.meshgrid(v, w, indexing="ij")), V, W),
    "movedim": (lambda x: torch.movedim(x, 0, 2), X),
    "put": (lambda m: m.put(IDS[:3], m[0, :3]), M),
    "repeat_interleave tensor": (lambda v: v[:4].repeat_interleave(IDS, output_size=5), V),
    "rot90": (torch.rot90, M),
    "scatter_reduce": (lambda m: torch.stack([m.scatter_reduce(
        0, M[:3].argsort(0), m, how, include_self=own) for how in ("mean", "amax", "prod")
        for own in (True, False)]), M),
    "take": (lambda m: torch.take(m, IDS), M),
    "tensor_split": (lambda x: torch.tensor_split(x, 3, 2)[1], X),
    "tril_indices": (lambda v: torch.tril_indices(3, 4) + v[0].long(), V),
    "unfold": (lambda s: F.unfold(s, 3, padding=1), S),
    "vander": (lambda v: torch.vander(v, 3), V),
    # products
    "addbmm": (lambda m, x: torch.addbmm(m, x[:, :, :6], x[:, :, :6]), M, X),
    "bilinear": (lambda v: F.bilinear(v[:2], v[2:4], torch.ones(3, 2, 2)), V),
    "cdist": (torch.cdist, X, Y),
    "chain_matmul": (lambda m: torch.linalg.multi_dot([m, m, m]), M),
    "cholesky": (lambda m: torch.linalg.cholesky(m @ m.T + torch.eye(6)), M),
    "cholesky_inverse": (lambda m: torch.cholesky_inverse(m + 9 * torch.eye(6)), M),
    "cholesky_solve": (lambda m: torch.cholesky_solve(m, m + 9 * torch.eye(6)), M),
    "cosine_similarity": (F.cosine_similarity, X, Y),
    "cross": (lambda x: torch.linalg.cross(x[:, :3], x[:, 3:], dim=1), X),
    "det": (torch.linalg.det, M),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), X, Y),
    "inverse": (torch.linalg.inv, M),
    "kron": (torch.kron, M, M[:2, :2]),
    "matrix_power": (lambda m: torch.matrix_power(m, 3), M),
    "pairwise_distance": (F.pairwise_distance, X, Y),
    "slogdet": (torch.linalg.slogdet, M),
    "solve": (lambda m, v: torch.linalg.solve(m, v), M, V),
    "solve_triangular": (lambda m: torch.linalg.solve_triangular(
        m + 9 * torch.eye(6), m, upper=True), M),
    "tensordot": (lambda x, y: torch.tensordot(x, y, ([1, 2], [1, 2])), X, Y),
    "trace": (torch.trace, M),
    # networks
    "adaptive_avg_pool2d": (lambda s: F.adaptive_avg_pool2d(s, (4, 3)), S),
    "adaptive_max_pool2d": (lambda s: F.adaptive_max_pool2d(s, (4, 3)), S),
    "affine_grid": (lambda m: F.affine_grid(m[:2, :3][None], [1, 1, 4, 5]), M),
    "cross_entropy": (lambda m: F.cross_entropy(m[:4], IDS), M),
    "embedding_bag": (lambda m: F.embedding_bag(IDS[None], m), M),
    "fft": (torch.fft.rfft, X),
    "fft2": (torch.fft.fft2, X),
    "flex_attention": (lambda x: flex_attention(*[x[None]] * 3), X),
    "flex_attention of functions": (lambda x: flex_attention(
        x[None], x[None, :1], x[None, :1], lambda s, b, h, q, k: s + (h + 1) * (q - k) * 0.1,
        CAUSAL, enable_gqa=True), X),
    "fractional_max_pool2d": (lambda s: F.fractional_max_pool2d(s, 2, output_size=(3, 3)), S),
    "gumbel_softmax": (F.gumbel_softmax, X),
    "huber_loss": (F.huber_loss, X, Y),
    "interpolate bicubic": (lambda s: F.interpolate(s, (5, 14), mode="bicubic"), S),
    "irfft": (lambda x: torch.fft.irfft(torch.complex(x, x), 13), X),
    "istft": (lambda x: torch.istft(torch.complex(x[0, :3], x[1, :3]), 4, window=HANN), X),
    "kl_div": (lambda x, p: F.kl_div(x, p, reduction="batchmean"), X, P),
    "lp_pool2d": (lambda s: F.lp_pool2d(s.abs(), 2, 2), S),
    "max_unpool2d": (lambda s: F.max_unpool2d(
        *F.max_pool2d(s[:, :, :8, :6], 2, return_indices=True), 2), S),
    "mse_loss": (F.mse_loss, X, Y),
    "multi_head_attention": (lambda x: MHA(x, x, x)[0], X),
    "nll_loss": (lambda m: F.nll_loss(m[:4], IDS), M),
    "pad circular": (lambda s: F.pad(s, (2, 1, 1, 2), mode="circular"), S),
    "pixel_unshuffle": (lambda s: F.pixel_unshuffle(s[:, :, :8, :6], 2), S),
    "rfftfreq": (lambda v: v[:4] + torch.fft.rfftfreq(6), V),
    "smooth_l1_loss": (F.smooth_l1_loss, X, Y),
    "spectral convolution": (lambda x, c: torch.fft.irfft2(torch.zeros(
        2, 3, 9, 4, dtype=torch.cfloat).slice_scatter(torch.einsum(
            "bixy,ioxy->boxy", torch.fft.rfft2(x)[..., :5, :], c), 2, 0, 5), s=(9, 7)), S, C),
    "stft": (lambda x: torch.stft(x[0], 4, return_complex=True, window=HANN), X),
    "triplet_margin_loss": (F.triplet_margin_loss, X[0], Y[0], P[0]),
    "upsample trilinear": (lambda s: F.interpolate(s[None], (5, 3, 4), mode="trilinear"), S),
    # torchvision
    "nms": (lambda b: torch.ops.torchvision.nms(b, torch.tensor([0.9, 0.8, 0.7, 0.6]), 0.5), BOXES),
    "roi_align": (lambda s, b: torch.ops.torchvision.roi_align(
        s, torch.cat([torch.zeros(4, 1), b], 1), 0.5, 2, 3, 2, False), S, BOXES),
    "roi_pool": (lambda s, b: torch.ops.torchvision.roi_pool(
        s, torch.cat([torch.zeros(4, 1), b], 1), 0.5, 2, 3)[0], S, BOXES),
    # control flow
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), X),
    "scan": (lambda m: torch.cat(scan(
        lambda c, x: (c * 0.5 + x, c.sum() + x), m[0], m, dim=1, reverse=True)[1:]), M),
    "while_loop": (lambda v: while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), v))[1], V),
}  # fmt: skip
CAUSAL = create_block_mask(lambda b, h, q, k: q > k, None, None, 6, 6, device="cpu")
HANN = torch.hann_window(4)
MHA = nn.MultiheadAttention(8, 2, batch_first=True).eval()


REFUSED = {
    "argwhere": "shape", "bincount": "shape", "masked_select": "shape", "nms": "shape",
    "nonzero": "shape", "unique": "shape", "fractional_max_pool2d": "random",
    "gumbel_softmax": "random",
}  # fmt: skip
"""Why; docs/how-to/run-a-pytorch-model.md explains each."""


def main():
    """Write what is refused or wrong."""
    import warnings

    from tests.importers.torch_programs import Lambda, compare

    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or FUNCTIONS:
        f, *args = FUNCTIONS[name]
        try:
            compare(Lambda(f), tuple(args))
        except Exception as error:
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
            sys.stdout.write(f"{name}: {said[:200]}\n")


if __name__ == "__main__":
    main()
