"""What tests ask of errors: the rule of the contract that a caller broke."""

import re

import pytest

from ggsched.errors import UsageError


def refused(rule):
    """Expect a call to be refused by a rule, which the error names as its code."""
    return pytest.raises(UsageError, match=rf"\b{re.escape(rule)}\b")
