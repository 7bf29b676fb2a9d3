"""Converters of ops that move elements."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ggsched.ir.dtype import dtype_by_name
from ggsched_import.common.emit import Const, Value
from ggsched_import.torch.call import Call, Operand, converts

MAX_CONSTANT: int = 1 << 28
"""Elements of a constant that a program can request by its shape."""


@converts("alias", "clone", "contiguous", "detach", "detach_", "lift_fresh_copy", "lift_fresh",
          "dropout", "feature_dropout", "alias_copy")  # fmt: skip
def _identity(c: Call, self: Value, p: float = 0.0, train: Any = False, **_: Any) -> Value:
    if "dropout" in c.name and train and p:
        raise random_numbers(c)
    return self


@converts("native_dropout")
def _native_dropout(c: Call, input: Value, p: float, train: Any = None) -> list[Value]:
    if train is not False and p:
        raise random_numbers(c)
    return [input, filled(c, input.shape, True, "bool")]


def random_numbers(c: Call) -> Exception:
    """Return the error for what a plan cannot repeat."""
    return c.bad(
        "random numbers are not supported", hint="call model.eval() before the export, or pass them"
    )


@converts("rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli",
          "normal_functional", "multinomial", "uniform")  # fmt: skip
def _random(c: Call, *_: Any, **__: Any) -> Value:
    raise random_numbers(c)


@converts("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")
def _view(c: Call, self: Value, size: Any, *_: Any) -> Value:
    if isinstance(size, str):
        raise c.bad("elements cannot be read as another type")
    return c.reshape(self, size)


@converts("flatten")
def _flatten(c: Call, self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    n = len(self.shape)
    a, b = c.axis(start_dim, n), c.axis(end_dim, n)
    return c.reshape(self, (*self.shape[:a], prod(self.shape[a : b + 1]), *self.shape[b + 1 :]))


@converts("unflatten")
def _unflatten(c: Call, self: Value, dim: int, sizes: Sequence[int]) -> Value:
    a = c.axis(dim, len(self.shape))
    return c.reshape(self, (*self.shape[:a], *sizes, *self.shape[a + 1 :]))


@converts("permute", "permute_copy")
def _permute(c: Call, self: Value, dims: Sequence[int]) -> Value:
    n = len(self.shape)
    return c.permute(self, [c.axis(d, n) for d in dims])


@converts("transpose", "transpose_copy")
def _transpose(c: Call, self: Value, dim0: int, dim1: int) -> Value:
    n = len(self.shape)
    return c.swap(self, c.axis(dim0, n), c.axis(dim1, n)) if n else self


@converts("t")
def _t(c: Call, self: Value) -> Value:
    return c.swap(self) if len(self.shape) == 2 else self


@converts("squeeze", "squeeze_copy")
def _squeeze(c: Call, self: Value, dim: Any = None) -> Value:
    gone = c.axes(dim, len(self.shape)) if dim != [] else ()
    kept = [n for i, n in enumerate(self.shape) if n != 1 or i not in gone]
    return c.reshape(self, kept)


@converts("unsqueeze", "unsqueeze_copy")
def _unsqueeze(c: Call, self: Value, dim: int) -> Value:
    a = c.axis(dim, len(self.shape) + 1)
    return c.reshape(self, (*self.shape[:a], 1, *self.shape[a:]))


@converts("expand", "expand_copy")
def _expand(c: Call, self: Value, size: Sequence[int], implicit: bool = False) -> Value:
    lead = len(size) - len(self.shape)
    full = [self.shape[i - lead] if n == -1 else n for i, n in enumerate(size)]
    return c.expand(self, full)


@converts("expand_as")
def _expand_as(c: Call, self: Value, other: Value) -> Value:
    return c.expand(self, other.shape)


@converts("repeat", "tile")
def _repeat(c: Call, self: Value, repeats: Sequence[int]) -> Value:
    n = max(len(repeats), len(self.shape))
    counts = (1,) * (n - len(repeats)) + tuple(repeats)
    x = c.reshape(self, (*(1,) * (n - len(self.shape)), *self.shape))
    return x if set(counts) <= {1} else c.nd("tile", x, repeats=counts)


@converts("repeat_interleave.self_int")
def _interleave(c: Call, self: Value, repeats: int, dim: Any = None, **_: Any) -> Value:
    x = c.reshape(self, (-1,)) if dim is None else self
    a = c.axis(0 if dim is None else dim, len(x.shape))
    wide = c.reshape(x, (*x.shape[: a + 1], 1, *x.shape[a + 1 :]))
    full = (*x.shape[: a + 1], repeats, *x.shape[a + 1 :])
    return c.reshape(c.expand(wide, full), (*x.shape[:a], x.shape[a] * repeats, *x.shape[a + 1 :]))


@converts("cat", "concat", "concatenate")
def _cat(c: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    rank = max(len(t.shape) for t in tensors)
    # An empty tensor of one axis is left out, whatever the others are.
    values = c.joined(*tensors)
    real = [v for v in values if len(v.shape) == rank]
    return c.concat(real, c.axis(dim, rank))


@converts("stack")
def _stack(c: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = c.axis(dim, len(tensors[0].shape) + 1)
    return c.concat([_unsqueeze(c, v, axis) for v in c.joined(*tensors)], axis)


@converts("split_with_sizes", "split_with_sizes_copy", "split.sizes")
def _split_sizes(c: Call, self: Value, split_sizes: Sequence[int], dim: int = 0) -> list[Any]:
    axis, at = c.axis(dim, len(self.shape)), 0
    found: list[Any] = []
    for i, n in enumerate(split_sizes):
        found.append(c.slice(self, axis, at, at + n) if c.wants(i) else None)
        at += n
    return found


@converts("split.Tensor", "split_copy")
def _split(c: Call, self: Value, split_size: int, dim: int = 0) -> list[Any]:
    n = self.shape[c.axis(dim, len(self.shape))]
    return _split_sizes(c, self, [min(split_size, n - i) for i in range(0, n, split_size)], dim)


@converts("chunk")
def _chunk(c: Call, self: Value, chunks: int, dim: int = 0) -> list[Any]:
    n = self.shape[c.axis(dim, len(self.shape))]
    return _split(c, self, max(1, -(-n // chunks)), dim)


@converts("unbind", "unbind_copy")
def _unbind(c: Call, self: Value, dim: int = 0) -> list[Any]:
    axis = c.axis(dim, len(self.shape))
    return [select(c, self, axis, i) if c.wants(i) else None for i in range(self.shape[axis])]


@converts("select", "select_copy")
def _select(c: Call, self: Value, dim: int, index: int) -> Value:
    axis = c.axis(dim, len(self.shape))
    return select(c, self, axis, c.axis(index, self.shape[axis]))


def select(c: Call, x: Value, axis: int, index: int) -> Value:
    """Take one place along an axis, which goes."""
    part = c.slice(x, axis, index, index + 1)
    return c.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


@converts("slice", "slice_copy")
def _slice(
    c: Call, self: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    axis = c.axis(dim, len(self.shape))
    return c.slice(self, axis, *slice(start, end, step).indices(self.shape[axis]))


@converts("narrow", "narrow_copy")
def _narrow(c: Call, self: Value, dim: int, start: int, length: int) -> Value:
    axis = c.axis(dim, len(self.shape))
    first = start + self.shape[axis] if start < 0 else start
    return c.slice(self, axis, first, first + length)


@converts("flip")
def _flip(c: Call, self: Value, dims: Sequence[int]) -> Value:
    x = self
    for d in dims:
        axis = c.axis(d, len(x.shape))
        n = x.shape[axis]
        x = c.slice(x, axis, n - 1, -1, -1) if n > 1 else x
    return x


@converts("roll")
def _roll(c: Call, self: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts = [shifts] if isinstance(shifts, int) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    x = self if dims else c.reshape(self, (-1,))
    for shift, d in zip(shifts, dims or [0], strict=True):
        axis = c.axis(d, len(x.shape))
        n = x.shape[axis]
        at = (-shift) % n if n else 0
        if at:
            x = c.concat([c.slice(x, axis, at, n), c.slice(x, axis, 0, at)], axis)
    return c.reshape(x, self.shape)


@converts("constant_pad_nd")
def _pad(c: Call, self: Value, pad: Sequence[int], value: float = 0) -> Value:
    pads = _pads(self, pad)
    return c.nd("pad", self, c.const(value, self.dtype.name), pads=pads, value=True)


def _pads(x: Value, pad: Sequence[int]) -> tuple[int, ...]:
    """Return all befores and all afters of PyTorch's pairs, which begin at the last axis."""
    n = len(x.shape)
    befores, afters = [0] * n, [0] * n
    for i in range(len(pad) // 2):
        befores[n - 1 - i], afters[n - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return (*befores, *afters)


@converts("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
          "replication_pad2d", "replication_pad3d")  # fmt: skip
def _pad_like(c: Call, self: Value, padding: Sequence[int]) -> Value:
    mode = "reflect" if c.name.startswith("reflection") else "edge"
    return c.nd("pad", self, pads=_pads(self, padding), mode=mode)


@converts("pixel_shuffle")
def _shuffle(c: Call, self: Value, upscale_factor: int) -> Value:
    r = upscale_factor
    *lead, channels, h, w = self.shape
    x = c.reshape(self, (prod(lead), channels // r**2, r, r, h, w))
    x = c.permute(x, (0, 1, 4, 2, 5, 3))
    return c.reshape(x, (*lead, channels // r**2, h * r, w * r))


@converts("pixel_unshuffle")
def _unshuffle(c: Call, self: Value, downscale_factor: int) -> Value:
    r = downscale_factor
    *lead, channels, h, w = self.shape
    x = c.reshape(self, (prod(lead), channels, h // r, r, w // r, r))
    x = c.permute(x, (0, 1, 3, 5, 2, 4))
    return c.reshape(x, (*lead, channels * r**2, h // r, w // r))


@converts("tril", "triu")
def _triangle(c: Call, self: Value, diagonal: int = 0) -> Value:
    if self.dtype.name == "bool":
        made = c.nd("trilu", c.cast(self, "u8"), k=diagonal, upper=c.name == "triu")
        return c.cast(made, "bool")
    return c.nd("trilu", self, k=diagonal, upper=c.name == "triu")


@converts("copy")
def _copy(c: Call, self: Value, src: Value, *_: Any) -> Value:
    return c.expand(c.cast(src, self.dtype.name), self.shape)


# --- constants ----------------------------------------------------------------------------------


def filled(c: Call, shape: Sequence[int], value: Operand, kind: str) -> Value:
    """Return one element in a shape: a number as a constant, if it is not too large."""
    if any(n < 0 for n in shape) or prod(shape) > MAX_CONSTANT:
        raise c.bad(f"a constant of shape {list(shape)} is too large")
    if isinstance(value, (bool, int, float)):
        return Const(np.full(tuple(shape), value, dtype_by_name(kind).host))
    return c.expand(c.cast(value, kind), shape)


@converts("full")
def _full(c: Call, size: Any, fill_value: Operand, dtype: str | None = None, **_: Any) -> Value:
    return filled(c, size, fill_value, dtype or default_kind(fill_value))


def default_kind(value: Operand) -> str:
    """Return the type that PyTorch gives a number."""
    if isinstance(value, bool):
        return "bool"
    return "i64" if isinstance(value, int) else "f32"


@converts("full_like")
def _full_like(
    c: Call, self: Value, fill_value: Operand, dtype: str | None = None, **_: Any
) -> Value:
    return filled(c, self.shape, fill_value, dtype or self.dtype.name)


@converts("fill")
def _fill(c: Call, self: Value, value: Operand) -> Value:
    return filled(c, self.shape, value, self.dtype.name)


@converts("zeros", "ones", "empty", "empty_strided", "empty_permuted")
def _zeros(c: Call, size: Sequence[int], *_: Any, dtype: str | None = None, **__: Any) -> Value:
    return filled(c, size, int(c.name == "ones"), dtype or "f32")


@converts("zeros_like", "ones_like", "empty_like")
def _zeros_like(c: Call, self: Value, *_: Any, dtype: str | None = None, **__: Any) -> Value:
    return filled(c, self.shape, int(c.name == "ones_like"), dtype or self.dtype.name)


@converts("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided")
def _new(c: Call, self: Value, size: Any, *args: Any, dtype: Any = None, **_: Any) -> Value:
    value = args[0] if c.name == "new_full" else int(c.name == "new_ones")
    return filled(c, size, value, dtype or self.dtype.name)


@converts("scalar_tensor")
def _scalar(c: Call, s: Operand, dtype: str | None = None, **_: Any) -> Value:
    return c.value(s, dtype or "f32")


@converts("arange")
def _arange(c: Call, *args: Any, dtype: str | None = None, **given: Any) -> Value:
    start, end, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}[len(args)]
    step = given.get("step", step)
    whole = all(isinstance(v, int) for v in (start, end, step))
    kind = dtype or ("i64" if whole else "f32")
    if not step or abs((end - start) / step) > MAX_CONSTANT:
        raise c.bad(f"a range from {start} to {end} in steps of {step} is too large")
    return Const(np.arange(start, end, step).astype(dtype_by_name(kind).host))


@converts("linspace")
def _linspace(c: Call, start: float, end: float, steps: int, dtype: Any = None, **_: Any) -> Value:
    filled(c, (steps,), 0, "bool")
    return Const(np.linspace(start, end, steps).astype(dtype_by_name(dtype or "f32").host))


@converts("fft_fftfreq", "fft_rfftfreq")
def _frequencies(c: Call, n: int, d: float = 1.0, *, dtype: Any = None, **_: Any) -> Value:
    filled(c, (n,), 0, "bool")
    made = (np.fft.fftfreq if c.name == "fft_fftfreq" else np.fft.rfftfreq)(n, d)
    return Const(made.astype(dtype_by_name(dtype or "f32").host))


@converts("eye")
def _eye(c: Call, n: int, m: Any = None, *_: Any, dtype: Any = None, **__: Any) -> Value:
    columns = m if isinstance(m, int) else n
    filled(c, (n, columns), 0, "bool")
    return Const(np.eye(n, columns, dtype=dtype_by_name(dtype or "f32").host))


@converts("tril_indices", "triu_indices")
def _triangle_indices(
    c: Call, row: int, col: int, offset: int = 0, *, dtype: Any = None, **_: Any
) -> Value:
    filled(c, (row, col), 0, "bool")
    places = np.stack(getattr(np, c.name)(row, offset, col))
    return Const(places.astype(dtype_by_name(dtype or "i64").host))
