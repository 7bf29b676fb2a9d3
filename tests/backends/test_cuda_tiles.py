"""Products by ``tile_product``: experts of many rows, whose weights stay packed."""

import re
import subprocess
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched.errors import GgschedError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import (
    BF16,
    F16,
    I32,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_K,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    dtype_by_name,
)  # fmt: skip
from ggsched.ir.tensor import Role
from ggsched_kernels import FACTOR, ROUTE, KernelCall
from ggsched_testing.allowance import is_within, rounding_allowances
from ggsched_testing.eager import bound_nodes
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.test_cuda_products import (
    EXACT,
    H200,
    calls_within_allowance,
    lowered,
    run,
)
from tests.kernels import test_fibers as fibers
from tests.kernels.test_fibers import NEEDS, Memory, Runner

DTYPES = (BF16, F16, Q8_0, Q4_0, MXFP4)
WITHIN = 2e-5
"""Of the norm of a result, with x in two numbers of 16 bits."""


def layer(dtype, tokens, used, experts, n=128, k=64, each=False):
    """Return a graph of two products of the same rows and one of their results."""
    g = GraphBuilder("experts")
    x = g.input("x", (tokens, used if each else 1, k))
    ids = g.input("ids", (tokens, used), I32)
    up, gate = (g.mul_mat_id(g.weight(w, (experts, n, k), dtype), x, ids) for w in ("up", "gate"))
    down = g.weight("down", (experts, k, n), dtype)
    return g, (up, g.mul_mat_id(down, g.swiglu(gate, up), ids))


def drawn(graph, experts, seed=0, chosen=None):
    """Return random values; ids are unevenly spread."""
    rng = np.random.default_rng(seed)
    leaves = (*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT))
    values = {t.name: leaf_values(t, LeafRule(bound=experts), rng) for t in leaves}
    if chosen is not None:
        values["ids"] = chosen(rng, values["ids"].shape).astype(np.int32)
    return values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_experts_of_many_rows_are_one_launch(dtype):
    g, outputs = layer(dtype, 256, 4, 32, 2880, 2880)
    calls, memory = lowered(*outputs, g=g, profile=EXACT)
    assert all(isinstance(call, KernelCall) for call in calls)
    kernels = [call.kernel for call in calls]
    assert kernels.count("tile_product") == 3
    assert kernels.count("list_rows") == 1, "all three products have the same ids"
    assert kernels.count("to_halves") == 2, "the first two have the same rows"
    assert not set(kernels) & {"matmul_id", "to_bf16"}
    assert memory[ROUTE] == 4 * (3 * (33 + 1024 // 64) + 1024)
    assert memory[FACTOR] >= 2 * 2 * 1024 * 2880
    shared = {call.shared_nbytes for call in calls if call.kernel == "tile_product"}
    assert max(shared) <= H200.local_nbytes // 2


def test_strides_that_do_not_fit_go_the_shared_way():
    g = GraphBuilder("experts")
    w, ids = g.weight("w", (4, 33, 20), F16), g.input("ids", (64, 2), I32)
    calls, _ = lowered(g.mul_mat_id(w, g.input("x", (64, 1, 20)), ids), g=g)
    assert [call.kernel for call in calls] == ["list_rows", "matmul_id"], "rows of 40 bytes"


@pytest.mark.parametrize(
    "name", ["f16", "bf16", "q8_0", "q4_0", "mxfp4", "q4_1", "q5_0", "q2_k", "q4_k", "q6_k"]
)
@pytest.mark.parametrize("planes", [1, 2])
def test_shared_memory_is_what_the_kernel_lays_out(tmp_path, name, planes):
    from ggsched_cuda_kernels.sources import text_of
    from ggsched_cuda_kernels.tiles import CUTS, PIECE, shared_nbytes

    cut, text = replace(CUTS[name], rows=64), text_of("tile_product")
    lines = re.findall(r"^#(?:define (?:BN|UNIT|CHUNKS|NIBBLES|X_PITCH|W_PITCH|X_NBYTES"
                       r"|(?:STAGE|ALL|W|BLOCK)_NBYTES|BLOCK_ELEMENTS|LONG_BLOCKS|GRANULE|CODE_FIELDS)\b.*"
                       r"|(?:el)?if .*|else\b.*|endif\b.*"
                       r"|ifn?def .*)$", text, re.MULTILINE)  # fmt: skip
    numbers = {"LANES": 32 * cut.warps, "BM": 64, "KB": cut.blocks, "STAGES": cut.stages,
               "WT": cut.tiles, "PLANES": planes, f"W_{name.upper()}": 1}  # fmt: skip
    wanted = shared_nbytes(dtype_by_name(name), cut, planes) - PIECE
    file = tmp_path / "layout.cpp"
    check = f'static_assert(ALL_NBYTES == {wanted}, "");'
    file.write_text("\n".join([*lines, check]), encoding="utf-8")
    flags = [f"-D{key}={value}" for key, value in numbers.items()]
    command = ["g++", "-std=c++17", "-fsyntax-only", *flags, str(file)]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture(scope="module")
def runner(compiled_kernels):
    return Runner(compiled_kernels)


def check(found, wanted, within=WITHIN):
    for tid, array in wanted.items():
        assert np.linalg.norm(found[tid] - array) < within * np.linalg.norm(array)


def always(monkeypatch, dtype=MXFP4):
    """Let products with one weight of a type go by tiles, however small."""
    monkeypatch.setattr(
        "ggsched_cuda_kernels.tiles.MAX_ROWS", {planes: {dtype.name: 512} for planes in (1, 2)}
    )
    monkeypatch.setattr("ggsched_cuda_kernels.tiles.MIN_SHARE", 0)


class TestOnTheHost:
    pytestmark = NEEDS

    @pytest.fixture(autouse=True)
    def exact(self, monkeypatch):
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "f32")

    @pytest.mark.parametrize(
        "dtype",
        [BF16, Q8_0, MXFP4, *(pytest.param(d, marks=pytest.mark.slow) for d in (F16, Q4_0))],
        ids=str,
    )
    def test_experts(self, runner, dtype):
        """Rows of 1 to 4 tiles of 16; more rows than a thread block takes; experts without rows."""
        g, outputs = layer(dtype, 39, 3, 5, n=160, k=96)
        graph = g.build(*outputs)
        values = drawn(graph, 5, 1, lambda rng, n: rng.choice([0, 0, 0, 0, 0, 1, 1, 3], n))
        check(run(runner, graph, values), run_oracle(graph, values))

    @pytest.mark.parametrize("dtype", [BF16, Q8_0, MXFP4], ids=str)
    def test_rounded_experts(self, runner, dtype, monkeypatch):
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
        g = GraphBuilder("experts")
        x, ids = g.input("x", (39, 1, 96)), g.input("ids", (39, 3), I32)
        graph = g.build(g.mul_mat_id(g.weight("w", (5, 40, 96), dtype), x, ids))
        values = drawn(graph, 5, 1, lambda rng, n: rng.choice([0, 0, 0, 0, 0, 1, 1, 3], n))
        wanted = run_oracle(graph, values)
        allowed = rounding_allowances(graph, values, wanted)
        ((tid, found),) = run(runner, graph, values).items()
        assert is_within(found, wanted[tid], allowed[tid])
        assert np.linalg.norm(found - wanted[tid]) > 1e-5 * np.linalg.norm(wanted[tid])

    @pytest.mark.parametrize(
        ("dtype", "mode", "k"),
        [
            (Q4_K, "auto", 1024),
            (Q6_K, "auto", 768),
            (IQ4_NL, "auto", 352),
            (Q2_K, "f32", 512),
            pytest.param(Q5_K, "f32", 768, marks=pytest.mark.slow),
            pytest.param(Q3_K, "f32", 768, marks=pytest.mark.slow),
            pytest.param(Q5_1, "f32", 352, marks=pytest.mark.slow),
            pytest.param(IQ4_XS, "f32", 768, marks=pytest.mark.slow),
        ],
        ids=str,
    )
    def test_experts_by_bytes(self, runner, dtype, mode, k, monkeypatch):
        """Blocks of several scales, of any size, and what is added; experts that nobody chose."""
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", mode)
        g = GraphBuilder("experts")
        x, ids = g.input("x", (39, 1, k)), g.input("ids", (39, 3), I32)
        graph = g.build(g.mul_mat_id(g.weight("w", (5, 40, k), dtype), x, ids))
        values = drawn(graph, 5, 1, lambda rng, n: rng.choice([0, 0, 0, 0, 0, 1, 1, 3, 4], n))
        d = dtype.layout.scale.at
        for expert, row, scale in ((1, 3, 30000.0), (0, 39, 3e-7), (4, 0, 2.0**-12)):
            values["w"][expert, row].view(np.uint8)[d : d + 2] = np.float16([scale]).view(np.uint8)
        wanted = run_oracle(graph, values)
        found = run(runner, graph, values)
        if mode == "f32":
            check(found, wanted)
        else:
            allowed = rounding_allowances(graph, values, wanted)
            assert all(is_within(found[tid], wanted[tid], allowed[tid]) for tid in wanted)

    @pytest.mark.parametrize("planes", [1, 2])
    def test_one_weight(self, runner, planes, monkeypatch):
        """Of rows inside of a larger one, which begin anywhere, and a result inside of rows."""
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", {1: "auto", 2: "f32"}[planes])
        always(monkeypatch)
        g = GraphBuilder("product")
        w = g.rows(g.weight("w", (45, 160), MXFP4), 1, 40)
        graph = g.build(g.mul_mat(w, g.input("x", (2, 9, 160))))
        values = drawn(graph, 1)
        check(
            run(runner, graph, values), run_oracle(graph, values), WITHIN if planes == 2 else 4e-4
        )

    @pytest.mark.parametrize(
        ("dtype", "rows", "k", "splits"),
        [
            (Q8_0, 9, 1056, 4),  # the last of the cluster has nothing to add
            (Q8_0, 17, 4128, 8),
            (MXFP4, 40, 2080, 8),
            (Q8_0, 64, 1056, 4),
            (Q4_K, 12, 2304, 8),  # 9 blocks: five have them all
            (Q6_K, 40, 1024, 4),
            pytest.param(Q4_0, 12, 1088, 2, marks=pytest.mark.slow),
        ],
        ids=str,
    )  # fmt: skip
    def test_few_rows_by_clusters(self, runner, dtype, rows, k, splits, monkeypatch):
        """Groups of a cluster share the sum; none of them is at its end when others are."""
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
        g = GraphBuilder("product")
        graph = g.build(g.mul_mat(g.weight("w", (120, k), dtype), g.input("x", (rows, k))))
        values = drawn(graph, 1)
        always(monkeypatch, dtype)
        programs = calls_within_allowance(runner, graph, values)
        (call,) = (c for c in programs[0] if c.kernel == "tile_product")
        assert call.cluster == call.groups[0] == splits

    @pytest.mark.parametrize(
        ("dtype", "rows", "k", "columns"),
        [
            (Q8_0, 70, 1152, (120, 40)),
            (MXFP4, 40, 256, (72,)),
            (Q4_0, 140, 384, (136, 8, 1)),
            (Q4_K, 40, 1280, (72,)),
            (Q6_K, 70, 768, (72,)),
            *(
                pytest.param(d, rows, 768, (72,), marks=pytest.mark.slow)
                for d, rows in (
                    (Q2_K, 40),
                    (Q3_K, 70),
                    (Q3_K, 40),
                    (Q5_K, 70),
                    (IQ4_XS, 40),
                    (Q6_K, 40),
                )
            ),
        ],
        ids=str,
    )
    def test_more_rows_by_groups_of_warps(self, runner, dtype, rows, k, columns, monkeypatch):
        """Rows inside of larger ones, whose blocks begin anywhere.

        The host would read words at any byte, where a GPU loses its context: here it traps.
        """
        traps = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
        monkeypatch.setattr(fibers, "FLAGS", (*fibers.FLAGS, *traps))
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
        monkeypatch.setenv("GGSCHED_STREAMS", "1")
        g = GraphBuilder("products")
        x = g.input("x", (rows, k))
        weights = [
            g.rows(g.weight(f"w{i}", (n + 1, k), dtype), 1, n + 1) for i, n in enumerate(columns)
        ]
        graph = g.build(*(g.mul_mat(w, x) for w in weights))
        values = drawn(graph, 1)
        programs = calls_within_allowance(runner, graph, values)
        (call,) = (c for made in programs for c in made if c.kernel == "tile_product")
        assert {("GROUP_MMA", "1"), ("BM", "64" if rows < 65 else "128")} <= set(call.defines)

    @pytest.mark.parametrize(("dtype", "code"), [(Q8_0, 120), (Q4_0, 0)], ids=str)
    def test_groups_of_warps_round_weights_once(self, runner, dtype, code, monkeypatch):
        """Beside a larger scale, by which f16 cannot divide those of the others.

        Rows of x are rounded as far as they can be, in the direction of these weights.
        """
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
        g = GraphBuilder("product")
        graph = g.build(g.mul_mat(g.weight("w", (24, 256), dtype), g.input("x", (33, 256))))
        values = {"x": np.full((33, 256), 1 + 2.0**-11 * 1.01, np.float32)}
        nothing = 0 if dtype is Q8_0 else 0x88
        blocks = np.full((24, 8, dtype.block_nbytes), nothing, np.uint8)
        blocks[:, ::2, :2] = np.float16([2047 / 1024]).view(np.uint8)
        blocks[:, 1::2, :2] = np.float16([1025 / 1024]).view(np.uint8)
        codes = code + np.arange(24, dtype=np.uint8) % 8 * (1 if dtype is Q8_0 else 17)
        blocks[:, 1::2, 2:] = codes[:, None, None]
        values["w"] = blocks.reshape(24, -1)
        wanted = run_oracle(graph, values)
        allowed = rounding_allowances(graph, values, wanted)
        ((tid, found),) = run(runner, graph, values, arch=90).items()
        assert is_within(found, wanted[tid], allowed[tid])

    @pytest.mark.parametrize(
        ("dtype", "rows", "k", "columns"),
        [
            (Q8_0, 17, 1056, (120, 40, 56)),
            (MXFP4, 9, 1056, (24, 200)),
            (Q4_0, 33, 1056, (64, 64, 1)),
            (BF16, 17, 1056, (120, 40, 56)),
            (Q4_K, 12, 768, (120, 40)),
            (Q8_0, 2, 1056, (120, 40, 56)),  # of few rows
            (Q4_0, 5, 512, (16, 2100)),
            (Q4_K, 3, 768, (17, 1, 33)),
        ],
        ids=str,
    )
    def test_products_of_the_same_rows_are_one_call(
        self, runner, dtype, rows, k, columns, monkeypatch
    ):
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
        monkeypatch.setattr("ggsched_cuda_kernels.tiles.MIN_SHARE", 0)
        monkeypatch.setenv("GGSCHED_STREAMS", "1")
        g = GraphBuilder("products")
        x = g.input("x", (rows, k))
        weights = [g.weight(f"w{i}", (n, k), dtype) for i, n in enumerate(columns)]
        graph = g.build(*(g.mul_mat(w, x) for w in weights))
        values = drawn(graph, 1)
        (calls,) = calls_within_allowance(runner, graph, values)
        few = rows <= H200.few_rows
        assert [c.kernel for c in calls] == (
            ["matvec_blocks"] if few else ["to_halves", "tile_product"]
        )
        assert ("WEIGHTS", str(len(columns))) in calls[-1].defines

    def test_rows_of_any_size(self, runner, monkeypatch):
        """Rows are scaled one by one, so none overflows or is flushed; NaN stays."""
        always(monkeypatch)
        g = GraphBuilder("product")
        graph = g.build(g.mul_mat(g.weight("w", (40, 160), MXFP4), g.input("x", (18, 160))))
        values = drawn(graph, 2)
        sizes = 10.0 ** np.array([0, -30, -20, -7, 5, 20, 30, 35, -36, 0, 0, 0, *[0] * 6])
        values["x"] *= sizes[:, None].astype(np.float32)
        values["x"][9:12, 7] = np.inf, -np.inf, np.nan
        values["x"][12] = 0
        with np.errstate(all="ignore"):
            ((tid, wanted),) = run_oracle(graph, values).items()
        found = run(runner, graph, values)[tid]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
        for row, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if row not in (9, 10, 11):
                scaled = (a / sizes[row], b.astype(float) / sizes[row])
                assert np.linalg.norm(scaled[0] - scaled[1]) <= WITHIN * np.linalg.norm(scaled[1])

    @pytest.mark.parametrize("wrong", [-1, 4, 1 << 30])
    def test_a_bad_id_is_reported(self, runner, wrong):
        g = GraphBuilder("experts")
        x, ids = g.input("x", (20, 1, 160)), g.input("ids", (20, 2), I32)
        graph = g.build(g.mul_mat_id(g.weight("w", (4, 40, 160), MXFP4), x, ids))
        values = drawn(graph, 4)
        values["ids"][3, 1] = wrong
        with pytest.raises(GgschedError, match=f"{wrong}"):
            run(runner, graph, values)


@pytest.mark.parametrize("dtype", [Q4_K, Q5_K, Q6_K, IQ4_XS, Q5_1], ids=str)
def test_experts_of_several_scales_stay_packed(dtype):
    """qwen3 30B-A3B: a launch for each product; a route, and rows of x, are prepared once."""
    for profile in (EXACT, replace(H200, activations="auto")):
        g, outputs = layer(dtype, 512, 8, 128, 768, 2048)
        calls, _ = lowered(*outputs, g=g, profile=profile)
        kernels = Counter(call.kernel for call in calls)
        assert (kernels["tile_product"], kernels["list_rows"], kernels["to_halves"]) == (3, 1, 2)
        assert not {"matmul_id", "matvec_id", "to_f16"} & set(kernels)
        shared = [call.shared_nbytes for call in calls if call.kernel == "tile_product"]
        assert max(shared) <= H200.local_nbytes // 2


@pytest.mark.parametrize("dtype", [Q8_0, Q4_0, MXFP4, Q4_K, Q6_K], ids=str)
def test_each_number_of_rows_has_its_kernel(dtype):
    """Of an 8B on capability 9.0: each step of more rows reads and unpacks the weight once more."""
    found = {}
    for rows in (9, 32, 33, 64, 65, 128, 129, 256, 257):
        g = GraphBuilder("product")
        w, x = g.weight("w", (14336, 4096), dtype), g.input("x", (rows, 4096))
        profile = replace(H200, activations="auto", group_mma=True)
        calls, _ = lowered(g.mul_mat(w, x), g=g, profile=profile)
        call = next(c for c in calls if getattr(c, "kernel", "") != "to_halves")
        found[rows] = call.kernel
        if call.kernel == "tile_product":
            cut = dict(call.defines)
            found[rows] = cut["GROUP_MMA"], cut["BM"], call.groups[2 if call.cluster > 1 else 1]
    one, two = ("1", "128", 1), ("1", "128", 2)
    assert found == {
        9: ("0", "16", 1), 32: ("0", "32", 1), 33: ("1", "64", 1), 64: ("1", "64", 1), 65: one,
        128: one, 129: two, 256: two, 257: "to_f16",
    }  # fmt: skip


@pytest.mark.parametrize("arch", [80, 89, 90, 100, 120])
def test_groups_of_warps_multiply_on_capability_9_0_only(arch):
    from ggsched_cuda.device import profile_of
    from ggsched_cuda.driver import DeviceInfo

    g = GraphBuilder("layer")
    kept = [g.input(name, (4096, 8, 128), F16) for name in "kv"]
    found = DeviceInfo(0, "GPU", arch, 80 << 30, 13000, 132, 232448)
    y = g.mul_mat(g.weight("w", (4096, 4096), Q8_0), g.input("x", (128, 4096)))
    made = g.attention(g.input("q", (4096, 32, 128)), *kept, scale=1.0)
    calls, _ = lowered(y, made, g=g, profile=profile_of(found, "auto"))
    defines = [("GROUP_MMA", "1") in c.defines for c in calls if isinstance(c, KernelCall)]
    assert sum(defines) == 2 * (arch == 90)


def test_what_keeps_products_apart():
    """Other rows, another type, and results that share bytes with what another product reads."""
    from ggsched_cuda_kernels.kernel_selection import lower

    profile = replace(H200, activations="auto")
    g = GraphBuilder("products")
    x, z = g.input("x", (16, 4096)), g.input("z", (16, 4096))
    q, k = (g.weight(name, (4096, 4096), Q8_0) for name in ("q", "k"))
    other = g.weight("other", (4096, 4096), Q4_0)
    graph = g.build(g.mul_mat(q, x), g.mul_mat(k, x), g.mul_mat(k, z), g.mul_mat(other, z))
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory)

    def kernels(*some):
        return [c.kernel for c in lower(some, profile)[0]]

    assert kernels(*nodes[:2]) == ["to_halves", "tile_product"]
    assert kernels(*nodes[1:3]) == 2 * ["to_halves", "tile_product"]
    assert kernels(*nodes[2:]) == ["to_halves", "tile_product", "tile_product"]
    over = replace(nodes[1], output=nodes[0].output)
    assert kernels(nodes[0], over) == ["to_halves", "tile_product", "tile_product"]


@pytest.mark.parametrize("limits", ["MAX_ROWS", "TOGETHER_ROWS"])
def test_each_type_has_a_cut_up_to_its_limit(limits):
    """Where there are clusters, the cut of a product is looked up by its rows and its type."""
    from ggsched_cuda_kernels import tiles

    of_types = tiles.MAX_ROWS[1] if limits == "MAX_ROWS" else tiles.TOGETHER_ROWS
    assert of_types
    for name, most in of_types.items():
        for below, cuts in zip([0, *tiles.FEW], tiles.FEW.values(), strict=False):
            assert most <= below or name in cuts, f"{name} with {below + 1} rows"
