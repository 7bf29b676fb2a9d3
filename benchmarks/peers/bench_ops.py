"""Single ops on ``cpu`` and in PyTorch, eager, on one thread each.

By the processor time of both, by turns, through ``torch.export``. Sizes are large enough that the
host's part of a run, some tens of microseconds, is small.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ggsched
from benchmarks.measure import best, best_ratio, interleaved
from benchmarks.peers.bench_onnx import threads_of_ours
from benchmarks.peers.installed import reason_missing
from benchmarks.table import Row

ROUNDS = 12
BOUND = "<= 2"

Case = tuple[Callable[..., Any], tuple[Any, ...]]

OF_ONE = (
    "log1p", "log2", "log10", "expm1", "exp2", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "asinh", "acosh", "atanh", "sign", "trunc", "round", "frac", "ceil", "square",
    "sqrt", "reciprocal", "logit", "erfc", "lgamma", "isinf", "isfinite", "nan_to_num", "triu",
    "logical_not", "median", "histc",
)  # fmt: skip
ALONG = (
    "mean", "amin", "prod", "argmin", "logsumexp", "norm", "cumprod", "logcumsumexp", "cummax",
    "softmax", "log_softmax", "var", "all", "any", "sort", "argsort", "cumsum", "amax",
    "argmax",
)  # fmt: skip
OF_TWO = (
    "sub", "mul", "div", "atan2", "hypot", "fmod", "copysign", "maximum", "logaddexp", "eq",
    "ge", "logical_and", "floor_divide", "pow",
)  # fmt: skip
OF_INTS = (
    "mul", "sub", "floor_divide", "remainder", "eq", "maximum", "bitwise_and",
    "bitwise_left_shift", "fmod", "gcd",
)  # fmt: skip
"""Functions of ``torch`` by name: of a tensor, along its rows and its columns, of two, of i64."""


def run() -> list[Row]:
    """Measure each op, or those whose names begin as one of ``OPS=gather,topk``."""
    why = reason_missing("torch")
    if why:
        return [Row("ops", f"not measured: {why}", 0, 0, 0, "")]
    only = tuple(os.environ.get("OPS", "").split(","))
    return [_row(name, *case) for name, case in _cases().items() if name.startswith(only)]


def _row(name: str, f: Callable[..., Any], given: tuple[Any, ...]) -> Row:
    import torch

    class Module(torch.nn.Module):
        def forward(self, *x: Any) -> Any:
            return f(*x)

    module = f if isinstance(f, torch.nn.Module) else Module()
    torch.set_num_threads(1)
    with torch.no_grad(), threads_of_ours(1):
        model = ggsched.from_torch(torch.export.export(module.eval(), given))
        with ggsched.Scheduler(ggsched.open_devices(["cpu:0"]), weights=model.weight) as scheduler:
            arrays = [x.numpy() for x in given]
            sides = {
                "ours": partial(model.run, scheduler, arrays),
                "torch": partial(module, *given),
            }
            took = interleaved(sides, ROUNDS, time.process_time)
    times = " / ".join(f"{1e3 * best(took[side]):.2f}" for side in sides)
    return Row("ops", f"{name} / PyTorch: {times} ms", *best_ratio(*took.values()), bound=BOUND)


def _cases() -> Mapping[str, Case]:
    """Return functions of tensors by name, with their operands."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(4, 256, 1024), torch.randn(4, 256, 1024)
    half, positive, image = x.half(), x.abs() + 0.1, torch.randn(4, 64, 56, 56)
    mask, whole = x > 0, torch.randint(-50, 50, x.shape)
    table, ids = torch.randn(8192, 256), torch.randint(0, 8192, (4096,))
    places = torch.randint(0, 1024, x.shape)
    rows = ids[:, None].expand(4096, 256).contiguous()
    source, grid = torch.randn(4096, 256), torch.rand(4, 56, 56, 2) * 2 - 1
    unary: dict[str, Callable[[Any], Any]] = {
        **{f"x**{n:g}": partial(torch.pow, exponent=n) for n in (2, 3, 4, 0.5, -1, -2, 1.5)},
        "gelu by tanh of x**3": lambda x: (
            0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))
        ),
        "leaky_relu": partial(F.leaky_relu, negative_slope=0.2),
        **{f.__name__: f for f in (
            F.relu, F.relu6, F.elu, F.selu, F.mish, F.hardswish, F.softplus, torch.exp, torch.tanh,
            torch.sigmoid, torch.erf, torch.sin, torch.abs, torch.neg, torch.floor, torch.clone,
            torch.isnan, torch.tril,
        )},
        "clamp": partial(torch.clamp, min=-1, max=1),
        "f32 to f16": lambda x: x.half(),
        "f32 to i64": lambda x: x.long(),
        "f32 to i32": lambda x: x.int(),
        "x > 0": lambda x: x > 0,
        "sum of rows": lambda x: x.sum(-1),
        "sum of columns": lambda x: x.sum(1),
        "max of rows": lambda x: x.amax(-1),
        "mean of squares": lambda x: (x * x).mean(-1, keepdim=True),
        "var": lambda x: x.var(-1),
        "argmax": lambda x: x.argmax(-1),
        "cumsum": lambda x: x.cumsum(-1),
        "softmax": lambda x: x.softmax(-1),
        "log_softmax": lambda x: x.log_softmax(-1),
        "layer_norm": lambda x: F.layer_norm(x, (1024,)),
        "topk 8": lambda x: x.topk(8),
        "topk 50": lambda x: x.topk(50),
        "sort": lambda x: x.sort(-1),
        "flip": lambda x: x.flip(-1),
        "roll": lambda x: x.roll(3, -1),
    }  # fmt: skip
    unary |= {name: getattr(torch, name) for name in OF_ONE}
    for axis, what in ((-1, "rows"), (1, "columns")):
        unary |= {f"{name} of {what}": partial(getattr(torch, name), dim=axis) for name in ALONG}
    ints, square = whole % 13 + 1, torch.randn(16, 64, 64) + 8 * torch.eye(64)
    window = torch.hann_window(400)
    lstm, gru = nn.LSTM(128, 256), nn.GRU(128, 256)
    cases: dict[str, Case] = {name: (f, (x,)) for name, f in unary.items()}
    return cases | {
        "log": (torch.log, (positive,)),
        "rsqrt": (torch.rsqrt, (positive,)),
        "f16 to f32": (lambda x: x.float(), (half,)),
        "i64 to f32": (lambda x: x.float(), (whole,)),
        "bool to f32": (lambda x: x.float(), (mask,)),
        "add": (torch.add, (x, y)),
        "minimum": (torch.minimum, (x, y)),
        "remainder": (torch.remainder, (x, positive)),
        "x > y": (lambda x, y: x > y, (x, y)),
        "where": (torch.where, (mask, x, y)),
        "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), (x, mask)),
        "i64 add": (torch.add, (whole, whole)),
        "prelu": (F.prelu, (image, torch.rand(64))),
        "batch_norm": (nn.BatchNorm2d(64).eval(), (image,)),
        "group_norm": (nn.GroupNorm(8, 64).eval(), (image,)),
        "embedding": (F.embedding, (ids, table)),
        "index_select": (lambda t, i: t.index_select(1, i), (image, torch.arange(63, -1, -1))),
        "gather": (lambda x, i: x.gather(-1, i), (x, places)),
        "scatter": (lambda x, i: x.scatter(-1, i, 1.0), (x, places)),
        "scatter_add": (lambda t, i, s: t.scatter_add(0, i, s), (table, rows, source)),
        "index_add": (lambda t, i, s: t.index_add(0, i, s), (table, ids, source)),
        "index_put": (lambda t, i, s: t.index_put((i,), s), (table, ids, source)),
        "one_hot": (lambda i: F.one_hot(i, 512), (ids % 512,)),
        "grid_sample": (partial(F.grid_sample, align_corners=False), (image, grid)),
        "interpolate": (partial(F.interpolate, scale_factor=2, mode="bilinear"), (image,)),
        "max_pool2d": (partial(F.max_pool2d, kernel_size=2), (image,)),
        "avg_pool2d": (partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1), (image,)),
        "lstm, batch 1": (lstm, (torch.randn(50, 1, 128),)),
        "lstm, batch 4": (lstm, (torch.randn(50, 4, 128),)),
        "lstm, batch 16": (lstm, (torch.randn(50, 16, 128),)),
        "lstm, batch 64": (lstm, (torch.randn(50, 64, 128),)),
        "gru, batch 4": (gru, (torch.randn(50, 4, 128),)),
        "gru, batch 16": (gru, (torch.randn(50, 16, 128),)),
        **{name: (getattr(torch, name), (x, positive)) for name in OF_TWO},
        **{f"i64 {name}": (getattr(torch, name), (whole, ints)) for name in OF_INTS},
        "f16 add": (torch.add, (half, half)),
        "f16 silu": (F.silu, (half,)),
        "transpose": (lambda x: x.transpose(1, 2).contiguous(), (x,)),
        "cat": (lambda x: torch.cat((x, x), -1), (x,)),
        "rfft": (lambda x: torch.fft.rfft(x).abs(), (x,)),
        "fft": (lambda x: torch.fft.fft(x).real, (x,)),
        "stft": (
            lambda x: torch.stft(x, 400, 160, window=window, return_complex=True).abs(),
            (torch.randn(4, 16_000),),
        ),
        "inverse": (torch.inverse, (square,)),
        "solve": (torch.linalg.solve, (square, torch.randn(16, 64, 8))),
        "searchsorted": (lambda x, y: torch.searchsorted(x.sort(-1)[0], y), (x[0], y[0])),
        "bicubic": (partial(F.interpolate, scale_factor=2, mode="bicubic"), (image,)),
    }
