"""How much of what is drawn or listed a run of the tests tries."""

import os

import pytest

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
"""Whether this is ``make test-long``."""


def some(few, cases):
    """Return parameters: the first ones, and the others as slow tests."""
    return some_of(few, [(case,) for case in cases])


def some_of(few, cases):
    """Return the same of tuples of parameters."""
    return [
        pytest.param(*c, marks=() if i < few else pytest.mark.slow) for i, c in enumerate(cases)
    ]
