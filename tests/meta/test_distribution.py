"""Wheel and sdist have all files and no others; ``make dist`` installs the wheel as well."""

import shutil
import tarfile
import zipfile

import pytest

from tests.meta import distribution
from tests.meta.repository import ROOT

build = pytest.importorskip("hatchling.build", reason="no hatchling")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the wheel; an sdist, which takes longer, is made of its files and a few more."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel = folder / build.build_wheel(str(folder))
    sdist = folder / "ggsched-1.tar.gz"
    with tarfile.open(sdist, "w", format=tarfile.PAX_FORMAT) as archive:
        for package in distribution.PACKAGES:
            archive.add(ROOT / package, f"ggsched-1/{package}", filter=without_caches)
        for name in ("pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/conftest.py"):
            archive.add(ROOT / name, f"ggsched-1/{name}")
    return wheel, sdist


def without_caches(member):
    return None if any(part in member.name for part in distribution.LEFT_OUT) else member


def test_they_are_whole(built):
    wheel, sdist = built
    assert list(distribution.faults_of_wheel(wheel)) == []
    assert list(distribution.faults_of_sdist(sdist)) == []


def test_a_file_that_is_missing_or_too_many_is_found(built, tmp_path):
    path = tmp_path / built[0].name
    with zipfile.ZipFile(built[0]) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if name not in ("ggsched/py.typed", "ggsched/cli/main.py", "ggsched/__main__.py"):
                new.writestr(name, old.read(name))
        new.writestr("tests/x.py", "")
    faults = "\n".join(distribution.faults_of_wheel(path))
    for said in ("lacks ggsched/py.typed", "has tests/x.py", "entry point ggsched.__main__:comm"):
        assert said in faults
    path = tmp_path / built[1].name
    with tarfile.open(path, "w:gz") as archive:
        archive.add(ROOT / "LICENSE", "ggsched-1/dist/LICENSE")
    faults = "\n".join(distribution.faults_of_sdist(path))
    for said in ("lacks LICENSE", "lacks ggsched/py.typed", "has dist/LICENSE"):
        assert said in faults


def test_nothing_is_installed_where_the_content_is_wrong(built, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(distribution, "faults_of_installation", lambda _: pytest.fail("called"))
    assert distribution.main([]) == 1
    assert "one wheel and one sdist" in capsys.readouterr().err
    monkeypatch.setattr(distribution, "faults_of_installation", lambda _: iter(["run: exit 3"]))
    paths = [str(shutil.copy(path, tmp_path)) for path in built]
    assert distribution.main(paths) == 1
    assert "run: exit 3" in capsys.readouterr().err
    monkeypatch.setattr(distribution, "faults_of_installation", lambda _: iter([]))
    assert distribution.main(paths) == 0
