"""Numbers with units: one function each for times, bytes and rates, and no other code."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.units import nbytes_text, rate_text, seconds_text
from tests.meta.repository import name_of, python_files

TIMES = [
    (0.0, "0 s"),
    (3.4e-10, "0.34 ns"),
    (5.9604e-17, "0.0000000596 ns"),
    (4.2e-6, "4.2 µs"),
    (50e-6, "50 µs"),
    (999.4e-6, "999 µs"),
    (999.6e-6, "1 ms"),
    (2954.5e-6, "2.95 ms"),
    (1.55, "1.55 s"),
    (12.07, "12.1 s"),
    (1234.4, "1234 s"),
    (-0.0123, "-12.3 ms"),
]
SIZES = [
    (0, "0 B"),
    (1023, "1023 B"),
    (4096, "4.0 KiB"),
    (3 << 19, "1.5 MiB"),
    ((1 << 20) - 1, "1.0 MiB"),
    (5 << 40, "5.0 TiB"),
    (-4096, "-4.0 KiB"),
]
RATES = [
    (0.0, "B", "0 B/s"),
    (24.31e9, "B", "24.3 GB/s"),
    (999.7e9, "B", "1 TB/s"),
    (62e12, "FLOP", "62 TFLOP/s"),
    (1234.4, "tokens", "1234 tokens/s"),
]


@pytest.mark.parametrize(("seconds", "text"), TIMES)
def test_times(seconds, text):
    assert seconds_text(seconds) == text


def test_differences_have_their_sign():
    assert seconds_text(4e-6, signed=True) == "+4 µs"
    assert seconds_text(-4e-6, signed=True) == "-4 µs"


@pytest.mark.parametrize(("nbytes", "text"), SIZES)
def test_bytes(nbytes, text):
    assert nbytes_text(nbytes) == text


@pytest.mark.parametrize(("rate", "unit", "text"), RATES)
def test_rates(rate, unit, text):
    assert rate_text(rate, unit) == text


FACTORS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
PREFIXES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "PB/s": 1e15}


@pytest.mark.parametrize(("write", "factors"), [(seconds_text, FACTORS), (rate_text, PREFIXES)])
@given(number=st.floats(1e-8, 1e17))
def test_a_number_is_read_back_to_three_digits(write, factors, number):
    digits, unit = write(number).split(" ")
    assert re.fullmatch(r"\d+(\.\d*[1-9])?", digits)  # no exponent, no trailing zeros
    assert float(digits) * factors[unit] == pytest.approx(number, rel=6e-3)
    # Only the smallest and the largest unit have numbers outside 1 to 1000.
    if unit not in (min(factors, key=factors.get), max(factors, key=factors.get)):
        assert 1 <= float(digits) < 1000


NUMBER_WITH_UNIT = re.compile(
    r"[.]\d[efg]\}\s?(?:ns|us|µs|ms|s|[kKMGT]i?B|[kMGT]?(?:FLOP|op|B)/s|tokens/s)\b"
)


def test_no_module_has_formatting_of_its_own():
    own = [
        f"{name_of(path)}:{number}"
        for path in python_files("ggsched", "apps")
        if path.name != "units.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NUMBER_WITH_UNIT.search(line)
    ]
    assert own == []
