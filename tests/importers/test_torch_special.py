"""Special functions of PyTorch, without PyTorch, on drawn operands."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import ModelError
from tests.importers.torch_calls import called

INF, NAN = math.inf, math.nan
SEEDS = st.integers(0, 2**32 - 1)
KINDS = st.sampled_from(["float32", "float64"])


def log_gamma(x):
    return [math.lgamma(v) for v in x]


def digamma(x):
    """Sum the recurrence up to where three terms of the series in 1/x are exact."""
    y = x + 1000
    terms = 1 / (x[:, None] + np.arange(1000))
    return np.log(y) - 1 / (2 * y) - 1 / (12 * y**2) - terms.sum(1)


def trigamma(x):
    y = x + 1000
    terms = 1 / (x[:, None] + np.arange(1000)) ** 2
    return 1 / y + 1 / (2 * y**2) + 1 / (6 * y**3) + terms.sum(1)


def bessel(order, is_scaled):
    """Return the integral over half a circle, which the trapezoidal rule has exactly."""
    turns = (np.arange(400) + 0.5) * (math.pi / 400)

    def f(x):
        power = x[:, None] * np.cos(turns) - (np.abs(x[:, None]) if is_scaled else 0)
        return (np.exp(power) * np.cos(order * turns)).mean(1)

    return f


FUNCTIONS = {
    "lgamma.default": ((), log_gamma),
    "digamma.default": ((), digamma),
    "polygamma.default": ((1,), trigamma),
    "i0.default": ((), bessel(0, False)),
    "special_i0e.default": ((), bessel(0, True)),
    "special_i1.default": ((), bessel(1, False)),
    "special_i1e.default": ((), bessel(1, True)),
}


@pytest.mark.parametrize("op", FUNCTIONS)
@settings(max_examples=3)
@given(seed=SEEDS, kind=KINDS)
def test_functions_are_exact_to_a_few_units_of_the_last_place(op, seed, kind):
    x = np.random.default_rng(seed).uniform(-9, 40, 60).astype(kind)
    args, f = FUNCTIONS[op]
    found, wanted = called(op, *args, x), np.asarray(f(x.astype(np.float64)))
    eps = max(16 * np.finfo(kind).eps, 1e-13)
    assert found.dtype == kind
    np.testing.assert_allclose(found, wanted, rtol=eps, atol=eps)


@pytest.mark.parametrize(
    ("op", "args", "wanted"),
    [
        ("lgamma.default", (), [INF, INF, 0, 0, INF, INF, INF, INF, NAN]),
        ("digamma.default", (), [-INF, INF, -0.57721566, 0.42278434, NAN, NAN, INF, NAN, NAN]),
        ("polygamma.default", (1,), [INF, INF, 1.6449341, 0.6449341, INF, INF, 0, NAN, NAN]),
        ("i0.default", (), [1, 1, 1.2660659, 2.2795853, 1.2660659, 2.2795853, NAN, NAN, NAN]),
    ],
)
def test_functions_at_poles_and_at_infinity_are_those_of_pytorch(op, args, wanted):
    x = np.array([0.0, -0.0, 1, 2, -1, -2, INF, -INF, NAN], np.float32)
    np.testing.assert_allclose(called(op, *args, x), wanted, atol=1e-6, rtol=1e-6)


def test_derivatives_of_higher_order_are_refused():
    with pytest.raises(ModelError, match="polygamma of order 2 is not supported"):
        called("polygamma.default", 2, np.ones(2, np.float32))


def some_numbers(seed, kind):
    """Draw numbers of all sizes, and all those at which a format ends."""
    info, rng = np.finfo(kind), np.random.default_rng(seed)
    ends = [0, 1, info.max, info.tiny, info.smallest_subnormal, 4 * info.tiny / info.eps, INF]
    x = np.ldexp(rng.uniform(1, 2, 40), rng.integers(info.minexp - 20, info.maxexp, 40))
    sign = rng.choice([-1.0, 1.0], 40 + len(ends))
    return rng.permutation(np.concatenate((ends, x)) * sign).astype(kind)


@settings(max_examples=5)
@given(seed=SEEDS, kind=KINDS)
def test_next_numbers_and_mantissas_are_exact(seed, kind):
    a, b = some_numbers(seed, kind), np.append(some_numbers(seed + 1, kind)[1:], NAN).astype(kind)
    with np.errstate(over="ignore", under="ignore"):  # behind the largest number is infinity
        wanted = np.nextafter(a, b)
    np.testing.assert_array_equal(called("nextafter.default", a, b), wanted)
    np.testing.assert_array_equal(called("nextafter.default", a, a.copy()), a)
    found, (mantissa, exponent) = called("frexp.Tensor", a), np.frexp(a)
    np.testing.assert_array_equal(found[0], mantissa)
    np.testing.assert_array_equal(found[1], np.where(np.isfinite(a), exponent, 0))


@settings(max_examples=5)
@given(seed=SEEDS, kind=st.sampled_from(["int64", "int32", "int8", "uint8"]))
def test_divisors_and_multiples_are_those_of_numpy(seed, kind):
    info, rng = np.iinfo(kind), np.random.default_rng(seed)
    small = rng.integers(max(-12, info.min), 13, (2, 20))
    large = rng.integers(info.min, info.max, (2, 20), endpoint=True)
    a, b = np.concatenate((small, large, [[0, 0, info.min], [0, 1, info.max]]), 1).astype(kind)
    np.testing.assert_array_equal(called("gcd.default", a, b), np.gcd(a, b))
    a, b = small.astype(kind)
    np.testing.assert_array_equal(called("lcm.default", a, b), np.lcm(a, b))
