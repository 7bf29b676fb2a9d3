"""Converters of products, convolutions, pooling, recurrent networks and resizing."""

from typing import Any

from ggsched.ir.tensor import Tensor
from ggsched_import.common.emit import Value
from ggsched_import.onnx.call import Call, converts
from ggsched_import.onnx.ops_elements import cast_to, scaled
from ggsched_import.onnx.ops_layout import sliced, swapped, transposed


@converts("MatMul")
def _matmul(c: Call) -> Value:
    return c.nd("matmul", c.x(), c.x(1))


@converts("Gemm")
def _gemm(c: Call) -> Value:
    beta = c.attr("beta", 1.0)
    if len(c.x().shape) != 2 or len(c.x(1).shape) != 2:
        raise c.bad("needs matrices")
    made = scaled_product(c)
    return c.nd("add", made, scaled(c, c.x(2), beta)) if c.has(2) and beta else made


def scaled_product(c: Call) -> Value:
    """Return ``alpha`` times the product of two inputs, transposed where attributes say so."""
    a, b = (
        swapped(c, c.x(i)) if c.attr(name, False) else c.x(i)
        for i, name in enumerate(("transA", "transB"))
    )
    return scaled(c, c.nd("matmul", a, b), c.attr("alpha", 1.0))


@converts("Einsum")
def _einsum(c: Call) -> Value:
    values = [c.x(i) for i in range(len(c.inputs))]
    return c.nd("einsum", *values, equation=c.need("equation", str))


@converts("Det")
def _det(c: Call) -> Value:
    return c.nd("det", c.x())


def geometry(c: Call, kernel: tuple[int, ...]) -> dict[str, Any]:
    """Return strides, dilations and pads of a convolution or a pool."""
    x = c.x().shape
    n = len(kernel)
    if len(x) != n + 2:
        raise c.bad(f"a kernel of {n} dimensions on {len(x)} axes")
    strides = tuple(c.attr("strides", (1,) * n))
    dilations = tuple(c.attr("dilations", (1,) * n))
    pads = tuple(c.attr("pads", (0,) * 2 * n))
    if not len(strides) == len(dilations) == n or len(pads) != 2 * n:
        raise c.bad("strides, dilations or pads have another number of dimensions")
    if min(*strides, *dilations, *kernel, 1) < 1:
        raise c.bad("strides, dilations and kernel must be positive")
    auto = c.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for i in range(n):
            out = -(-x[2 + i] // strides[i])
            total = max(0, (out - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - x[2 + i])
            small = total // 2
            before.append(small if auto == "SAME_UPPER" else total - small)
            after.append(total - before[-1])
        pads = (*before, *after)
    elif auto == "VALID":
        pads = (0,) * 2 * n
    return {"strides": strides, "dilations": dilations, "pads": pads}


@converts("Conv")
def conv(c: Call) -> Value:
    """Return a convolution with the bias of input 2, if it is there."""
    w = c.x(1)
    kernel = tuple(w.shape[2:])
    if "kernel_shape" in c.attrs and tuple(c.attr("kernel_shape", ())) != kernel:
        raise c.bad("kernel_shape is not that of the weights")
    values = [c.x(), w, *([c.x(2)] if c.has(2) else [])]
    group = c.attr("group", 1)
    return c.nd("conv", *values, **geometry(c, kernel), group=group, bias=len(values) > 2)


@converts("ConvTranspose")
def _conv_transpose(c: Call) -> Value:
    x, w = c.x(), c.x(1)
    kernel = tuple(w.shape[2:])
    n = len(kernel)
    strides, dilations = tuple(c.attr("strides", (1,) * n)), tuple(c.attr("dilations", (1,) * n))
    pads = tuple(c.attr("pads", (0,) * 2 * n))
    more = tuple(c.attr("output_padding", (0,) * n))
    if not len(strides) == len(dilations) == len(more) == n or len(pads) != 2 * n:
        raise c.bad("strides, dilations, pads or output_padding have other numbers of dimensions")
    if len(x.shape) != n + 2:
        raise c.bad(f"a kernel of {n} dimensions on {len(x.shape)} axes")
    auto = c.attr("auto_pad", "NOTSET")
    wanted = tuple(c.attr("output_shape", ()))
    full = [
        (x.shape[2 + i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 + more[i]
        for i in range(n)
    ]
    if not wanted and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(x.shape[2 + i] * strides[i] for i in range(n))
    if wanted:
        total = [f - w for f, w in zip(full, wanted[-n:], strict=True)]
        small = [t // 2 if t > 0 else 0 for t in total]
        large = [t - s for t, s in zip(total, small, strict=True)]
        # SAME_UPPER puts the odd one at the end; NOTSET, as onnxruntime does it, too.
        pads = (*large, *small) if auto == "SAME_LOWER" else (*small, *large)
    elif auto == "VALID":
        pads = (0,) * 2 * n
    values = [x, w, *([c.x(2)] if c.has(2) else [])]
    return c.nd(
        "conv_transpose",
        *values,
        strides=strides,
        dilations=dilations,
        pads=pads,
        more=more,
        group=c.attr("group", 1),
        bias=len(values) > 2,
    )


@converts("MaxPool", "AveragePool", "LpPool")
def _pool(c: Call) -> Value | tuple[Value, ...]:
    x, kernel = c.x(), tuple(c.need("kernel_shape", list))
    how = geometry(c, kernel)
    extra = _ceiled(c, kernel, how) if c.attr("ceil_mode", False) else (0,) * len(kernel)
    n = len(kernel)
    how["pads"] = (*how["pads"][:n], *(p + e for p, e in zip(how["pads"][n:], extra, strict=True)))
    if c.op == "AveragePool":
        counts = c.attr("count_include_pad", False)
        return c.nd("average_pool", x, kernel=kernel, **how, extra=extra, counts_pads=counts)
    if c.op == "LpPool":
        return c.nd("lp_pool", x, kernel=kernel, **how, p=c.attr("p", 2))
    made = c.nd("max_pool", x, kernel=kernel, **how)
    if c.outputs == 1:
        return made
    columns_first = c.attr("storage_order", False)
    return made, c.nd("max_pool_indices", x, kernel=kernel, **how, columns_first=columns_first)


def _ceiled(c: Call, kernel: tuple[int, ...], how: dict[str, Any]) -> tuple[int, ...]:
    """Return the pads at the end that make the last window fit, if it begins inside."""
    n = len(kernel)
    extra = []
    for i, m in enumerate(c.x().shape[2:]):
        pads, stride = how["pads"], how["strides"][i]
        room = m + pads[i] + pads[n + i] - how["dilations"][i] * (kernel[i] - 1) - 1
        out = -(-room // stride) + 1
        if (out - 1) * stride >= m + pads[i]:
            out -= 1
        extra.append(max(0, (out - 1) * stride - room))
    return tuple(extra)


@converts("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(c: Call) -> Value:
    x = c.x()
    axes = tuple(range(2, len(x.shape)))
    if c.op == "GlobalLpPool":
        p = c.attr("p", 2)
        if p == 2:
            return c.nd("reduce_l2", x, axes=axes, keepdims=True)
        power = c.nd("pow", c.nd("abs", x), c.like(p, x))
        total = c.nd("reduce_sum", power, axes=axes, keepdims=True)
        return c.nd("pow", total, c.like(1 / p, x))
    name = "reduce_mean" if c.op == "GlobalAveragePool" else "reduce_max"
    return c.nd(name, x, axes=axes, keepdims=True)


@converts("LSTM", "GRU", "RNN")
def _recurrent(c: Call) -> tuple[Value | None, ...]:
    if c.attr("activation_alpha", ()) or c.attr("activation_beta", ()):
        raise c.bad("activations with parameters are not supported")
    x, layout = c.x(), c.attr("layout", False)
    x = transposed(c, x, (1, 0, 2)) if layout else x
    kind = c.op.lower()
    values, has = [x, c.x(1), c.x(2)], {}
    optional = ("bias", "lengths", "h0", "c0", "peepholes")[: 5 if kind == "lstm" else 3]
    for i, name in enumerate(optional, start=3):
        value = c.maybe(i)
        has[name] = value is not None
        if value is not None:
            swaps = layout and name in ("h0", "c0")
            values.append(transposed(c, value, (1, 0, 2)) if swaps else value)
    names = c.attr("activations", ())
    how: dict[str, Any] = {
        "directions": c.attr("direction", "forward"),
        "activations": ",".join(str(n).lower() for n in names),
        "clip": c.attr("clip", 0.0),
    }
    if kind == "lstm":
        how["input_forget"] = c.attr("input_forget", False)
    if kind == "gru":
        how["reset_after"] = c.attr("linear_before_reset", False)
    made = c.nd(kind, *values, **how, **has)
    steps = x.shape[0]
    every = _steps(c, made, 0, steps)
    found = [transposed(c, every, (2, 0, 1, 3) if layout else (0, 1, 2, 3))]
    for at in range(steps, made.shape[0]):
        state = c.emit.reshape(_steps(c, made, at, at + 1), made.shape[1:])
        found.append(transposed(c, state, (1, 0, 2)) if layout else state)
    return tuple(found)


def _steps(c: Call, x: Value, start: int, stop: int) -> Value:
    """Return some of the first axis: a view, for it lies together."""
    if isinstance(x, Tensor):
        return c.emit.g.rows(x, start, stop)
    return sliced(c, x, {0: (start, stop, 1)})


@converts("GridSample")
def _grid_sample(c: Call) -> Value:
    mode = c.attr("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    corners = c.attr("align_corners", False)
    padding = c.attr("padding_mode", "zeros")
    grid = cast_to(c, c.x(1), c.x().dtype.name)
    return c.nd("grid_sample", c.x(), grid, mode=mode, padding=padding, corners=corners)
