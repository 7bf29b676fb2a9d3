"""Equations and factorisations of small matrices, without PyTorch, on drawn ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import ModelError
from ggsched_import.torch.ops_linalg import MAX_ORDER
from tests.importers.torch_calls import called

CASES = {
    "seed": st.integers(0, 2**32 - 1),
    "n": st.integers(1, 5),
    "batches": st.sampled_from([((), ()), ((2,), (2,)), ((), (2, 1)), ((2, 1), (3,))]),
}
FEW = settings(max_examples=3)


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)


@FEW
@given(**CASES, left=st.booleans())
def test_equations(seed, n, batches, left):
    """Rows in any order: a pivot is chosen in each column."""
    a = drawn(seed, *batches[0], n, n) + 5 * np.eye(n)
    a = np.random.default_rng(seed).permutation(a, axis=-2)
    b = drawn(seed + 1, *batches[1], *((n, 2) if left else (2, n)))
    found, _, _, info = called("_linalg_solve_ex.default", a, b, left=left, used={0, 3})
    close(a @ found if left else found @ a, np.broadcast_to(b, found.shape))
    assert not info.any()
    assert info.dtype == np.int32
    found, _ = called("linalg_inv_ex.default", a, used={0})
    close(found, np.linalg.inv(a))
    sign, size, *_ = called("_linalg_slogdet.default", a)
    close(sign, np.linalg.slogdet(a)[0])
    close(size, np.linalg.slogdet(a)[1])


@FEW
@given(seed=CASES["seed"], n=CASES["n"])
def test_equations_of_vectors(seed, n):
    a = drawn(seed, 2, n, n) + 5 * np.eye(n)
    for batch in ((), (2,)):
        b = drawn(seed + 1, *batch, n)
        found = called("_linalg_solve_ex.default", a, b, used={0})[0]
        close(np.einsum("bij,bj->bi", a, found), np.broadcast_to(b, (2, n)))


@FEW
@given(**CASES, upper=st.booleans())
def test_factors_of_cholesky_and_what_they_solve(seed, n, batches, upper):
    a = drawn(seed, *batches[0], n, n)
    a = a @ np.swapaxes(a, -1, -2) + np.eye(n)
    half = np.triu(a) if upper else np.tril(a)  # of which alone it may depend
    factor, info = called("linalg_cholesky_ex.default", half, upper=upper)
    wanted = np.linalg.cholesky(a)
    close(factor, np.swapaxes(wanted, -1, -2) if upper else wanted)
    assert not info.any()
    b = drawn(seed + 1, *batches[1], n, 2)
    found = called("cholesky_solve.default", b, factor, upper)
    close(a @ found, np.broadcast_to(b, found.shape))
    close(called("cholesky_inverse.default", factor, upper), np.linalg.inv(a))


@FEW
@given(**CASES, upper=st.booleans(), left=st.booleans(), unit=st.booleans())
def test_triangles(seed, n, batches, upper, left, unit):
    a = drawn(seed, *batches[0], n, n) + 3 * np.eye(n)
    b = drawn(seed + 1, *batches[1], *((n, 2) if left else (2, n)))
    triangle = np.triu(a) if upper else np.tril(a)
    if unit:
        triangle = triangle - triangle * np.eye(n) + np.eye(n)
    how = {"upper": upper, "left": left, "unitriangular": unit}
    found = called("linalg_solve_triangular.default", a, b, **how)
    close(triangle @ found if left else found @ triangle, np.broadcast_to(b, found.shape))
    if left:
        for turned in (False, True):
            found, _ = called("triangular_solve.default", b, a, upper, turned, unit)
            full = np.swapaxes(triangle, -1, -2) if turned else triangle
            close(full @ found, np.broadcast_to(b, found.shape))


@pytest.mark.parametrize("n", [1, 12])
def test_f32_is_as_exact_as_the_condition_allows(n):
    a = (drawn(1, n, n) + 2 * np.eye(n)).astype(np.float32)
    found, _ = called("linalg_inv_ex.default", a, used={0})
    wanted = np.linalg.inv(a.astype(np.float64))
    bound = 4 * np.linalg.cond(a) * np.finfo(np.float32).eps * np.abs(wanted).max()
    assert np.abs(found - wanted).max() < bound


def test_singular_matrices_give_no_finite_numbers_and_a_code():
    singular = np.array([[[1.0, 2.0], [2.0, 4.0]], [[1, 0], [0, 2]]])
    found, info = called("linalg_inv_ex.default", singular)
    assert not np.isfinite(found[0]).all()
    close(found[1], [[1, 0], [0, 0.5]])
    assert (info != 0).tolist() == [True, False]
    _, info = called("linalg_cholesky_ex.default", -singular)
    assert (info != 0).all()


def test_large_matrices_and_factors_of_solutions_are_refused():
    large = np.zeros((MAX_ORDER + 1, MAX_ORDER + 1))
    with pytest.raises(ModelError, match=f"a matrix of order {MAX_ORDER + 1} is not supported"):
        called("linalg_inv_ex.default", large)
    with pytest.raises(ModelError, match="the factors of a solution are not supported"):
        called("_linalg_solve_ex.default", np.eye(2), np.eye(2), used={0, 1})
