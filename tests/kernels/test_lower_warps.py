"""Which kernel a matrix-vector product becomes on devices with warps, and whether it fits there."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_1, Q4_K, Q6_K, Q8_0
from ggsched.ir.tensor import contiguous_strides
from ggsched_kernels import GPU, lower_nodes, warp_profile
from ggsched_kernels.block_constants import KERNEL_BLOCKS, KERNEL_DTYPES
from ggsched_kernels.lower_warps import WARP_BLOCKS

H200 = warp_profile(num_sms=132, local_nbytes=232448, has_tma=True)
OPENCL = replace(
    GPU, num_sms=132, few_rows=8, joins=True, matrix_units=True, activations="auto", lanes=512,
    staged_nbytes=180 << 10,
)  # fmt: skip
A100 = warp_profile(num_sms=108, local_nbytes=166912, has_tma=False)
FREE_NBYTES = 48 << 10


def operand(dtype, *shape, offset=0):
    nbytes = dtype.row_nbytes(shape[-1])
    for n in shape[:-1]:
        nbytes *= n
    buffer = SimpleNamespace(nbytes=offset + nbytes)
    return Operand(buffer, offset, nbytes, dtype, shape, contiguous_strides(dtype, shape))


def mul_mat(dtype, n, k, m, profile=H200, offset=0):
    w, x, y = operand(dtype, n, k, offset=offset), operand(F32, m, k), operand(F32, m, n)
    return lower_nodes([BoundNode(0, "mul_mat", (w, x), y, {}, "n0 mul_mat")], profile).calls


def mul_mat_id(dtype, experts, n, k, tokens, used, profile=H200):
    w, x = operand(dtype, experts, n, k), operand(F32, tokens, 1, k)
    ids, y = operand(I32, tokens, used), operand(F32, tokens, used, n)
    node = BoundNode(0, "mul_mat_id", (w, x, ids), y, {}, "n0 mul_mat_id")
    return lower_nodes([node], profile).calls


WARP_DTYPES = [t for t in KERNEL_DTYPES if not t.is_quantized or t.name in WARP_BLOCKS]


@pytest.mark.parametrize("dtype", WARP_DTYPES, ids=str)
@pytest.mark.parametrize("m", [1, 5, 8, 9])
def test_kernels_by_type_and_columns(dtype, m):
    few = "matvec_blocks" if dtype.is_quantized else "matvec_rows"
    assert [c.kernel for c in mul_mat(dtype, 4096, 4096, m)] == [few if m <= 8 else "matmul"]
    assert mul_mat(dtype, 4096, 4096, m, GPU)[0].kernel == ("matvec" if m <= 4 else "matmul")


def test_blocks_of_every_type_become_bytes():
    assert set(WARP_BLOCKS) == {str(t) for t in KERNEL_BLOCKS}


@pytest.mark.parametrize(("dtype", "offset"), [(Q4_K, 144 // 2), (Q4_1, 2), (Q6_K, 1)], ids=str)
def test_blocks_that_do_not_begin_where_words_are_loaded(dtype, offset):
    assert [c.kernel for c in mul_mat(dtype, 64, 4096, 1, offset=offset)] == ["matvec"]


@pytest.mark.parametrize(
    ("dtype", "kernel"), [(BF16, "matvec_rows_id"), (MXFP4, "matvec_blocks_id")]
)
def test_kernels_of_experts(dtype, kernel):
    assert [c.kernel for c in mul_mat_id(dtype, 32, 5760, 2880, 1, 4)] == [kernel]
    assert mul_mat_id(dtype, 32, 5760, 2880, 100, 4)[0].kernel == "list_rows"


@pytest.mark.parametrize(("dtype", "k"), [(F32, 33), (F16, 12), (BF16, 4)])
def test_rows_that_are_not_aligned(dtype, k):
    assert mul_mat(dtype, 64, k, 1)[0].kernel == "matvec"


def test_a_weight_at_an_odd_place():
    assert mul_mat(F16, 64, 64, 1, offset=8)[0].kernel == "matvec"
    (call,) = mul_mat(Q8_0, 64, 256, 1, offset=34)
    assert ("ALIGNED", "0") in call.defines
    (call,) = mul_mat(Q8_0, 64, 256, 1)
    assert ("ALIGNED", "1") in call.defines


@pytest.mark.parametrize("profile", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize("dtype", KERNEL_BLOCKS, ids=str)
@pytest.mark.parametrize("k", [32, 320, 1056, 2080, 2880, 4096, 11008, 28672, 53248])
def test_blocks_fit_local_memory(profile, dtype, k):
    k = -(-k // dtype.block) * dtype.block
    for n in (1, 300, 5000, 128256):
        for m in (1, 2, 4, 8):
            for call in mul_mat(dtype, n, k, m, profile):
                if call.kernel != "matvec_blocks":
                    assert k * m > 20000, "a fallback for what cannot be in local memory"
                    continue
                assert call.shared_nbytes + 3072 <= profile.local_nbytes
                assert call.shared_nbytes <= FREE_NBYTES - 3072 or call.shared_nbytes > FREE_NBYTES
                assert call.lanes <= 1024
                assert 0 < call.groups[0] <= -(-n // 16)


def test_a_warp_more_where_it_feeds_the_others():
    (call,) = mul_mat(Q8_0, 4096, 4096, 1)
    defines = dict(call.defines)
    assert call.lanes == int(defines["LANES"]) + 32
    (call,) = mul_mat(Q8_0, 4096, 4096, 1, A100)
    assert call.lanes == int(dict(call.defines)["LANES"])


def staged(dtype, n, k, m=1, profile=OPENCL):
    """Return definitions and groups of a product whose blocks are copied to local memory first."""
    (call,) = mul_mat(dtype, n, k, m, profile)
    defines = {name: int(value) for name, value in call.defines}
    return (defines, call.groups[0]) if "STAGED" in defines else None


@pytest.mark.parametrize("dtype", KERNEL_BLOCKS, ids=str)
@pytest.mark.parametrize("k", [256, 2048, 2816, 8192, 14336, 28672])
def test_copies_fit_local_memory_and_keep_multiprocessors_busy(dtype, k):
    for n in (512, 2048, 14336, 128256):
        found = staged(dtype, n, k)
        if found is None:
            assert k == 28672
            continue
        defines, groups = found
        stage = defines["STAGES"] * defines["AT_ONCE"] * (dtype.row_nbytes(1024) + 32)
        assert defines["PIECES"] * 112 + defines["LANES"] // 32 * stage <= OPENCL.staged_nbytes
        assert defines["PIECES"] * 32 >= k
        assert min(n // 32, 96) <= groups <= 132


def test_products_that_are_not_copied_first():
    assert staged(Q8_0, 64, 8192)
    assert not staged(Q8_0, 64, 65536)
    assert not any(staged(t, 64, 8192, m) for t, m in ((Q8_0, 2), (BF16, 1), (F16, 1)))
    for changed in ({"matrix_units": False}, {"activations": "f32"}):
        assert not staged(Q8_0, 64, 8192, profile=replace(OPENCL, **changed))
