import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir.rope import rope_table


def test_plain_frequencies():
    table, magnitude = rope_table({"n_dims": 8})
    assert table == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert magnitude == 1.0


def test_linear_scaling_and_attention_factor():
    table, magnitude = rope_table({"n_dims": 4, "freq_scale": 0.25, "attn_factor": 2.0})
    assert table == pytest.approx([0.25, 0.0025])
    assert magnitude == 2.0


def test_yarn_keeps_the_fast_pairs_and_squeezes_the_slow_ones():
    params = {
        "n_dims": 128,
        "base": 1e6,
        "freq_scale": 0.25,
        "ext_factor": 1.0,
        "n_ctx_orig": 32768,
    }
    table, magnitude = rope_table(params)
    plain, _ = rope_table({"n_dims": 128, "base": 1e6})
    assert table[0] == plain[0]
    assert table[-1] == pytest.approx(plain[-1] * 0.25)
    assert magnitude == pytest.approx(1 + 0.1 * math.log(4))


@given(
    half=st.integers(1, 64),
    base=st.floats(2.0, 1e7),
    squeeze=st.floats(0.01, 1.0),
    context=st.integers(1, 1 << 20),
    fast=st.floats(2.0, 64.0),
    slow=st.floats(0.5, 2.0),
)
def test_yarn_against_the_formula_of_the_paper(half, base, squeeze, context, fast, slow):
    n = 2 * half
    table, _ = rope_table(
        {
            "n_dims": n,
            "base": base,
            "freq_scale": squeeze,
            "ext_factor": 1.0,
            "n_ctx_orig": context,
            "beta_fast": fast,
            "beta_slow": slow,
        }
    )

    def pair_that_turns(times):
        # base**(2i/n) is the wavelength over 2 pi; it fits `times` times into the context.
        return n / 2 * math.log(context / (2 * math.pi * times), base)

    low = max(0, math.floor(pair_that_turns(fast)))
    high = min(n - 1, math.ceil(pair_that_turns(slow)))
    for i, frequency in enumerate(table):
        gamma = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
        plain = 1.0 / base ** (2 * i / n)
        expected = (gamma * squeeze + (1 - gamma)) * plain
        assert frequency == pytest.approx(expected, rel=1e-9)


def test_a_parameter_that_is_no_number_is_a_type_error():
    with pytest.raises(TypeError):
        rope_table({"n_dims": 4, "base": "big"})
