"""A kernel of Triton, for ``race_programs``."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # what has a type is a constant to Triton
def softmax(x_ptr, out_ptr, n, B: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Write the softmax of a row."""
    row, offs = tl.program_id(0), tl.arange(0, B)
    x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * n + offs, e / tl.sum(e, 0), mask=offs < n)
