"""What tests of the command line share."""

import pytest

from ggsched.cli import console


@pytest.fixture
def narrow(monkeypatch):
    """Let lines be folded as on a terminal of 80 columns."""
    monkeypatch.setattr(console, "is_terminal", lambda file: file is not None)
    monkeypatch.setenv("COLUMNS", "80")
