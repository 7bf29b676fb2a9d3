"""Kernels whose weights one warp fetches for the others, on the host; see ``test_fibers``.

Copies arrive late and in any order (``gates.h``), and every run is done with several orders.
"""

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from ggsched.backend.program import Group, Operand
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32, dtype_by_name
from ggsched.ir.tensor import Role, contiguous_strides
from ggsched.testing.oracle import run_oracle
from ggsched.testing.values import LeafRule, leaf_values
from tests.kernels.test_fibers import H200, Runner, laid_out

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="uses instructions of x86-64"),
]

SEEDS = (1, 2)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("fibers"))


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
    from ggsched_cuda.choose import lower

    for pattern, members in groups:
        for i in members:
            nodes[i] = replace(nodes[i], group=Group(pattern, members))
    (call,), scratch = lower(nodes, replace(H200, units=units))
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


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "mxfp4"])
def test_sets_of_rows(tmp_path, kind):
    """Whatever the extent, a set has rows, its lanes suffice, and warps have places in it."""
    from ggsched_cuda.fed.cut import cut_for
    from ggsched_cuda.programs import text_of

    dtype, cuts = dtype_by_name(kind), set()
    for k, sides in product(range(32, 16385, 32), (1, 2)):
        strides = contiguous_strides(dtype, (9, k))
        w = Operand(None, 0, 9 * strides[0], dtype, (9, k), strides)
        cut = cut_for([w] * sides, H200)
        if cut is not None:
            lanes = 32 * cut.team_warps * cut.teams
            cuts.add((sides - 1, cut.rows, cut.teams, int(cut.is_tiled), lanes))
    assert cuts
    names = "MIN|MAX|TILE_ROWS|[A-Z_]*(?:SIDES|WARPS|EACH|SUMS|BATCH|SET)"
    lines = re.findall(rf"^#define (?:{names})\b.*$",
                       text_of("fed_rows"), re.MULTILINE)  # fmt: skip
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


def two(g, c):
    x = g.input("x", (1, c.k))
    a, b = (product_of(g, c, x, f"w{n}", n) for n in (c.rows, 2))
    return [a, b], []


FORMS = (
    plain, added, in_place, twice, twice_in_place, gated, normed_gated, normed_plain,
    normed_three, two,
)  # fmt: skip
BUILD = {form.__name__: form for form in FORMS}

CASES = [
    Case("plain", "q8_0", 2880, rows=2),
    Case("plain", "mxfp4", 2880, inside=True),
    Case("normed_three", "bf16", 320, rows=70),
    Case("normed_three", "q8_0", 96, rows=150, units=2, inside=True),
    Case("normed_gated", "f16", 288),
    Case("gated", "q4_0", 64, rows=150, units=2, inside=True),
    Case("twice_in_place", "f32", 64, rows=37),
    Case("two", "mxfp4", 288, rows=100, units=1),
    Case("gated", "mxfp4", 736, rows=100, units=2, inside=True),
    Case("normed_three", "q4_0", 736, rows=70, units=2, inside=True),
]
TILED = {"mxfp4": (512, 736, 1504, 2048, 2880), "q4_0": (736, 2880, 3008)}
"""Extents in tiles: several to a stage, an odd number of blocks, rows at two banks, long ones."""
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
    *(Case(form, kind, k, rows=rows, inside=rows % 2 == 1)
      for kind, extents in TILED.items() for k in extents for form, rows in
      (("plain", 151), ("gated", 70), ("normed_gated", 33), ("twice_in_place", 48))),
    *(Case("plain", "mxfp4", k, rows=40, inside=k != 4096) for k in (32, 2912, 4096, 4832)),
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
    assert (call.source, call.kernel, call.groups) == ("fed_rows", "fed_rows", (case.units, 1, 1))
    runner.run(call)
    return graph, memory, run_oracle(graph, values), call


@pytest.mark.parametrize("case", ALL, ids=str)
def test_rows(runner, case):
    for runner.seed in SEEDS:
        graph, memory, wanted, call = run_rows(runner, case)
        check(graph, memory, wanted)
    if case.inside and case.kind == "mxfp4":
        assert dict(call.defines)["ALIGNED"] == "0"


@pytest.mark.parametrize(
    ("kind", "k"),
    [
        *(
            ("bf16", 320),
            ("q8_0", 320),
            ("q4_0", 320),
            ("mxfp4", 320),
            ("q4_0", 2880),
            ("mxfp4", 2880),
        )
    ],
)
@pytest.mark.parametrize("what", [np.inf, -np.inf, np.nan])
def test_what_is_no_number(runner, kind, k, what):
    """An infinity times a block is not taken apart: all that it reaches is no number."""
    case = Case("plain", kind, k)
    x = np.random.default_rng(5).uniform(-1, 1, (1, k)).astype(np.float32)
    x[0, k - 243] = what
    graph, memory, wanted, _ = run_rows(runner, case, {"x": x})
    (got,), (wanted,) = results(graph, memory).values(), wanted.values()
    if kind == "bf16":
        np.testing.assert_array_equal(np.nan_to_num(got), np.nan_to_num(wanted))
    else:
        assert np.isnan(got).all()


@pytest.mark.parametrize(
    ("kind", "k"), [("q8_0", 320), ("q4_0", 320), ("mxfp4", 320), ("q4_0", 736), ("mxfp4", 736)]
)
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


NUMBERS_OF = {
    "q4_0": np.arange(16) - 8.0,
    "mxfp4": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) * np.array([[1.0], [-1.0]]),
}


@pytest.mark.parametrize("k", [64, 736, 2880])
@pytest.mark.parametrize("kind", ["q4_0", "mxfp4"])
def test_sums_that_floats_hold_are_exact(runner, kind, k):
    """Of every nibble in every place, times integers, and one block at a time is not zero."""
    case, dtype = Case("plain", kind, k, rows=32, units=1), dtype_by_name(kind)
    rng = np.random.default_rng(8)
    blocks = rng.integers(0, 256, (32, k // 32, dtype.block_nbytes)).astype(np.uint8)
    head = dtype.block_nbytes - 16
    blocks[..., :head] = np.array([1.0], np.float16).view(np.uint8) if kind == "q4_0" else 127
    x = rng.integers(-127, 128, (1, k)).astype(np.float32)
    packed = blocks[..., head:].astype(int)
    nibbles = np.concatenate([packed & 15, packed >> 4], -1).reshape(32, k)
    values = {"w": blocks.reshape(32, -1), "x": x}
    graph, memory, _, call = run_rows(runner, case, values)
    (got,) = results(graph, memory).values()
    np.testing.assert_array_equal(got[0], NUMBERS_OF[kind].reshape(-1)[nibbles] @ x[0])
    assert dict(call.defines)["TILES"] == str(int(k in TILED[kind]))


@pytest.mark.parametrize("k", [320, 736])
def test_scales_at_the_ends(runner, k):
    """Exponents of mxfp4 that are the least and the largest; row by row, since sums take all."""
    case = Case("plain", "mxfp4", k, rows=32, units=1)
    rng = np.random.default_rng(9)
    blocks = rng.integers(0, 256, (32, k // 32, 17)).astype(np.uint8)
    for row, exponents in enumerate([(0,), (1,), (0, 1, 2), (254,), (255,), (253, 255)]):
        blocks[row::6, :, 0] = rng.choice(exponents, blocks[row::6, :, 0].shape)
    for size, rows in ((2.0**100, [0, 1, 2]), (2.0**-60, [3, 4, 5])):
        x = (rng.uniform(-1, 1, (1, k)) * size).astype(np.float32)
        values = {"w": blocks.reshape(32, -1), "x": x}
        graph, memory, wanted, _ = run_rows(runner, case, values)
        (got,), (wanted,) = results(graph, memory).values(), wanted.values()
        for row in rows:
            these, those = got[0, row::6], wanted[0, row::6]
            assert those.any()
            largest = float(np.max(np.abs(those)))
            np.testing.assert_allclose(these, those, 2e-5, 2e-6 * largest)


def test_an_infinite_scale(runner):
    """It costs its own row, whose first block stands in for the one that a warp has not."""
    case = Case("plain", "q4_0", 736, rows=21, units=1)
    values = run_rows(runner, case)[1]
    (w,) = (m for m in values.values() if m.nbytes == 21 * 23 * 18)
    blocks = w.view.reshape(21, 23, 18).copy()
    blocks[3, 0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    blocks[3, 0, 2:] = 0xFF
    x = np.ones((1, 736), np.float32)
    graph, memory, wanted, _ = run_rows(runner, case, {"w": blocks.reshape(21, -1), "x": x})
    (got,), (wanted,) = results(graph, memory).values(), wanted.values()
    assert not np.isfinite(got[0, 3])
    others = np.arange(21) != 3
    np.testing.assert_allclose(got[0, others], wanted[0, others], 2e-5, 1e-5)


# --- experts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """Products with the weights of chosen experts."""

    form: str
    kind: str
    k: int = 64
    tokens: int = 1
    used: int = 2
    rows: int = 19
    each: bool = False  # whether each expert has a row of its own
    units: int = 6


EXPERTS = 5


def experts(c):
    """Return the graph of a form, and its groups."""
    g = GraphBuilder(c.form)
    x = g.input("x", (c.tokens, c.used if c.each else 1, c.k))
    ids = g.input("ids", (c.tokens, c.used), I32)

    def side(name, has_bias):
        y = g.mul_mat_id(g.weight(name, (EXPERTS, c.rows, c.k), dtype_by_name(c.kind)), x, ids)
        return g.add_id(y, g.weight(f"{name}.bias", (EXPERTS, c.rows), F32), ids) if has_bias else y

    match c.form:
        case "product":
            return g.build(side("w", False)), []
        case "biased":
            return g.build(side("w", True)), [("mul_mat_id+add_id", (0, 1))]
        case "scaled":
            y = g.mul(side("w", True), g.input("scale", (c.tokens, c.used, 1)))
            return g.build(y), [("mul_mat_id+add_id+mul", (0, 1, 2))]
        case "swiglu":
            gate, up = side("gate", False), side("up", False)
            return g.build(g.swiglu(gate, up)), [("mul_mat_id*2+swiglu", (0, 1, 2))]
    gate, up = side("gate", True), side("up", True)
    y = g.swiglu_oai(gate, up, alpha=1.702, limit=0.75)
    return g.build(y), [("(mul_mat_id+add_id)*2+swiglu_oai", (0, 1, 2, 3, 4))]


def run_experts(runner, c, wrong=None):
    """Run a case, perhaps with one id out of range; return graph, memory and values."""
    graph, groups = experts(c)
    values = values_of(graph, bound=EXPERTS)
    given = {**values, "ids": values["ids"].copy()}
    if wrong is not None:
        given["ids"][-1, -1] = wrong
    nodes, memory = laid_out(graph, given)
    call = one_call(nodes, groups, c.units)
    assert call.kernel == "fed_experts"
    runner.fault[:] = 0
    runner.run(call, {call.label: 7})
    return graph, memory, values


CHOSEN = [
    Chosen("product", "q8_0", 96, used=1),
    Chosen("biased", "bf16", each=True),
    Chosen("scaled", "mxfp4", 2880, tokens=2, each=True, rows=5),
    Chosen("swiglu", "f16", 320, used=3),
    Chosen("swiglu_oai", "mxfp4", 288, tokens=2, used=3),
    Chosen("swiglu_oai", "mxfp4", 736, tokens=2, used=2, rows=50),
]
FORMS_OF_EXPERTS = ("product", "biased", "scaled", "swiglu", "swiglu_oai")
SLOW_CHOSEN = [
    *(Chosen(form, kind, k, tokens, used, each=form == "scaled", units=16, rows=33)
      for form in FORMS_OF_EXPERTS
      for kind, k in (("f32", 288), ("q4_0", 96), ("q8_0", 2880), ("mxfp4", 320))
      for tokens, used in ((1, 4), (2, 1), (2, 4))),
    Chosen("swiglu_oai", "mxfp4", 2880, used=4, rows=70, units=8),
    Chosen("product", "bf16", 2048, rows=150, units=2),
    *(Chosen(form, kind, k, tokens, 2, each=form == "scaled", units=8, rows=41)
      for form in FORMS_OF_EXPERTS for kind, k in (("mxfp4", 736), ("mxfp4", 2880), ("q4_0", 2880))
      for tokens in (1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [*CHOSEN, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW_CHOSEN)], ids=str
)
def test_experts(runner, case):
    for runner.seed in SEEDS:
        graph, memory, values = run_experts(runner, case)
        assert not runner.fault.any()
        check(graph, memory, run_oracle(graph, values))


@pytest.mark.parametrize("case", CHOSEN[2:], ids=str)
@pytest.mark.parametrize("wrong", [-1, EXPERTS, 1 << 30, -(1 << 31)])
def test_a_bad_id(runner, case, wrong):
    """It is reported, nothing is fetched that is no operand, and all others are right."""
    graph, memory, values = run_experts(runner, case, wrong)
    assert runner.fault[:3].tolist() == [7, wrong, EXPERTS]
    (got,), (wanted,) = results(graph, memory).values(), run_oracle(graph, values).values()
    size = float(np.max(np.abs(wanted)))
    pairs = (case.tokens * case.used, case.rows)
    np.testing.assert_allclose(
        got.reshape(pairs)[:-1], wanted.reshape(pairs)[:-1], 1e-4, 1e-5 * size
    )
