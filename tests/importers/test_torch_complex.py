"""Complex numbers of PyTorch and Fourier transforms, without PyTorch, on drawn operands."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import ModelError
from ggsched_import.common import fourier
from ggsched_import.common.emit import Const
from tests.importers.torch_calls import called

SEEDS = st.integers(0, 2**32 - 1)
KINDS = st.sampled_from(["complex64", "complex128"])


def drawn(seed, kind, *shape):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)


def close(found, wanted, kind):
    eps = 300 * np.finfo(kind).eps
    scale = max(1, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(found, wanted, rtol=eps, atol=eps * scale)


FUNCTIONS = {
    "abs.default": np.abs,
    "angle.default": np.angle,
    "exp.default": np.exp,
    "log.default": np.log,
    **{f"{f.__name__}.default": f for f in (np.sin, np.cos, np.sinh, np.cosh, np.tanh)},
    "sigmoid.default": lambda x: 1 / (1 + np.exp(-x)),
    "linalg_vector_norm.default": np.linalg.norm,
    "sqrt.default": np.sqrt,
    "neg.default": np.negative,
    "reciprocal.default": lambda x: 1 / x,
    "_conj.default": np.conj,
    "sgn.default": lambda x: x / np.abs(x),
    "isfinite.default": np.isfinite,
    "sum.default": np.sum,
    "mean.default": np.mean,
    "view_as_real.default": lambda x: np.stack((x.real, x.imag), -1),
    "ones_like.default": np.ones_like,
}


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("kind", ["complex64", "complex128"])
def test_functions(op, kind):
    x = drawn(1, kind, 3, 4) * 3
    found, wanted = called(op, x), FUNCTIONS[op](x)
    assert found.dtype == wanted.dtype
    close(found, wanted, kind)


@settings(max_examples=2)
@given(seed=SEEDS, kind=KINDS)
def test_arithmetic_with_complex_and_real_operands(seed, kind):
    a, b = drawn(seed, kind, 2, 3), drawn(seed + 1, kind, 3)
    reals = b.real.copy()
    for name, f in {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide
    }.items():  # fmt: skip
        for x, y in ((a, b), (a, reals), (reals, a), (a, 2.5), (a, 2 - 1j), (reals, 1j)):
            found, wanted = called(f"{name}.Tensor", x, y), f(x, y)
            assert found.dtype == kind
            close(found, wanted, kind)
    close(called("rsub.Scalar", a, 3), 3 - a, kind)
    close(called("add.Tensor", a, b, alpha=2j), a + 2j * b, kind)
    close(called("matmul.default", a, a.T.copy()), a @ a.T, kind)
    close(called("matmul.default", a, a.T.real.copy()), a @ a.T.real, kind)
    close(called("linear.default", a, a, drawn(5, kind, 2)), a @ a.T + drawn(5, kind, 2), kind)
    close(called("addmm.default", b, a.T.copy(), a, beta=2, alpha=1j), 2 * b + 1j * (a.T @ a), kind)
    for exponent in (2, -3, 2.5, 1 + 1j):
        close(called("pow.Tensor_Scalar", a, exponent), a**exponent, kind)
    for name, f in {"eq": np.equal, "ne": np.not_equal}.items():
        np.testing.assert_array_equal(called(f"{name}.Tensor", a, a[:1].copy()), f(a, a[:1]))


def test_roots_are_those_of_the_right_half():
    x = np.array([0, 4, -4, -4 - 0j, 2j, -2j, -3 + 4j, -3 - 4j, 1e-30, 1e30j])
    close(called("sqrt.default", x), np.sqrt(x), "complex128")


def test_elements_are_moved_as_real_ones_are():
    kind = "complex128"
    x = drawn(3, kind, 2, 3, 4)
    close(called("permute.default", x, [2, 0, 1]), x.transpose(2, 0, 1), kind)
    close(called("view.default", x, [6, -1]), x.reshape(6, 4), kind)
    close(called("slice.Tensor", x, 1, 1, 9), x[:, 1:], kind)
    close(called("expand.default", x[:, :1].copy(), [2, 5, 4]), np.repeat(x[:, :1], 5, 1), kind)
    first, second = called("split.Tensor", x, 3, 2)
    close(first, x[..., :3], kind)
    close(second, x[..., 3:], kind)
    mask = x.real > 0
    close(called("where.self", mask, x, 1.0), np.where(mask, x, 1), kind)
    close(called("where.self", mask, x.real.copy(), x), np.where(mask, x.real, x), kind)
    close(called("constant_pad_nd.default", x, [1, 2], 3.0),
          np.pad(x, [(0, 0), (0, 0), (1, 2)], constant_values=3), kind)  # fmt: skip
    close(called("_to_copy.default", x.real.copy(), dtype="c128"), x.real, kind)
    assert called("_to_copy.default", x, dtype="f64").dtype == np.float64
    close(called("full_like.default", x.real.copy(), 1j), np.full_like(x, 1j), kind)
    close(called("index.Tensor", x, [None, Const(np.array([2, 0]))]), x[:, [2, 0]], kind)


def test_ops_that_do_not_take_complex_numbers_are_named():
    with pytest.raises(ModelError, match="the op 'erf.default' on complex numbers is not supp"):
        called("erf.default", np.ones(2, np.complex64))


@settings(max_examples=8)
@given(
    seed=SEEDS,
    kind=KINDS,
    n=st.integers(1, 40),
    extents=st.sampled_from([(), (3,), (2, 3)]),
    place=st.integers(0, 2),
    norm=st.integers(0, 2),
    limit=st.sampled_from([4, 1024]),
)
def test_transforms_are_those_of_numpy(seed, kind, n, extents, place, norm, limit):
    """Whether they are one product or are split into those of factors."""
    axis = min(place, len(extents))
    shape = (*extents[:axis], n, *extents[axis:])
    x = drawn(seed, kind, *shape)
    bins = n // 2 + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fourier, "ONE_PRODUCT", limit)
        forward, back = (
            called("_fft_c2c.default", x, [axis], norm, is_forward) for is_forward in (True, False)
        )
        full, half = (
            called("_fft_r2c.default", x.real.copy(), [axis], norm, is_half)
            for is_half in (False, True)
        )
        signal = called("_fft_c2r.default", np.take(x, range(bins), axis), [axis], norm, n)
    names = ("backward", "ortho", "forward")
    forwards, backwards = names[norm], names[::-1][norm]
    close(forward, np.fft.fft(x, axis=axis, norm=forwards), kind)
    close(back, np.fft.ifft(x, axis=axis, norm=backwards), kind)
    close(full, np.fft.fft(x.real, axis=axis, norm=forwards), kind)
    close(half, np.fft.rfft(x.real, axis=axis, norm=forwards), kind)
    close(signal, np.fft.irfft(np.take(x, range(bins), axis), n, axis, backwards), kind)


def test_transforms_of_several_axes_and_of_long_signals():
    x = drawn(1, "complex128", 3, 4, 5)
    close(called("_fft_c2c.default", x, [0, 2], 0, True), np.fft.fftn(x, axes=(0, 2)), x.dtype)
    close(called("_fft_r2c.default", x.real.copy(), [0, 1], 0, True),
          np.fft.rfftn(x.real, axes=(0, 1)), x.dtype)  # fmt: skip
    close(called("_fft_c2r.default", x, [0, 1], 2, 7), np.fft.irfftn(x, (3, 7), (0, 1)), x.dtype)
    x = drawn(2, "complex64", 2, 1100)
    wanted = np.fft.fft(x.astype(np.complex128))
    assert np.abs(called("_fft_c2c.default", x, [1], 0, True) - wanted).max() < 1e-4


def test_frequencies_of_bins():
    for n in (6, 7):
        close(called("fft_fftfreq.default", n, 0.5), np.fft.fftfreq(n, 0.5), "float32")
        close(called("fft_rfftfreq.default", n, 0.5), np.fft.rfftfreq(n, 0.5), "float32")


def test_tangents_far_from_0_are_1():
    x = np.array([500 + 1j, -500 + 1j, 30j], np.complex64)
    close(called("tanh.default", x), [1, -1, 1j * np.tan(30)], "complex64")


def test_lengths_with_large_primes_are_refused():
    with pytest.raises(ModelError, match="a Fourier transform of 4099 elements is not supported"):
        called("_fft_r2c.default", np.zeros((1, 4099), np.float32), [1], 0, True)
