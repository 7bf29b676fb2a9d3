"""Programs after published races, run by the simulation: verdicts on ordinary PyTorch text."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from ggsched_race.watch import watch  # noqa: E402
from tests.race import programs  # noqa: E402


@pytest.mark.parametrize("program", programs.RACING, ids=lambda p: p.__name__)
@pytest.mark.parametrize("mended", [False, True], ids=["broken", "mended"])
def test_verdict_on_published_race(program, mended):
    with watch(program.__name__, simulate=True, raises=False) as watched:
        program(mended)
    assert watched.report.is_clean == mended, watched.report.to_text()


@pytest.mark.parametrize("program", programs.RIGHT, ids=lambda p: p.__name__)
def test_right_program_is_clean(program):
    with watch(program.__name__, simulate=True, raises=False) as watched:
        program()
    assert watched.report.is_clean, watched.report.to_text()
