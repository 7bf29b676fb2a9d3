"""The documentation builds without a warning, and its inventory has every public name."""

import os
import subprocess
import sys
import zlib

import pytest

from tests.docs.public_names import documented
from tests.meta.repository import ROOT


@pytest.mark.slow
def test_the_site_has_every_documented_name(tmp_path):
    for library in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(library, reason="the tools for pages are in the extra 'docs'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    inventory = (tmp_path / "objects.inv").read_bytes().split(b"\n", 4)[4]
    shown = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    assert {f"{module}.{name}" for module, name in documented()} <= shown
