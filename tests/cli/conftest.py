"""What tests of the command line share."""

import sys

import pytest

from ggsched.cli import console


@pytest.fixture
def narrow(monkeypatch):
    """Let lines of results be folded as on a terminal of 80 columns."""
    monkeypatch.setattr(console, "is_terminal", lambda file: file is not sys.stderr)
    monkeypatch.setenv("COLUMNS", "80")
