"""Kernels whose weights one warp fetches for the others, on the host; see ``test_fibers``.

Copies arrive late and in any order (``gates.cpp``), and every run is done with several orders.
"""

import re
import subprocess
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from ggsched.backend.program import Group, Operand
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.tensor import Role, contiguous_strides
from ggsched_kernels.block_bytes import BYTE_BLOCKS, OWN_CODE
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, Memory, laid_out

pytestmark = NEEDS

SEEDS = (1, 2)
BY_FIELDS = tuple(t for t in BYTE_BLOCKS if t not in OWN_CODE)
"""Types whose bytes are put together from the bit fields of their layouts."""


def weight(g, name, shape, kind, inside):
    """Return a weight; inside of a larger one, behind its first row, if so wanted."""
    dtype = dtype_by_name(kind)
    if not inside:
        return g.weight(name, shape, dtype)
    n, k = shape
    return g.rows(g.weight(name, (n + 2, k), dtype), 1, n + 1)


def values_of(graph, bound=1, amp=0.5):
    rng = np.random.default_rng(3)
    roots = [*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT)]
    return {t.name: leaf_values(t, LeafRule(amp=amp, bound=bound), rng) for t in roots}


def one_call(nodes, groups, units):
    """Return the call that computes all nodes, in groups of known patterns."""
    from ggsched_cuda_kernels.kernel_selection import lower

    for pattern, members in groups:
        for i in members:
            nodes[i] = replace(nodes[i], group=Group(pattern, members))
    (call,), scratch = lower(nodes, replace(H200, num_sms=units))
    assert not scratch
    return call


def results(graph, memory):
    """Return the results as they are in memory."""
    found = {}
    for tid in graph.outputs:
        t = graph.tensors[tid]
        raw = memory[t.storage].view[t.offset : t.offset + t.nbytes]
        found[tid] = raw.view(np.float32).reshape(t.shape)
    return found


def check(graph, memory, wanted):
    for tid, got in results(graph, memory).items():
        size = float(np.max(np.abs(wanted[tid])))
        np.testing.assert_allclose(got, wanted[tid], 2e-5, 2e-6 * size, err_msg=str(tid))
    for tid in graph.outputs:
        behind = memory[graph.tensors[tid].storage].bytes[-32:]
        assert (behind == 0xFF).all(), "what lies behind is as it was"


# --- sets -------------------------------------------------------------------------------------

NUMBERS = ("GATED", "ROWS", "TEAMS", "TILES", "LANES")


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", *map(str, BYTE_BLOCKS)])
def test_sets_of_rows(tmp_path, kind):
    """Whatever the extent, a set has rows, its lanes suffice, and warps have places in it."""
    from ggsched_cuda_kernels.sources import text_of
    from ggsched_cuda_kernels.warp_specialized.tile_config import cut_for

    dtype, cuts = dtype_by_name(kind), set()
    step = max(32, dtype.block)
    for k, sides in product(range(step, 16385, step), (1, 2)):
        strides = contiguous_strides(dtype, (9, k))
        w = Operand(None, 0, 9 * strides[0], dtype, (9, k), strides)
        cut = cut_for([w] * sides, H200)
        if cut is not None:
            lanes = 32 * cut.team_warps * cut.teams
            cuts.add((sides - 1, cut.rows, cut.teams, int(cut.is_tiled), lanes))
    assert cuts
    names = "MIN|MAX|TILE_ROWS|[A-Z_]*(?:SIDES|WARPS|EACH|SUMS|BATCH|SET)"
    lines = re.findall(rf"^#define (?:{names})\b.*$",
                       text_of("warp_specialized_rows"), re.MULTILINE)  # fmt: skip
    for values in sorted(cuts):
        for name, value in zip(NUMBERS, values, strict=True):
            lines += [f"#undef {name}", f"#define {name} {value}"]
        wanted = "SET > 0 && SET <= LANES && SET % (BATCH * ROWS) == 0 && SET_SUMS >= WARPS"
        wanted += " && (!TILES || (TEAMS == 1 && ROWS % TILE_ROWS == 0 && TILE_ROWS * SIDES == 16))"
        lines.append(f'static_assert({wanted}, "{values}");')
    file = tmp_path / "sets.cpp"
    file.write_text("\n".join(lines), encoding="utf-8")
    command = ["g++", "-std=c++17", "-fsyntax-only", str(file)]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


# --- rows -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Products of a row with weights of k columns."""

    form: str
    kind: str
    k: int
    rows: int = 21
    units: int = 3
    inside: bool = False  # whether weights begin behind the first row of larger ones


def product_of(g, c, x, name, n):
    return g.mul_mat(weight(g, name, (n, c.k), c.kind, c.inside), x)


def normed(g, k):
    return g.mul(g.rms_norm(g.input("x", (1, k)), 1e-5), g.weight("norm", (k,)))


NORM = ("rms_norm+mul", (0, 1))


def plain(g, c):
    return [product_of(g, c, g.input("x", (1, c.k)), "w", c.rows)], []


def added(g, c):
    y = product_of(g, c, g.input("x", (1, c.k)), "w", c.rows)
    return [g.add(y, g.input("z", (1, c.rows)))], [("mul_mat+add", (0, 1))]


def in_place(g, c):
    z = g.input("z", (1, c.rows))
    y = product_of(g, c, g.input("x", (1, c.k)), "w", c.rows)
    return [g.add(z, y, inplace=True)], [("mul_mat+add", (0, 1))]


def twice(g, c):
    y = g.add(product_of(g, c, g.input("x", (1, c.k)), "w", c.rows), g.weight("b", (c.rows,)))
    return [g.add(g.input("z", (1, c.rows)), y)], [("mul_mat+add+add", (0, 1, 2))]


def twice_in_place(g, c):
    z, b = g.input("z", (1, c.rows)), g.weight("b", (c.rows,))
    y = g.add(product_of(g, c, g.input("x", (1, c.k)), "w", c.rows), b)
    return [g.add(z, y, inplace=True)], [("mul_mat+add+add", (0, 1, 2))]


def gated(g, c):
    x = g.input("x", (1, c.k))
    gate, up = (product_of(g, c, x, name, c.rows) for name in ("gate", "up"))
    return [g.swiglu(gate, up)], [("mul_mat*2+swiglu", (0, 1, 2))]


def normed_gated(g, c):
    x = normed(g, c.k)
    gate, up = (product_of(g, c, x, name, c.rows) for name in ("gate", "up"))
    return [x, g.swiglu(gate, up)], [NORM, ("mul_mat*2+swiglu", (2, 3, 4))]


def normed_plain(g, c):
    x = normed(g, c.k)
    return [x, product_of(g, c, x, "w", c.rows)], [NORM]


def normed_three(g, c):
    """Three products of a norm, of different extents, the second one with a bias."""
    x = normed(g, c.k)
    extents = c.rows, 1, c.rows // 2 + 1
    a, b, d = (product_of(g, c, x, f"w{i}", n) for i, n in enumerate(extents))
    return [x, a, b, g.add(d, g.weight("b", (extents[2],)))], [NORM, ("mul_mat+add", (4, 5))]


def summed(g, c):
    """A norm of sums of four rows and a base, as experts' results are added to the residual."""
    terms = g.input("terms", (1, 4, c.k))
    total = g.sum_rows(g.permute(terms, 0, 2, 1))
    y = g.add(g.reshape(total, 1, c.k), g.input("base", (1, c.k)))
    x = g.mul(g.rms_norm(y, 1e-5), g.weight("norm", (c.k,)))
    made = product_of(g, c, x, "w", c.rows)
    return [y, x, made], [("sum_rows+add", (0, 1)), ("rms_norm+mul", (2, 3))]


def two(g, c):
    x = g.input("x", (1, c.k))
    a, b = (product_of(g, c, x, f"w{n}", n) for n in (c.rows, 2))
    return [a, b], []


FORMS = (
    plain, added, in_place, twice, twice_in_place, gated, normed_gated, normed_plain,
    normed_three, summed, two,
)  # fmt: skip
BUILD = {form.__name__: form for form in FORMS}

CASES = [
    Case("plain", "q8_0", 2880, rows=2),
    Case("plain", "mxfp4", 2880, inside=True),
    Case("normed_three", "bf16", 320, rows=70),
    Case("normed_three", "q8_0", 96, rows=150, units=2, inside=True),
    Case("normed_gated", "f16", 288),
    Case("summed", "bf16", 2880, rows=40),
    Case("summed", "q8_0", 96, rows=30, units=2, inside=True),
    Case("gated", "q4_0", 64, rows=150, units=2, inside=True),
    Case("twice_in_place", "f32", 64, rows=37),
    Case("two", "mxfp4", 288, rows=100, units=1),
    *(Case("plain", kind, 512, rows=9, inside=True) for kind in ("iq4_nl", "q2_k")),
    Case("normed_gated", "q4_k", 768, rows=40),
    Case("summed", "q6_k", 768, rows=30, units=2, inside=True),
]
SLOW = [
    *(Case("plain", kind, k) for kind in ("f32", "f16", "bf16") for k in (64, 320, 2880)),
    *(Case("plain", kind, k, inside=True) for kind in ("q8_0", "q4_0", "mxfp4")
      for k in (64, 96, 288, 320, 2880)),
    *(Case(form, kind, k, rows=70, inside=True) for form in BUILD for kind, k in
      (("f32", 288), ("f16", 2880), ("bf16", 64), ("q8_0", 2880), ("q4_0", 96), ("mxfp4", 320))),
    *(Case("normed_three", kind, 2048, rows=5, units=11) for kind in ("bf16", "q8_0")),
    Case("gated", "bf16", 8192, rows=9, units=2),
    Case("added", "q8_0", 14336, rows=9, units=2),
    Case("added", "bf16", 14336, rows=9, units=2),
    Case("plain", "f32", 4, rows=3),
    Case("plain", "mxfp4", 32, rows=300, units=2, inside=True),
    Case("plain", "f16", 8, rows=200, units=1),
    Case("plain", "mxfp4", 4096),
    *(Case("plain", str(t), 512, rows=9, inside=True) for t in BY_FIELDS if str(t) not in
      ("iq4_nl", "q2_k")),
    *(Case(form, str(t), 4096, rows=50, inside=True) for t in BY_FIELDS
      for form in ("normed_three", "gated", "twice")),
    *(Case("added", str(t), 14336, rows=9, units=2) for t in BY_FIELDS),
]  # fmt: skip
ALL = [*CASES, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)]


def run_rows(runner, case, values=None):
    """Run a case; return its graph, its memory, what the oracle says, and the call."""
    g = GraphBuilder(case.form)
    made, groups = BUILD[case.form](g, case)
    graph = g.build(*made)
    values = values_of(graph) | (values or {})
    nodes, memory = laid_out(graph, values)
    call = one_call(nodes, groups, case.units)
    assert (call.source, call.kernel) == ("warp_specialized_rows", "warp_specialized_rows")
    assert 1 <= call.groups[0] <= case.units
    runner.run(call)
    return graph, memory, run_oracle(graph, values), call


@pytest.mark.parametrize("case", ALL, ids=str)
def test_rows(runner, case):
    for runner.seed in SEEDS:
        graph, memory, wanted, call = run_rows(runner, case)
        check(graph, memory, wanted)
    if case.inside and case.kind == "mxfp4":
        assert dict(call.defines)["ALIGNED"] == "0"


@pytest.mark.parametrize("form", ["plain", "normed_plain", "added"])
@pytest.mark.parametrize("kind", ["bf16", "q8_0", "mxfp4"])
def test_a_second_place(runner, monkeypatch, form, kind):
    """A result goes to another place as well, to the byte, if there is one."""
    monkeypatch.setattr("ggsched_cuda_kernels.warp_specialized.rows.SENT_NBYTES", 0)
    case = Case(form, kind, 288, rows=203)
    graph, memory, wanted, call = run_rows(runner, case)
    assert dict(call.defines)["ALSO"] == "1"
    check(graph, memory, wanted)
    other = Memory(4 * case.rows)
    args = [*call.args]
    args[call.also.arg] = other.view.ctypes.data.to_bytes(8, "little")
    runner.run(replace(call, args=tuple(args)))
    found = call.also.buffer.view[call.also.offset :][: call.also.nbytes]
    assert found.tobytes() == other.view.tobytes()
    assert (other.bytes[-32:] == 0xFF).all()


BLOCKS = [
    ("q8_0", 320), ("q4_0", 320), ("mxfp4", 320), ("q4_0", 736), ("mxfp4", 736),
    ("q5_1", 320), ("q4_k", 512), ("q6_k", 512),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "k"), [("bf16", 320), *BLOCKS])
@pytest.mark.parametrize("what", [np.inf, -np.inf, np.nan])
def test_what_is_no_number(runner, kind, k, what):
    """An infinity times a block is not taken apart: all that it reaches is NaN."""
    case = Case("plain", kind, k)
    x = np.random.default_rng(5).uniform(-1, 1, (1, k)).astype(np.float32)
    x[0, k - 243] = what
    graph, memory, wanted, _ = run_rows(runner, case, {"x": x})
    (got,), (wanted,) = results(graph, memory).values(), wanted.values()
    if kind == "bf16":
        np.testing.assert_array_equal(np.nan_to_num(got), np.nan_to_num(wanted))
    else:
        assert np.isnan(got).all()


@pytest.mark.parametrize(("kind", "k"), BLOCKS)
def test_large_and_small_numbers(runner, kind, k):
    """Pieces have units of their own, so a large number costs only its neighbours their places."""
    x = np.random.default_rng(6).uniform(-1, 1, (1, k)).astype(np.float32)
    for scale in (1e30, 1e-20):
        graph, memory, wanted, _ = run_rows(runner, Case("plain", kind, k), {"x": x * scale})
        (got,), (wanted,) = results(graph, memory).values(), wanted.values()
        np.testing.assert_allclose(got / scale, wanted / scale, 1e-5, 1e-5)
    x[0, 32:64] = 0.0
    x[0, :32] *= 2.0**-30
    graph, memory, wanted, _ = run_rows(runner, Case("plain", kind, k), {"x": x})
    check(graph, memory, wanted)
    nothing = np.zeros((1, k), np.float32)
    graph, memory, wanted, _ = run_rows(runner, Case("plain", kind, k), {"x": nothing})
    (got,) = results(graph, memory).values()
    assert not got.any()
