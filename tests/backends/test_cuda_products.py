"""Products of many rows by tensor cores: how packed weights get there, and what they come to."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched.backend.precision import Rounds
from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0
from ggsched.ir.tensor import Role
from ggsched.scheduler import Scheduler
from ggsched_kernels import FACTOR, SCRATCH, KernelCall, warp_profile
from ggsched_kernels.block_constants import KERNEL_BLOCKS
from ggsched_testing.allowance import far_off, is_within, rounding_allowances
from ggsched_testing.eager import bound_nodes
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.software_kernels import in_software
from tests.kernels.test_fibers import NEEDS, Memory, Runner

H200 = replace(warp_profile(132, 232448, True), activations="auto")
EXACT = replace(H200, activations="f32")
PRODUCTS = {"bf16": 2, "mxfp4": 2, "f16": 3, "q8_0": 3, "q4_0": 3}
PACKED = (F16, Q8_0, Q4_0, MXFP4)
BY_ELEMENTS = [d for d in KERNEL_BLOCKS if d not in PACKED]
WITHIN = 2e-5
"""Of the norm of a result."""


def lowered(*outputs, g, profile=H200):
    from ggsched_cuda_kernels.kernel_selection import lower

    graph = g.build(*outputs)
    memory = {t.id: Memory(0) for t in graph.tensors if not t.is_view}
    return lower(bound_nodes(graph, memory), profile)


@pytest.mark.parametrize("dtype", [BF16, *PACKED], ids=str)
@pytest.mark.parametrize("rows", [256, 512])
def test_exact_products_of_many_rows_run_on_tensor_cores(dtype, rows):
    from ggsched_cuda_kernels.blas import driver as blas
    from ggsched_cuda_kernels.products import PIECE_NBYTES

    g = GraphBuilder("product")
    w, x = g.weight("w", (14336, 4096), dtype), g.input("x", (rows, 4096))
    calls, memory = lowered(g.mul_mat(w, x), g=g, profile=EXACT)
    products = [call for call in calls if not isinstance(call, KernelCall)]
    pieces = 1 if dtype in (BF16, MXFP4) else 2
    assert len(products) == pieces * PRODUCTS[dtype.name]
    assert {call.kind for call in products} == {blas.BF16}
    assert sum(call.size[1] for call in products) == 14336 * PRODUCTS[dtype.name]
    others = [call.kernel for call in calls if isinstance(call, KernelCall)]
    assert others == ["to_bf16"] * (1 + pieces * (dtype is not BF16))
    assert memory.get(SCRATCH, 0) <= PIECE_NBYTES
    assert memory[FACTOR] == 4 * rows * 4096


def test_products_of_the_same_rows_convert_them_once():
    g = GraphBuilder("layer")
    x = g.input("x", (64, 256))
    q, k, v = (g.mul_mat(g.weight(n, (256, 256), BF16), x) for n in "qkv")
    y = g.add(g.add(q, k), v)
    gate, up = (g.mul_mat(g.weight(n, (512, 256), Q8_0), y) for n in ("gate", "up"))
    down = g.mul_mat(g.weight("down", (256, 512), BF16), g.swiglu(gate, up))
    calls, _ = lowered(down, g=g, profile=EXACT)
    rows = [c for c in calls if isinstance(c, KernelCall) and ("W_F32", "1") in c.defines]
    assert [call.kernel for call in rows].count("to_bf16") == 3


@pytest.mark.parametrize("is_gated", [False, True])
def test_one_call_of_several_products_has_memory_for_the_copy_of_their_rows(is_gated, monkeypatch):
    monkeypatch.setattr("ggsched_cuda_kernels.gated_rows.NARROW_ROWS", 64)
    from ggsched_cuda_kernels.kernel_selection import lower

    g = GraphBuilder("turned")
    x = g.permute(g.input("x", (128, 64)), 1, 0)
    made = [g.mul_mat(g.weight(name, (96, 128), BF16), x) for name in ("gate", "up")]
    graph = g.build(*([g.swiglu(*made)] if is_gated else made))
    memory = {t.id: Memory(0) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory)
    if is_gated:
        nodes = [replace(n, group=Group("mul_mat*2+swiglu", (0, 1, 2))) for n in nodes]
    calls, sizes = lower(nodes, H200)
    kernels = [c.kernel if isinstance(c, KernelCall) else "product" for c in calls]
    assert kernels == ["copy_f32", "to_halves", "product", *["gated_rows"] * is_gated]
    assert sizes.get(SCRATCH, 0) == 4 * 64 * 128


def test_products_that_are_evenly_apart_are_batches():
    from ggsched_cuda_kernels.blas.driver import BF16, F32, batches_of

    assert batches_of([(4096, 800), (4608, 1200)], BF16) == (2, 256, 0, 100)
    assert batches_of([(4096, 800), (4608, 1200), (5120, 1600)], F32) == (3, 128, 0, 100)
    assert batches_of([(4096, 800), (4608, 1200), (5632, 1600)], BF16) is None, "not evenly"
    assert batches_of([(4096, 800), (4608, 400)], BF16) is None, "downwards"
    assert batches_of([(4096, 800), (4608, 808)], BF16) is None, "not aligned"


@pytest.mark.parametrize("dtype", [BF16, F16, *KERNEL_BLOCKS], ids=str)
@pytest.mark.parametrize("rows", [65, 256])
def test_rounded_products_are_one_of_16_bits(dtype, rows, unpacked):
    from ggsched_cuda_kernels.blas import driver as blas

    g = GraphBuilder("product")
    w, x = g.weight("w", (1024, 4096), dtype), g.input("x", (rows, 4096))
    calls, memory = lowered(g.mul_mat(w, x), g=g)
    (product,) = [call for call in calls if not isinstance(call, KernelCall)]
    assert product.kind == (blas.BF16 if dtype is BF16 else blas.F16)
    assert not product.adds
    assert product.size == (rows, 1024, 4096)
    wanted = {"bf16": [], "f16": ["unscale"]}.get(dtype.name, ["to_f16", "unscale"])
    kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
    assert kernels == ["to_halves", *wanted]
    assert memory.get(SCRATCH, 0) <= 2 * 1024 * 4096 + 4 * 1024
    assert memory[FACTOR] == 2 * rows * 4096 + 4 * rows


@pytest.fixture
def unpacked(monkeypatch):
    """Let weights be unpacked where passes over them would be quicker."""
    monkeypatch.setattr("ggsched_cuda_kernels.passes.UNPACKED_PS", {1: 0.0, 2: 0.0})
    monkeypatch.setattr("ggsched_cuda_kernels.passes.UNPACKED_BY_PARTS_PS", {1: 0.0, 2: 0.0})


@pytest.mark.parametrize(("profile", "most"), [(H200, 64), (EXACT, 128)], ids=["rounded", "exact"])
@pytest.mark.parametrize("dtype", [Q8_0, Q4_0, MXFP4], ids=str)
def test_how_products_are_computed_has_no_gap(dtype, profile, most):
    """By rows: by tiles, then unpacked; never without tensor cores.

    A small weight goes by tiles where groups of a cluster can share the sum.
    """
    for rows in (9, 16, 64, 65, 128, 129, 512):
        for n in (1024, 14336):
            g = GraphBuilder("product")
            w, x = g.weight("w", (n, 4096), dtype), g.input("x", (rows, 4096))
            calls, _ = lowered(g.mul_mat(w, x), g=g, profile=profile)
            kernels = {call.kernel for call in calls if isinstance(call, KernelCall)}
            is_large = n == 14336 or profile is H200
            assert ("tile_product" in kernels) == (is_large and rows <= most)
            assert "matmul" not in kernels


def kernels_of(dtype, n, k, rows, profile):
    g = GraphBuilder("product")
    calls, _ = lowered(
        g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (rows, k))), g=g, profile=profile
    )
    return [getattr(call, "kernel", "product") for call in calls]


SHAPES = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)]
"""Of an 8B: queries, keys, gate, down, logits."""


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_weights_of_16_bits_leave_the_kernels_for_few_rows_where_cublas_is_quicker(dtype):
    few = 1 if dtype is BF16 else 4
    for rows, profile, is_product in ((few, H200, 0), (5, H200, 1), (64, H200, 1), (8, EXACT, 0)):
        kernels = kernels_of(dtype, 4096, 4096, rows, profile)
        assert kernels.count("product") == is_product, rows


@pytest.mark.parametrize("dtype", [Q8_0, Q4_0, MXFP4, Q5_1, Q4_K, Q6_K], ids=str)
@pytest.mark.parametrize("rows", [9, 16, 17, 32, 64])
def test_products_of_few_rows_keep_a_gpu_busy(dtype, rows):
    """Clusters of a weight are one wave, in which most multiprocessors have a group.

    Beside each other fit as many groups as are counted on, with their shared memory.
    """
    for n, k in SHAPES:
        g = GraphBuilder("product")
        made = g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (rows, k)))
        halves, call = lowered(made, g=g)[0]
        assert (halves.kernel, call.kernel) == ("to_halves", "tile_product")
        resident = int(dict(call.defines)["RESIDENT"])
        groups = call.groups[0] * call.groups[1] * call.groups[2]
        assert call.cluster == int(dict(call.defines)["SPLITS"])
        if call.cluster > 1:
            assert groups <= resident * H200.num_sms
        assert groups >= H200.num_sms / 3
        assert resident * (call.shared_nbytes + (4 << 10)) <= H200.local_nbytes


@pytest.mark.parametrize("profile", [H200, EXACT], ids=["rounded", "exact"])
@pytest.mark.parametrize("dtype", BY_ELEMENTS, ids=str)
def test_a_few_more_rows_are_passes_over_the_packed_weight(dtype, profile):
    """As long as they are predicted to be quicker; once they are not, they never are again.

    With rounded rows where tiles of a small weight would leave most multiprocessors idle.
    """
    n = 256 if profile is H200 else 4096
    for k in (4096, 14336):
        kernels = [kernels_of(dtype, n, k, rows, profile) for rows in (8, 9, 16, 32, 64)]
        are_passes = [some == ["matvec_blocks"] for some in kernels]
        assert are_passes[:2] == [True, True]
        assert are_passes == sorted(are_passes, reverse=True)
        assert not are_passes[-1]
        assert "matmul" not in {kernel for some in kernels for kernel in some}
    few = kernels_of(dtype, n, 4096, 16, profile)
    assert few == ["matvec_blocks"]


@pytest.mark.parametrize("dtype", [Q8_0, Q4_0, MXFP4], ids=str)
def test_a_few_more_rows_are_passes_without_clusters(dtype):
    kernels = [kernels_of(dtype, 4096, 4096, rows, EXACT) for rows in (8, 9, 16, 64)]
    assert [some == ["matvec_blocks"] for some in kernels] == [True, True, True, False]


def test_passes_are_of_one_weight_in_place():
    g = GraphBuilder("product")
    w, x = g.weight("w", (2, 4096, 4096), Q8_0), g.input("x", (2, 12, 4096))
    calls, _ = lowered(g.mul_mat(w, x), g=g)
    assert [call.kernel for call in calls] == ["matmul"], "weights of batches are not packed"
    older = warp_profile(0, 0, False)
    assert kernels_of(Q8_0, 4096, 4096, 12, older) != ["matvec_blocks"]


@pytest.mark.parametrize("name", ["f32", "tf32", "bf16"])
def test_factors_of_f32_are_rounded_as_declared(runner, monkeypatch, name):
    """And no further: the allowance of the next finer type is too small."""
    monkeypatch.setenv("GGSCHED_PRECISION", name)
    g = GraphBuilder("product")
    graph = g.build(g.mul_mat(g.weight("w", (24, 64)), g.input("x", (2, 19, 64))))
    values = drawn(graph, 1)
    with in_software(runner, arch=80), Scheduler(["cuda:0"], weights=values) as scheduler:
        assert scheduler.topology.devices[0].precision == name
        ((tid, found),) = scheduler.run(graph, {"x": values["x"]}).items()
    wanted = run_oracle(graph, values)
    finer = {"tf32": "f32", "bf16": "tf32"}.get(name)
    for kind, is_enough in ((name, True), *([(finer, False)] if finer else [])):
        assert (
            bool(far_off({tid: found}, graph, values, wanted, how=Rounds(False, kind))) != is_enough
        )


def test_an_unknown_precision_is_refused(monkeypatch):
    from ggsched.backend.precision import precision
    from ggsched.errors import UsageError

    monkeypatch.setenv("GGSCHED_PRECISION", "f16")
    with pytest.raises(UsageError, match="GGSCHED_PRECISION"):
        precision()


@pytest.mark.parametrize("text", ["", "auto", "f32", "f16"])
def test_the_setting(text, monkeypatch):
    from ggsched.backend.precision import activations
    from ggsched.errors import UsageError

    monkeypatch.setenv("GGSCHED_ACTIVATIONS", text)
    if text == "f16":
        with pytest.raises(UsageError, match="f16"):
            activations()
    else:
        assert activations() == (text or "auto")


@pytest.fixture(scope="module")
def runner(compiled_kernels):
    return Runner(compiled_kernels)


def like_products(columns):
    """Return products of the same rows with several weights of bf16."""
    g = GraphBuilder("products")
    x = g.input("x", (19, 64))
    weights = [g.weight(f"w{i}", (n, 64), BF16) for i, n in enumerate(columns)]
    return g.build(*(g.mul_mat(w, x) for w in weights))


def drawn(graph, seed):
    rng = np.random.default_rng(seed)
    leaves = (*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT))
    return {t.name: leaf_values(t, LeafRule(), rng) for t in leaves}


def run(runner, graph, values, arch=80):
    inputs = {t.name: values[t.name] for t in graph.roots(Role.INPUT)}
    with in_software(runner, arch=arch), Scheduler(["cuda:0"], weights=values) as scheduler:
        return {tid: a.copy() for tid, a in scheduler.run(graph, inputs).items()}


def calls_within_allowance(runner, graph, values, arch=90):
    """Compare results with the oracle's; return the calls of each program."""
    from ggsched_cuda import program
    from ggsched_cuda_kernels.kernel_selection import lower

    used = []
    wanted = run_oracle(graph, values)
    allowed = rounding_allowances(graph, values, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "lower", lambda *a: used.append(lower(*a)) or used[-1])
        found = run(runner, graph, values, arch)
    assert found.keys() >= wanted.keys()
    for tid, array in wanted.items():
        assert is_within(found[tid], array, allowed[tid])
    return [made for made, _ in used]


class TestRoundedOnTheHost:
    pytestmark = NEEDS

    @pytest.fixture(autouse=True)
    def _rounded(self, monkeypatch, unpacked):
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")

    @pytest.mark.parametrize("is_read", [False, True])
    def test_gate_and_up_of_many_rows_are_bf16(self, runner, monkeypatch, is_read):
        """Unless somebody else reads one of them; the next product gets rows from the same call."""
        monkeypatch.setattr("ggsched_cuda_kernels.gated_rows.NARROW_ROWS", 40)
        g = GraphBuilder("gated")
        x = g.input("x", (40, 64))
        gate, up = (g.mul_mat(g.weight(name, (96, 64), BF16), x) for name in ("gate", "up"))
        made = g.swiglu(gate, up)
        more = [g.scale(up, 2.0)] if is_read else []
        graph = g.build(g.mul_mat(g.weight("down", (48, 96), BF16), made), made, *more)
        values = drawn(graph, 5)
        programs = calls_within_allowance(runner, graph, values)
        calls = [c for made in programs for c in made if isinstance(c, KernelCall)]
        narrow = [c for c in calls if ("NARROW", "1") in c.defines]
        assert [("HALVES", "1") in c.defines for c in narrow] == ([] if is_read else [True])

    @pytest.mark.parametrize("dtype", [BF16, *PACKED], ids=str)
    @pytest.mark.parametrize(("n", "k"), [(24, 64), (300, 32)])
    def test_products(self, runner, dtype, n, k, monkeypatch):
        """In pieces too; each element keeps the bound of its type, and more than f32 is lost."""
        monkeypatch.setattr("ggsched_cuda_kernels.products.PIECE_NBYTES", 128 * 2 * k)
        g = GraphBuilder("product")
        w, x = g.weight("w", (n, k), dtype), g.input("x", (2, 19, k))
        graph = g.build(g.mul_mat(w, x))
        values = drawn(graph, n)
        wanted = run_oracle(graph, values)
        found, allowed = run(runner, graph, values), rounding_allowances(graph, values, wanted)
        ((tid, array),) = wanted.items()
        assert is_within(found[tid], array, allowed[tid])
        assert np.linalg.norm(found[tid] - array) > 1e-5 * np.linalg.norm(array)

    @pytest.mark.parametrize(
        ("columns", "products"),
        [((64, 64), [2]), ((96, 32, 32), [1, 2]), ((48, 48, 48), [3]), ((32, 64, 32), [1, 1, 1])],
        ids=str,
    )
    def test_like_weights_of_bf16_are_one_call(self, runner, columns, products, monkeypatch):
        """Wherever weights and results are: one product for each, or fewer."""
        monkeypatch.setenv("GGSCHED_STREAMS", "1")
        graph = like_products(columns)
        values = drawn(graph, 1)
        (calls,) = calls_within_allowance(runner, graph, values, arch=80)
        assert [1 + len(c.more) for c in calls if not isinstance(c, KernelCall)] == products

    @pytest.mark.parametrize(
        ("weights", "results", "batches"),
        [
            ((0, 1, 2), (0, 1, 2), [3]),
            ((2, 1, 0), (3, 2, 1), [3]),
            ((0, 1, 2), (2, 1, 0), [1, 1, 1]),
            ((1, 0, 2), (0, 1, 2), [1, 1, 1]),
            ((0, 1, 3), (0, 1, 2), [1, 1, 1]),
        ],
    )  # fmt: skip
    def test_where_like_weights_are(self, runner, weights, results, batches, monkeypatch):
        """Weights and results at some places of two buffers, in the order of the products."""
        from ggsched_cuda import program
        from ggsched_cuda.harness import CudaHarness

        graph = like_products((48, 48, 48))
        values, counts, product = drawn(graph, 1), [], program.Product
        monkeypatch.setattr(
            program,
            "Product",
            lambda *a, **how: counts.append(how["batches"][0]) or product(*a, **how),
        )
        wanted = run_oracle(graph, values)
        allowed = rounding_allowances(graph, values, wanted)
        w_nbytes, y_nbytes = 48 * 64 * 2, 19 * 48 * 4
        with in_software(runner):
            (device,) = CudaHarness().open(1, 0)
            stream = device.create_stream()
            given, made = device.allocate(4 * w_nbytes), device.allocate(4 * y_nbytes)
            rows = device.allocate(values["x"].nbytes)
            stream.upload(memoryview(values["x"]).cast("B"), rows, 0)
            nodes = []
            for i, node in enumerate(bound_nodes(graph, {t.id: rows for t in graph.tensors})):
                w, x = node.inputs
                place = w_nbytes * weights[i]
                stream.upload(memoryview(values[f"w{i}"]).cast("B"), given, place)
                w = replace(w, buffer=given, offset=place)
                y = replace(node.output, buffer=made, offset=y_nbytes * results[i])
                nodes.append(replace(node, inputs=(w, x), output=y))
            stream.launch(device.compile(nodes, stream))
            for (tid, array), place in zip(wanted.items(), results, strict=True):
                found = np.empty(array.shape, np.float32)
                stream.download(made, y_nbytes * place, memoryview(found).cast("B"))
                stream.sync(20)
                assert is_within(found, array, allowed[tid])
            device.close()
        assert counts == batches

    @pytest.mark.parametrize("dtype", [F16, Q8_0, MXFP4, BF16], ids=str)
    def test_rows_of_any_size(self, runner, dtype):
        """Rows that f16 cannot hold are scaled one by one; what is not finite stays in its row."""
        g = GraphBuilder("product")
        graph = g.build(g.mul_mat(g.weight("w", (40, 160), dtype), g.input("x", (18, 160))))
        values = drawn(graph, 2)
        sizes = 10.0 ** np.array([0, -30, -20, -7, 5, 20, 30, 35, -36, 0, 0, 0, 4, -3, 0, 0, 0, 0])
        values["x"] *= sizes[:, None].astype(np.float32)
        values["x"][9:12, 7] = np.inf, -np.inf, np.nan
        with np.errstate(all="ignore"):
            ((tid, wanted),) = run_oracle(graph, values).items()
        found = run(runner, graph, values)[tid]
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
        for row in {*range(18)} - {9, 10, 11}:
            a, b = (v[row].astype(np.float64) / sizes[row] for v in (found, wanted))
            assert np.linalg.norm(a - b) <= 6e-3 * np.linalg.norm(b), row

    @pytest.mark.parametrize("dtype", BY_ELEMENTS, ids=str)
    def test_products_of_types_of_parts(self, runner, dtype):
        """Whose rows f16 holds, and whose scales are the smallest and the largest."""
        n, k = 12, 2 * dtype.block
        g = GraphBuilder("product")
        graph = g.build(g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (19, k))))
        values = drawn(graph, n)
        blocks = values["w"].reshape(n, 2, dtype.block_nbytes)
        scales = [p.at for p in (dtype.layout.scale, dtype.layout.min) if p is not None]
        for rows, scale in ((slice(0, 3), 6e-8), (slice(3, 6), 65504.0)):
            for at in scales:
                blocks[rows, :, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        ((tid, wanted),) = run_oracle(graph, values).items()
        found = run(runner, graph, values)[tid]
        allowed = rounding_allowances(graph, values, {tid: wanted})[tid]
        assert is_within(found, wanted, allowed)
        for part in (slice(0, 3), slice(3, 6), slice(6, 12)):
            a, b = (v[:, part].astype(np.float64) for v in (found, wanted))
            assert 1e-6 * np.linalg.norm(b) < np.linalg.norm(a - b) <= 8e-4 * np.linalg.norm(b)

    @pytest.mark.parametrize("dtype", [Q8_0, Q4_0, MXFP4], ids=str)
    def test_weights_that_f16_cannot_hold(self, runner, dtype):
        """Rows whose scales are the smallest and the largest that the type has."""
        g = GraphBuilder("product")
        graph = g.build(g.mul_mat(g.weight("w", (12, 64), dtype), g.input("x", (16, 64))))
        values = drawn(graph, 4)
        blocks = values["w"].reshape(12, 2, dtype.block_nbytes)
        if dtype is MXFP4:
            blocks[:4, :, 0], blocks[4:8, :, 0] = 20, 240
        else:
            blocks[:4, :, :2] = np.frombuffer(np.float16(1e-7).tobytes(), np.uint8)
            blocks[4:8, :, :2] = np.frombuffer(np.float16(65504).tobytes(), np.uint8)
        ((tid, wanted),) = run_oracle(graph, values).items()
        found = run(runner, graph, values)[tid]
        for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
            a, b = (v[:, part].astype(np.float64) for v in (found, wanted))
            assert np.linalg.norm(a - b) <= 8e-4 * np.linalg.norm(b)


class TestPassesOnTheHost:
    pytestmark = NEEDS

    @pytest.mark.parametrize("mode", ["f32", "auto"])
    @pytest.mark.parametrize(("dtype", "rows"), [(Q8_0, 17), (Q4_K, 10)], ids=str)
    def test_products(self, runner, dtype, rows, mode, monkeypatch):
        """Nothing is rounded, in either mode; rows do not touch each other."""
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", mode)
        g = GraphBuilder("product")
        w, x = g.weight("w", (35, 256), dtype), g.input("x", (rows, 256))
        graph = g.build(g.mul_mat(w, x))
        values = drawn(graph, rows)
        values["x"][1] *= np.float32(1e30)
        values["x"][2] *= np.float32(1e-20)
        values["x"][9, 7] = np.inf
        with np.errstate(all="ignore"):
            ((tid, wanted),) = run_oracle(graph, values).items()
        found = run(runner, graph, values)[tid]
        assert np.isnan(found[9]).all(), "an infinity times a block is not taken apart"
        for row in {*range(rows)} - {9}:
            error = np.linalg.norm((found[row] - wanted[row]) / np.abs(wanted[row]).max())
            assert error < WITHIN, row


class TestOnTheHost:
    pytestmark = NEEDS

    @pytest.fixture(autouse=True)
    def exact(self, monkeypatch, unpacked):
        monkeypatch.setenv("GGSCHED_ACTIVATIONS", "f32")

    @pytest.mark.parametrize("dtype", [BF16, *PACKED], ids=str)
    @pytest.mark.parametrize(("n", "k"), [(24, 64), (77, 96), (300, 32)])
    def test_products(self, runner, dtype, n, k, monkeypatch):
        """In pieces too; the second product begins with rows that the first has converted."""
        monkeypatch.setattr("ggsched_cuda_kernels.products.PIECE_NBYTES", 128 * 4 * k)
        g = GraphBuilder("products")
        x = g.input("x", (37, k))
        graph = g.build(*(g.mul_mat(g.weight(name, (n, k), dtype), x) for name in "ab"))
        values = drawn(graph, n)
        found = run(runner, graph, values)
        for tid, wanted in run_oracle(graph, values).items():
            error = np.linalg.norm(found[tid] - wanted) / np.linalg.norm(wanted)
            assert error < WITHIN

    @pytest.mark.parametrize("k", [1, 6, 63])
    def test_rows_that_are_no_multiple(self, runner, k):
        g = GraphBuilder("products")
        graph = g.build(g.mul_mat(g.weight("w", (5, k), F16), g.input("x", (2, 33, k))))
        values = drawn(graph, k)
        ((tid, found),) = run(runner, graph, values).items()
        np.testing.assert_allclose(found, run_oracle(graph, values)[tid], 1e-4, 1e-4)

    @pytest.mark.parametrize("dtype", [F16, Q8_0], ids=str)
    def test_what_is_not_finite_stays_with_its_row(self, runner, dtype):
        g = GraphBuilder("product")
        graph = g.build(g.mul_mat(g.weight("w", (8, 32), dtype), g.input("x", (40, 32))))
        values = drawn(graph, 3)
        values["x"][:4, 5] = np.inf, -np.inf, np.nan, 3.4e38
        with np.errstate(all="ignore"):
            ((tid, found),) = run(runner, graph, values).items()
            wanted = run_oracle(graph, values)[tid]
        # The oracle's own sums of huge numbers may overflow on another way.
        np.testing.assert_array_equal(np.isnan(found[:3]), np.isnan(wanted[:3]))
        np.testing.assert_array_equal(np.isinf(found[:3]), np.isinf(wanted[:3]))
        np.testing.assert_array_equal(np.sign(found[:3]), np.sign(wanted[:3]))
        np.testing.assert_allclose(found[3], wanted[3], 1e-4)
        np.testing.assert_allclose(found[4:], wanted[4:], 1e-4, 1e-4)

    @pytest.mark.parametrize(
        ("w", "x", "kernels", "products"),
        [
            ((24, 36), (3, 2, 17, 36), ["copy_f32"], 1),  # uneven: one weight for all batches
            ((3, 2, 24, 36), (3, 2, 17, 36), [], 3),  # batches of batches that are apart
        ],
    )
    def test_batches_of_f32_that_lie_apart(self, runner, w, x, kernels, products):
        """As of heads of images: (images, tokens, heads, elements) seen with heads in front."""
        from ggsched_cuda_kernels.kernel_selection import lower

        g = GraphBuilder("batches")
        images, heads, tokens, k = x
        rows = g.permute(g.input("x", (images, tokens, heads, k)), 0, 2, 1, 3)
        graph = g.build(g.mul_mat(g.weight("w", w, F32), rows))
        memory = {t.id: Memory(0) for t in graph.tensors if not t.is_view}
        calls, _ = lower(bound_nodes(graph, memory), EXACT)
        made = [call.kernel for call in calls if isinstance(call, KernelCall)]
        assert made == kernels
        assert len(calls) == len(kernels) + products
        values = drawn(graph, 1)
        ((tid, found),) = run(runner, graph, values).items()
        np.testing.assert_allclose(found, run_oracle(graph, values)[tid], 1e-5, 1e-5)

    def test_batches_of_batches_are_one_call_where_they_follow_each_other(self):
        from ggsched_cuda_kernels.kernel_selection import lower

        g = GraphBuilder("batches")
        graph = g.build(g.mul_mat(g.input("w", (3, 4, 24, 36)), g.input("x", (3, 4, 17, 36))))
        memory = {t.id: Memory(0) for t in graph.tensors if not t.is_view}
        ((call,), _) = lower(bound_nodes(graph, memory), EXACT)
        assert call.batches[0] == 12

    @pytest.mark.parametrize("heads", [(1, 1), (2, 6)])
    def test_columns_side_by_side(self, runner, heads):
        """As of values of a cache: they are multiplied where they lie."""
        (groups, count), n, k, m = heads, 20, 36, 23
        g = GraphBuilder("values")
        cache, x = g.input("cache", (k, groups, n)), g.input("x", (count, m, k))
        graph = g.build(g.mul_mat(g.permute(cache, 1, 2, 0), x))
        memory = {t.id: Memory(0) for t in graph.tensors if not t.is_view}
        from ggsched_cuda_kernels.kernel_selection import lower

        calls, _ = lower(bound_nodes(graph, memory), EXACT)
        assert not any(isinstance(call, KernelCall) for call in calls)
        assert all(call.has_columns for call in calls)
        values = drawn(graph, 1)
        ((tid, found),) = run(runner, graph, values).items()
        np.testing.assert_allclose(found, run_oracle(graph, values)[tid], 1e-5, 1e-5)


@pytest.mark.parametrize("rows", [9, 17, 32])
class TestFewRowsAtATime:
    pytestmark = NEEDS

    @pytest.mark.parametrize("dtype", [Q8_0, MXFP4], ids=str)
    def test_they_are_exact_and_in_place(self, runner, dtype, rows):
        """Also where rows of x and of the result have gaps, and beside a result that follows."""
        g = GraphBuilder("product")
        x = g.view(g.input("x", (rows, 96)), (rows, 64), (4 * 96, 4))
        y = g.mul_mat(g.weight("w", (40, 64), dtype), x)
        graph = g.build(y, g.add(y, g.input("z", (rows, 40))))
        values = drawn(graph, rows)
        found = run(runner, graph, values)
        for tid, wanted in run_oracle(graph, values).items():
            np.testing.assert_allclose(found[tid], wanted, 1e-4, 1e-4)


class TestKernelsOfCublas:
    """They are loaded when a product is compiled, so that a first launch waits for nothing."""

    pytestmark = NEEDS

    @pytest.fixture
    def gpu(self, runner):
        from ggsched_cuda.harness import CudaHarness

        with in_software(runner) as driver:
            (device,) = CudaHarness().open(1, 0)
            yield driver, device, device.create_stream()
            device.close()

    def prepared(self, device, stream, count):
        """Return a graph of like products, its values, its buffers, and nodes that are bound."""
        g = GraphBuilder("products")
        x = g.input("x", (20, 32))
        graph = g.build(*(g.mul_mat(g.weight(f"w{i}", (24, 32)), x) for i in range(count)))
        buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors}
        values = drawn(graph, 3)
        for t in graph.tensors:
            if t.name in values:
                stream.upload(memoryview(values[t.name]).cast("B"), buffers[t.id], 0)
        return graph, values, buffers, bound_nodes(graph, buffers)

    def check(self, stream, program, graph, values, buffers):
        stream.launch(program)
        for tid, wanted in run_oracle(graph, values).items():
            found = np.empty(wanted.shape, np.float32)
            stream.download(buffers[tid], 0, memoryview(found).cast("B"))
            stream.sync(20)
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)

    def test_each_is_loaded_once_and_nothing_runs(self, gpu):
        driver, device, stream = gpu
        graph, values, buffers, nodes = self.prepared(device, stream, 3)
        stream.sync(20)
        before = driver.counts.copy()
        programs = [device.compile(nodes, stream) for _ in range(2)]
        made = driver.counts - before
        assert made["loaded"] == made["kernel"] == 1, "all products of both programs are alike"
        assert not driver.query_stream(stream.handle)[0]
        for program in programs:
            self.check(stream, program, graph, values, buffers)
        assert (driver.counts - before)["loaded"] == 1

    def test_a_stream_that_is_held_is_left_alone(self, gpu):
        from ggsched_cuda.harness import KernelLatch

        driver, device, stream = gpu
        graph, values, buffers, nodes = self.prepared(device, stream, 1)
        latch = KernelLatch(stream)
        program = device.compile(nodes, stream)
        assert driver.counts["loaded"] == 1
        latch.release()
        self.check(stream, program, graph, values, buffers)

    def test_a_driver_that_refuses_is_no_fault(self, gpu, monkeypatch, caplog):
        from ggsched_cuda.capture import driver as capturing
        from ggsched_cuda.driver import CudaError

        def refuse(graph):
            raise CudaError("cuFuncLoad", 801, "CUDA_ERROR_NOT_SUPPORTED")

        driver, device, stream = gpu
        monkeypatch.setattr(capturing, "load_kernels", refuse)
        graph, values, buffers, nodes = self.prepared(device, stream, 2)
        self.check(stream, device.compile(nodes, stream), graph, values, buffers)
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert not driver._graphs


# --- groups -------------------------------------------------------------------------------------


def product_and_sums(g, dtype, rows, width, sums):
    y = g.mul_mat(g.weight("w", (64, width), dtype), g.input("x", (rows, width)))
    for i in range(sums):
        y = g.add(y, g.input(f"z{i}", y.shape))
    return y


def gated(g, dtype, rows, width):
    x = g.input("x", (rows, width))
    return g.swiglu(*(g.mul_mat(g.weight(n, (64, width), dtype), x) for n in ("gate", "up")))


def gated_experts(g, dtype, rows, width):
    x, ids = g.input("x", (rows, 1, width)), g.input("ids", (rows, 2), I32)
    both = (g.op("mul_mat_id", g.weight(n, (4, 64, width), dtype), x, ids) for n in ("gate", "up"))
    return g.swiglu(*both)


def experts(g, dtype, rows, width, scaled):
    x, ids = g.input("x", (rows, 1, width)), g.input("ids", (rows, 2), I32)
    y = g.op("mul_mat_id", g.weight("w", (4, 64, width), dtype), x, ids)
    y = g.op("add_id", y, g.input("bias", (4, 64)), ids)
    return g.mul(y, g.input("scale", (rows, 2, 1))) if scaled else y


GROUPS = {
    "mul_mat+add": lambda *a: product_and_sums(*a, 1),
    "mul_mat+add+add": lambda *a: product_and_sums(*a, 2),
    "mul_mat*2+swiglu": gated,
    "mul_mat_id+add_id": lambda *a: experts(*a, False),
    "mul_mat_id+add_id+mul": lambda *a: experts(*a, True),
    "mul_mat_id*2+swiglu": gated_experts,
}


def lowered_as(graph, group, profile):
    """Return kernels, definitions and grids of the calls of a graph, and those of products."""
    from ggsched_cuda_kernels.kernel_selection import lower

    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = [replace(node, group=group) for node in bound_nodes(graph, memory)]
    calls, _ = lower(nodes, profile)
    return [
        (c.kernel, c.defines, c.groups) if isinstance(c, KernelCall) else (c.kind, c.size, c.adds)
        for c in calls
    ]


@pytest.mark.parametrize("dtype", [F32, BF16, *PACKED, Q4_K], ids=str)
@pytest.mark.parametrize("pattern", GROUPS)
@pytest.mark.parametrize("units", [132, 2], ids=["H200", "few multiprocessors"])
def test_groups_round_where_single_nodes_do(pattern, dtype, units, monkeypatch):
    """Where a product's activations are rounded, a group's calls are those of its nodes.

    That sums are one kernel, of few elements where they are no group, is left out: none is rounded.
    """
    from ggsched_cuda_kernels import kernel_selection

    of_sums = kernel_selection.join_elements, kernel_selection.join_chain_rows
    rules = [r for r in kernel_selection.JOINERS if r not in of_sums]
    monkeypatch.setattr(kernel_selection, "JOINERS", tuple(rules))
    width = 256 if dtype is Q4_K else 64
    profile, rounded = replace(H200, num_sms=units), 0
    for rows in (1, 2, 4, 5, 8, 9, 16, 33, 64, 65, 128, 129, 512):
        g = GraphBuilder(pattern)
        graph = g.build(GROUPS[pattern](g, dtype, rows, width))
        group = Group(pattern, tuple(range(len(graph.nodes))))
        alone, together = (lowered_as(graph, which, profile) for which in (None, group))
        if any(kernel in ("to_halves", "to_bf16", "to_f16") for kernel, *_ in alone):
            rounded += 1
            assert together == alone, rows
        else:
            assert not {k for k, *_ in together} & {"to_halves", "to_f16", "tile_product"}, rows
    assert rounded or dtype in (F32, Q4_K)
