import contextlib
import importlib
import pkgutil
import re
import tomllib
from itertools import chain

import ggsched
from ggsched import errors
from ggsched.config import VARIABLES
from ggsched.errors import GgschedError
from tests.meta.repository import CODE, ROOT, name_of, own_files, python_files

REFERENCE = ROOT / "docs" / "reference"
VARIABLE = re.compile(r"\bGGSCHED_[A-Z][A-Z0-9_]*\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)")


def _subclasses(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _own_errors():
    modules = pkgutil.walk_packages(ggsched.__path__, "ggsched.")
    apps = pkgutil.walk_packages([str(ROOT / "apps")])
    for module in chain(modules, apps):
        with contextlib.suppress(ImportError, GgschedError):  # of an extra that is missing
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    everyone = {errors.GgschedError, *_subclasses(errors.GgschedError)}
    return {kind for kind in everyone if kind.__module__.partition(".")[0].startswith("ggsched")}


def test_every_error_has_a_section():
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert {kind.__name__ for kind in _own_errors()} == set(sections)
    for kind in _own_errors():
        start = f"`{kind.code}`, exit code {kind.exit_code}."
        assert sections[kind.__name__].startswith(start), f"{kind.__name__}: {start}"


def test_environment_page_is_the_table_of_config():
    rows = [f"| `{v.name}` | {v.values} | {v.default} | {v.meaning} |" for v in VARIABLES]
    lines = (REFERENCE / "environment.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `GGSCHED_")] == rows


def test_every_variable_in_the_code_is_known():
    known = {v.name for v in VARIABLES}
    unknown = {
        f"{name_of(path)}: {name}"
        for path in python_files(*CODE)
        for name in VARIABLE.findall(path.read_text(encoding="utf-8"))
        if name not in known and path.name != "config.py"
    }
    assert not unknown, f"add them to VARIABLES in ggsched/config.py: {sorted(unknown)}"


def test_documents_name_no_other_variable():
    known = {v.name for v in VARIABLES}
    unknown = {
        f"{name_of(path)}: {name}"
        for path in own_files()
        if path.suffix == ".md"
        for name in VARIABLE.findall(path.read_text(encoding="utf-8"))
        if name not in known
    }
    assert not unknown


def test_links_between_documents_resolve():
    broken = [
        f"{name_of(path)}: {target}"
        for path in own_files()
        if path.suffix == ".md"
        for target, _ in LINK.findall(path.read_text(encoding="utf-8"))
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not broken


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [p for p in own_files() if p.suffix == ".md" and p.is_relative_to(ROOT / "docs")]
    missing = [name_of(p) for p in pages if p.relative_to(ROOT / "docs").as_posix() not in nav]
    assert not missing


def test_public_names_are_there():
    for name in ggsched.__all__:
        assert getattr(ggsched, name) is not None
    assert set(ggsched.__all__) <= set(dir(ggsched))


def test_one_version_and_a_changelog():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in config["project"]["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", ggsched.__version__)
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_glossary_has_one_row_for_each_word():
    text = (REFERENCE / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([A-Z][^|]*) \|", text, re.M)
    assert len(words) > 40
    assert len(set(words)) == len(words)
