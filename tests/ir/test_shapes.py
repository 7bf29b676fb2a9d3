"""Type and shape rules of each op: small tables of what fits and of what does not."""

import pytest

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q8_0, DType
from ggsched.ir.ops import OPS, op_by_name
from ggsched.ops.elementwise import BINARY, GATED, UNARY


def tensors(specs):
    """Make operands from (shape) or (shape, dtype); each in a state, so that all is writable."""
    g = GraphBuilder()
    pairs = [s if s and isinstance(s[-1], DType) else (s, F32) for s in specs]
    return g, [g.state(f"t{i}", shape, dtype) for i, (shape, dtype) in enumerate(pairs)]


def i32(*shape):
    return shape, I32


STATES = ((2, 6, 4, 8), (5, 3, 4), (5, 3, 4), (5, 6, 8))
FITS = [
    ("get_rows", [(5, 4), i32(3)], {}, F32, (3, 4)),
    ("get_rows", [((5, 32), MXFP4), i32(2, 3)], {}, F32, (2, 3, 32)),
    ("get_rows", [((5, 4), I32), i32()], {}, I32, (4,)),
    ("get_rows", [(2, 5, 4), i32(2, 3)], {}, F32, (2, 3, 4)),
    ("set_rows", [(5, 4), (2, 4), i32(2)], {}, F32, (5, 4)),
    ("set_rows", [((5, 4), F16), (5, 4), i32(5)], {}, F16, (5, 4)),
    ("mul_mat", [(3, 4), (2, 4)], {}, F32, (2, 3)),
    ("mul_mat", [((3, 32), Q8_0), (5, 2, 32)], {}, F32, (5, 2, 3)),
    ("mul_mat", [(2, 3, 4), (6, 2, 4)], {}, F32, (6, 2, 3)),
    ("mul_mat", [((3, 4), BF16), (0, 4)], {}, F32, (0, 3)),
    ("mul_mat_id", [(8, 3, 4), (2, 1, 4), i32(2, 5)], {}, F32, (2, 5, 3)),
    ("mul_mat_id", [(8, 3, 4), (2, 5, 4), i32(2, 5)], {}, F32, (2, 5, 3)),
    ("add", [(2, 3), (3,)], {}, F32, (2, 3)),
    ("div", [(2, 3), (2, 1)], {}, F32, (2, 3)),
    ("mul", [(2, 3), ()], {}, F32, (2, 3)),
    ("add_id", [(2, 5, 3), (8, 3), i32(2, 5)], {}, F32, (2, 5, 3)),
    ("scale", [()], {"scale": 2.0}, F32, ()),
    ("rms_norm", [(2, 3)], {}, F32, (2, 3)),
    ("rope", [(2, 3, 4), i32(2)], {"n_dims": 4}, F32, (2, 3, 4)),
    ("rope", [(2, 3, 4), i32(2), (1,)], {"n_dims": 2, "freq_factors": True}, F32, (2, 3, 4)),
    ("soft_max", [(2, 3)], {}, F32, (2, 3)),
    ("soft_max", [(2, 3, 4), (3, 4), (2,)], {"mask": True, "sinks": True}, F32, (2, 3, 4)),
    ("soft_max", [(2, 3, 4), (2,)], {"sinks": True}, F32, (2, 3, 4)),
    ("attention", [(7, 2, 4), (7, 2, 8), (3, 6, 4)], {}, F32, (3, 6, 8)),
    ("attention", [((7, 2, 4), BF16), ((7, 2, 4), BF16), (0, 2, 4)], {}, F32, (0, 2, 4)),
    (
        "attention",
        [((7, 2, 4), F16), ((7, 2, 4), F16), (3, 6, 4), (3, 7), (6,), i32(3, 2)],
        {"mask": True, "sinks": True, "bounds": True, "soft_cap": 30.0},
        F32,
        (3, 6, 4),
    ),
    ("short_conv", [(2, 3, 8), (5, 8), (8, 4), i32(5), i32(5)], {}, F32, (11, 8)),
    ("short_conv", [(1, 1, 8), (0, 8), (8, 2), i32(0), i32(0)], {}, F32, (1, 8)),
    ("linear_attention", [*STATES, (5, 6), i32(5), i32(5)], {}, F32, (6 * 8 * (5 + 2 * 4),)),
    (
        "linear_attention",
        [*STATES, (5, 6), i32(5), i32(5), (5, 6)],
        {"beta": True, "tiled": True},
        F32,
        (624,),
    ),
    ("swiglu", [(2, 3), (2, 3)], {}, F32, (2, 3)),
    ("argsort", [(2, 3)], {}, I32, (2, 3)),
    ("top_k", [(2, 3)], {"k": 2}, I32, (2, 2)),
    ("sum_rows", [(2, 3)], {}, F32, (2, 1)),
    ("cpy", [((2, 32), Q8_0), ((2, 32), F16)], {}, F16, (2, 32)),
    ("cpy", [i32(2), i32(2)], {}, I32, (2,)),
    ("cont", [((2, 3), F16)], {}, F16, (2, 3)),
    ("cont", [((2, 3), F16)], {"dtype": "f32"}, F32, (2, 3)),
    ("concat", [(2, 3), (2, 4)], {"axis": 1}, F32, (2, 7)),
    ("concat", [i32(2), i32(1)], {}, I32, (3,)),
    ("repeat", [(2, 3)], {"shape": (4, 3)}, F32, (4, 3)),
]

REFUSED = [
    ("get_rows", [(5, 4), (3,)], {}, "operand 1 must be i32"),
    ("get_rows", [(4,), i32(3)], {}, "needs rows"),
    ("get_rows", [(2, 5, 4), i32(3, 3)], {}, "batch axes"),
    ("get_rows", [(2, 5, 4), i32()], {}, "batch axes"),
    ("get_rows", [(5, 4), i32(1, 1, 1, 1)], {}, "at most 4 axes"),
    ("set_rows", [((5, 32), MXFP4), (2, 32), i32(2)], {}, "must be f32, f16, bf16 or q8_0"),
    ("set_rows", [(5, 4), ((2, 4), F16), i32(2)], {}, "operand 1 must be f32"),
    ("set_rows", [(5, 4), (6, 4), i32(6)], {}, "T <= R"),
    ("set_rows", [(5, 4), (2, 3), i32(2)], {}, "src"),
    ("set_rows", [(5, 4), (2, 4), i32(1, 2)], {}, "needs dst"),
    ("mul_mat", [(3, 4), (2, 5)], {}, "needs w"),
    ("mul_mat", [((3, 4), I32), (2, 4)], {}, "float type"),
    ("mul_mat", [(3, 4), ((2, 4), F16)], {}, "operand 1 must be f32"),
    ("mul_mat", [(4, 3, 4), (6, 2, 4)], {}, "multiple of w's"),
    ("mul_mat", [(2, 3, 4), (2, 4)], {}, "multiple of w's"),
    ("mul_mat", [(0, 3, 4), (2, 2, 4)], {}, "multiple of w's"),
    ("mul_mat", [(4,), (2, 4)], {}, "needs w"),
    ("mul_mat_id", [(8, 3, 4), (2, 2, 4), i32(2, 5)], {}, "T, U or 1"),
    ("mul_mat_id", [(3, 4), (2, 1, 4), i32(2, 5)], {}, "T, U or 1"),
    ("add", [(3,), (2, 3)], {}, "does not broadcast"),
    ("add", [(2, 3), (2,)], {}, "does not broadcast"),
    ("add", [((2,), F16), (2,)], {}, "operand 0 must be f32"),
    ("add_id", [(2, 5, 3), (8, 4), i32(2, 5)], {}, "needs x"),
    ("rms_norm", [()], {}, "at least one axis"),
    ("norm", [()], {}, "at least one axis"),
    ("argsort", [()], {}, "at least one axis"),
    ("sum_rows", [()], {}, "at least one axis"),
    ("soft_max", [()], {}, "at least one axis"),
    ("rope", [(2, 3, 4), i32(2)], {"n_dims": 3}, "even"),
    ("rope", [(2, 3, 4), i32(2)], {"n_dims": 6}, "at most D"),
    ("rope", [(2, 3, 4), i32(2)], {}, "n_dims=0"),
    ("rope", [(2, 3, 4), i32(3)], {"n_dims": 4}, "positions"),
    ("rope", [(2, 3, 4), i32(2)], {"n_dims": 4, "pairing": "odd"}, "pairing"),
    ("rope", [(2, 3, 4), i32(2)], {"n_dims": 4, "base": 0.0}, "positive"),
    ("rope", [(2, 3, 4), i32(2)], {"n_dims": 4, "ext_factor": 1.0}, "n_ctx_orig"),
    ("rope", [(2, 3, 4), i32(2), (2,)], {"n_dims": 2, "freq_factors": True}, "freq_factors"),
    ("soft_max", [(2, 3), (3, 2)], {"mask": True}, "mask"),
    ("soft_max", [(2, 3), (2,)], {"sinks": True}, "sinks"),
    ("soft_max", [(2, 3, 4), (3,)], {"sinks": True}, "sinks"),
    ("attention", [(7, 2, 4), ((7, 2, 4), F16), (3, 6, 4)], {}, "one type"),
    ("attention", [((7, 2, 32), MXFP4), ((7, 2, 32), MXFP4), (3, 6, 32)], {}, "bf16 or q8_0"),
    ("attention", [(7, 2, 4), (7, 2, 4), ((3, 6, 4), F16)], {}, "operand 2 must be f32"),
    ("attention", [(7, 2, 4), (6, 2, 4), (3, 6, 4)], {}, "needs k"),
    ("attention", [(7, 2, 4), (7, 2, 4), (3, 6, 8)], {}, "needs k"),
    ("attention", [(7, 2, 4), (7, 2, 4), (3, 5, 4)], {}, "multiple of G"),
    ("attention", [(0, 2, 4), (0, 2, 4), (3, 6, 4)], {}, "N, G, D >= 1"),
    ("attention", [(7, 2, 4), (7, 2, 4), (3, 6, 4)], {"soft_cap": -1.0}, "soft_cap"),
    ("attention", [(7, 2, 4), (7, 2, 4), (3, 6, 4), (2, 7)], {"mask": True}, "broadcast"),
    ("attention", [(7, 2, 4), (7, 2, 4), (3, 6, 4), (2,)], {"sinks": True}, "sinks"),
    ("attention", [(7, 2, 4), (7, 2, 4), (3, 6, 4), i32(3)], {"bounds": True}, "bounds"),
    ("short_conv", [(2, 3), (5, 8), (8, 4), i32(5), i32(5)], {}, "needs state"),
    ("short_conv", [(2, 0, 8), (5, 8), (8, 1), i32(5), i32(5)], {}, "K >= 2"),
    ("short_conv", [(2, 3, 8), (5, 7), (8, 4), i32(5), i32(5)], {}, "needs state"),
    ("short_conv", [(2, 3, 8), (5, 8), (8, 3), i32(5), i32(5)], {}, "needs w"),
    ("short_conv", [(2, 3, 8), (5, 8), (8, 4), i32(4), i32(5)], {}, "slots and positions"),
    ("short_conv", [(2, 3, 8), (5, 8), (8, 4), i32(5), (5,)], {}, "operand 4 must be i32"),
    ("linear_attention", [*STATES[:3], (5, 6, 7), (5, 6), i32(5), i32(5)], {}, "needs state"),
    (
        "linear_attention",
        [STATES[0], (5, 3, 5), (5, 3, 5), STATES[3], (5, 6), i32(5), i32(5)],
        {},
        "needs state",
    ),
    (
        "linear_attention",
        [STATES[0], (5, 4, 4), (5, 4, 4), STATES[3], (5, 6), i32(5), i32(5)],
        {},
        "multiple of G",
    ),
    ("linear_attention", [*STATES, (5, 3), i32(5), i32(5)], {}, "decay and beta"),
    ("linear_attention", [*STATES, (5, 6), i32(5), i32(4)], {}, "slots and positions"),
    (
        "linear_attention",
        [*STATES, (5, 6), i32(5), i32(5), (5, 3)],
        {"beta": True},
        "decay and beta",
    ),
    ("swiglu", [(2, 3), (3,)], {}, "one shape"),
    ("top_k", [(2, 3)], {"k": 4}, "k=4"),
    ("top_k", [(2, 3)], {"k": 0}, "k=0"),
    ("cpy", [(2,), (3,)], {}, "one shape"),
    ("cpy", [(2,), i32(2)], {}, "cannot be converted"),
    ("cpy", [i32(2), (2,)], {}, "cannot be converted"),
    ("cpy", [(32,), ((32,), Q8_0)], {}, "cannot be converted"),
    ("cont", [((32,), Q8_0)], {}, "only be read"),
    ("cont", [(2,)], {"dtype": "f8"}, "cannot be converted to f8"),
    ("concat", [(2, 3), (2, 3)], {"axis": 2}, "not an axis"),
    ("concat", [(2, 3), (3, 3)], {"axis": 1}, "other axes"),
    ("concat", [(2,), i32(2)], {}, "both"),
    ("repeat", [(2, 3)], {"shape": (3, 3)}, "whole number"),
    ("repeat", [(2, 3)], {"shape": (6,)}, "as many axes"),
    ("repeat", [(2,)], {"shape": (-2,)}, "negative"),
]


@pytest.mark.parametrize(("op", "specs", "params", "dtype", "shape"), FITS)
def test_fits(op, specs, params, dtype, shape):
    g, operands = tensors(specs)
    result = g.op(op, *operands, **params)
    assert (result.dtype, result.shape) == (dtype, shape)
    g.build(result)


@pytest.mark.parametrize(("op", "specs", "params", "words"), REFUSED)
def test_refused(op, specs, params, words):
    g, operands = tensors(specs)
    with pytest.raises(GraphError, match=words):
        g.op(op, *operands, **params)


def test_every_op_has_a_case():
    assert {case[0] for case in FITS} | {*UNARY, *BINARY, *GATED, "norm"} == set(OPS)


def test_unknown_op_names_the_known_ones():
    with pytest.raises(GraphError, match="mul_mat"):
        op_by_name("matmul")
