"""Each example runs as a user would run it, and prints what its page says."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import Phase, settings

from tests.meta.repository import ROOT

FOLDER = ROOT / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## .+?\n\n`examples/(\w+\.py)`\n.*?^```text\n(.*?)^```$", re.M | re.S)
EXAMPLES = dict(SECTION.findall(PAGE))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run(name, folder):
    return subprocess.run(
        [sys.executable, str(FOLDER / name)],
        cwd=folder,  # an example may not depend on where it is started
        env={**os.environ, "GGSCHED_RATES": "off", "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_prints_what_the_page_says(name, tmp_path):
    done = run(name, tmp_path)
    assert done.returncode == 0, done.stderr
    same = doctest.OutputChecker().check_output(EXAMPLES[name], done.stdout, FLAGS)
    assert same, f"printed:\n{done.stdout}\ninstead of:\n{EXAMPLES[name]}"


def test_every_example_is_on_the_page_and_short():
    files = {path.name: path for path in FOLDER.glob("*.py")}
    assert set(files) == set(EXAMPLES)
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()
    }
    assert max(lengths.values()) < 100, lengths


def load(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    for module in ("minimal_backend", name):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize(
    "test",
    ["test_kernels_agree_with_the_oracle", "test_plans_over_two_devices_agree_with_the_oracle"],
)
def test_the_properties_find_a_wrong_kernel(test, monkeypatch):
    """Making the graph smaller that was found takes most of the time, and is left out."""
    settings.register_profile(
        "as-found", settings.default, phases=[Phase.generate], max_examples=50
    )
    settings.load_profile("as-found")
    example = load("property_test_backend", monkeypatch)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

    def wrong(out, inputs, params):
        out[...] = inputs[0]

    monkeypatch.setitem(example.KERNELS, "silu", wrong)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        getattr(example, test)()


def test_the_bubble_is_measured(monkeypatch):
    """With hand-overs that take half as long as a stage the devices idle for longer."""
    example = load("pipeline_bubble", monkeypatch)
    free = example.idle_share(8)
    monkeypatch.setattr(example, "COSTS", replace(example.COSTS, transfer_s=0.5))
    assert example.idle_share(8) > free + 0.05
