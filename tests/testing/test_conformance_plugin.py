"""The kit in the tests of a plug-in, as its author would write them."""

import os
import subprocess
import sys

TESTS = """
import pytest
from ggsched.testing.conformance import Harness, Waiver

pytest_plugins = ["ggsched.testing.conformance.pytest_plugin"]


@pytest.fixture(scope="module")
def conformance_harness():
    {harness}


def test_contract(conformance):
    conformance()
"""


def run(tmp_path, harness, *options):
    path = tmp_path / "test_mine.py"
    path.write_text(TESTS.format(harness=harness), encoding="utf-8")
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(path)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_good_backend(tmp_path):
    code, text = run(tmp_path, 'return "cpu"', "-k", "evt or waivers")
    assert code == 0, text
    assert " passed" in text
    assert " skipped" in text


def test_a_stale_waiver(tmp_path):
    harness = 'return Harness("cpu", Harness.named("cpu").open, waivers=(Waiver("STR-5", "old"),))'
    code, text = run(tmp_path, harness, "-k", "str5 or waivers")
    assert code == 1, text
    assert "1 failed" in text
    assert "str5_sync_completes" in text


def test_each_case_is_a_test(tmp_path):
    code, text = run(tmp_path, 'return "cpu"', "--collect-only")
    assert code == 0, text
    assert "test_contract[evt2_holds_copies]" in text
    assert "test_contract[waivers]" in text
