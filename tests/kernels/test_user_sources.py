"""Kernels around functions of user-defined ops, in both dialects, and their arguments."""

from types import SimpleNamespace

import pytest

from ggsched.backend.program import BoundNode, Operand
from ggsched.errors import UsageError
from ggsched.ir.dtype import BF16, F32
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import contiguous_strides
from ggsched.ir.user_ops import SourceKernel
from ggsched_kernels import GPU, SCRATCH, lower_nodes, source
from tests.backends.user_ops import AFFINE, registered
from tests.kernels.nvrtc import ARCHS, NEEDS_BINDINGS, compiler


def operand(backend, *shape, offset=0, dtype=F32, gap=0):
    device = SimpleNamespace(facts=SimpleNamespace(backend=backend))
    strides = contiguous_strides(dtype, (*shape[:-1], shape[-1] + gap))
    buffer = SimpleNamespace(nbytes=1 << 20, device=device)
    return Operand(buffer, offset, 4096, dtype, shape, strides)


def node(backend, **changes):
    x = operand(backend, 5, 8, **changes)
    w, out = operand(backend, 8, offset=64), operand(backend, 5, 8, offset=512)
    params = OPS["affine"].full({"gain": 0.5})
    return BoundNode(0, "affine", (x, w), out, params, "n0 affine")


@NEEDS_BINDINGS
@pytest.mark.parametrize("arch", ARCHS)
def test_cuda_compiles(arch):
    from ggsched_cuda_kernels.sources import options_for, text_of

    with registered("affine", AFFINE):
        (call,) = lower_nodes([node("cuda")], GPU).calls
        code = compiler().compiles(text_of(call.source), options_for(arch, call.defines))
    assert call.kernel.encode() in code


@pytest.mark.parametrize("dialect", ["opencl", "cuda"])
def test_arguments(dialect):
    """Memory comes with its offset; sizes are 64-bit, parameters 32-bit."""
    with registered("affine", AFFINE):
        made = node(dialect)
        lowered = lower_nodes([made], GPU)
        text = source("user-affine", dialect)
    (call,) = lowered.calls
    x, at_x, w, at_w, out, at_out, n, k, gain, shift = call.args
    assert [x, w, out] == [o.buffer for o in (*made.inputs, made.output)]
    assert [int.from_bytes(a, "little") for a in (at_x, at_w, at_out, n, k)] == [0, 64, 512, 40, 8]
    assert (gain, shift) == (b"\x00\x00\x00\x3f", b"\x00" * 4)
    assert call.groups == (1, 1, 1)
    assert text.count("ggsched_user_op") == 1


def test_strided_operands_are_copied():
    with registered("affine", AFFINE):
        lowered = lower_nodes([node("opencl", gap=3)], GPU)
        assert [c.kernel for c in lowered.calls] == ["copy_f32", "ggsched_user_op"]
        assert lowered.calls[1].args[0] is SCRATCH
        assert lowered.memory[SCRATCH] >= 5 * 8 * 4


def test_what_cannot_be_copied_is_refused():
    with (
        registered("affine", AFFINE, operands=("x:bf16", "w")),
        pytest.raises(UsageError, match="strided operand of bf16"),
    ):
        lower_nodes([node("opencl", gap=1, dtype=BF16)], GPU)


def test_another_source_is_another_program():
    def defines():
        return lower_nodes([node("opencl")], GPU).calls[0].defines

    with registered("affine", AFFINE):
        first = defines()
    other = SourceKernel("/* new */" + AFFINE["kernels"]["opencl"].source, "affine", ("x", "out"))
    with registered("affine", AFFINE, kernels={"opencl": other}):
        assert defines() != first
