"""Kernels read the blocks whose layouts they know, and no others."""

from dataclasses import replace

import pytest

from ggsched.errors import PlanError
from ggsched.ir.blocks import Bits
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_0, Q5_1, Q8_0, QUANTIZED_DTYPES
from ggsched.passes import make_plan
from ggsched.topology.model import Topology
from ggsched_kernels import supported_ops
from ggsched_kernels.block_constants import KERNEL_BLOCKS, block_constants, constants_text
from tests.passes.machines import device, machine
from tests.support.verified_plans import verified_plan

KNOWN = {
    Q8_0: {"BLOCK_NBYTES": 34, "CODES_AT": 2, "SCALE_AT": 0, "CODES_I8": 1, "ZERO": 0},
    Q4_0: {"BLOCK_NBYTES": 18, "CODES_AT": 2, "SCALE_AT": 0, "ZERO": 8},
    Q5_1: {
        "BLOCK_NBYTES": 24, "CODES_AT": 8, "SCALE_AT": 0, "FIFTH_AT": 4, "MIN_AT": 2, "ZERO": 0,
    },
    MXFP4: {"BLOCK_NBYTES": 17, "CODES_AT": 1, "SCALE_AT": 0, "CODES_E2M1": 1, "ZERO": 0},
}  # fmt: skip


@pytest.mark.parametrize("dtype", KNOWN, ids=str)
def test_constants_of_types(dtype):
    assert block_constants(dtype.layout) == KNOWN[dtype] | {"BLOCK_ELEMENTS": 32}


def test_devices_declare_the_types_that_kernels_read_and_no_others():
    assert set(KNOWN) <= set(KERNEL_BLOCKS)
    text, ops = constants_text(), supported_ops()
    assert text.count("#endif") == 1
    for dtype in QUANTIZED_DTYPES:
        is_known = dtype in KERNEL_BLOCKS
        assert (f"defined(W_{dtype.name.upper()})" in text) == is_known
        assert (f"mul_mat:{dtype}" in ops) == is_known


def test_kernels_read_all_types():
    assert KERNEL_BLOCKS == QUANTIZED_DTYPES


def changed(dtype, **changes):
    layout = dtype.layout
    return replace(layout, codes=replace(layout.codes, **changes))


@pytest.mark.parametrize(
    "layout",
    [
        changed(Q4_0, parts=(Bits(2, 32, 4),)),  # nibbles one after the other
        changed(Q8_0, zero=3),
        changed(Q5_0, parts=(Q5_0.layout.codes.parts[0], Bits(2, 32, 1, run=4, up=4))),
        replace(Q4_0.layout, scale=MXFP4.layout.scale),
        replace(Q5_1.layout, min=replace(Q5_1.layout.min, sign=-1)),
        replace(Q4_K.layout, sub_mins=None),
        replace(Q4_K.layout, scale=MXFP4.layout.scale),
        changed(IQ4_NL, table=tuple(1.5 * x for x in IQ4_NL.layout.codes.table)),
        changed(Q4_K, parts=(Bits(16, 256, 4, run=4),)),
    ],
)
def test_layouts_that_differ_a_little_have_none(layout):
    assert block_constants(layout) is None


def test_what_no_kernel_reads_goes_to_a_device_that_can():
    g = GraphBuilder()
    w, x = g.weight("w", (8, 32), Q5_0), g.input("x", (1, 32))
    graph = g.build(g.mul_mat(w, x))
    gpu = device("gpu:0", ops=supported_ops() - {"mul_mat:q5_0"})
    plan = verified_plan(graph, machine(gpu, "cpu:0"))
    assert [choice.device for choice in plan.placement.choices] == [1]
    with pytest.raises(PlanError, match="mul_mat:q5_0"):
        make_plan(graph, Topology((gpu,)))
