"""Modules are patched when the program imports them, and only then."""

import importlib.util
import sys
import zipfile

import pytest

from ggsched_race.when_imported import when_imported


def test_action_follows_the_import(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    seen, before = [], list(sys.meta_path)
    with when_imported({"imported_late": lambda module: seen.append(module.value)}):
        assert "imported_late" not in sys.modules
        assert seen == []
        import imported_late

        assert seen == [1]
    assert sys.meta_path == before
    with when_imported({"imported_late": lambda module: seen.append(module)}):
        assert seen == [1, imported_late]
    del sys.modules["imported_late"]


def test_module_that_is_missing_stays_so():
    nothing = when_imported({"there_is_no_such_module": lambda module: None})
    with nothing, pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        import there_is_no_such_module  # noqa: F401


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Make ``imported_late`` and ``other_late`` importable, from a folder or an archive."""

    def make(archive=False):
        with zipfile.ZipFile(tmp_path / "late.zip", "w") as file:
            for name in ("imported_late", "other_late"):
                file.writestr(f"{name}.py", "value = 1\n")
        if not archive:
            zipfile.ZipFile(tmp_path / "late.zip").extractall(tmp_path)
        monkeypatch.syspath_prepend(tmp_path / "late.zip" if archive else tmp_path)

    yield make
    for name in ("imported_late", "other_late"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("archive", [False, True])
def test_question_for_a_module_does_not_count_as_its_import(late, archive):
    """Loaders of an archive are one for all of its modules."""
    late(archive)
    seen = []
    with when_imported({"imported_late": seen.append}):
        assert importlib.util.find_spec("imported_late") is not None
        assert seen == []
        import other_late

        assert seen == []
        import imported_late
    assert seen == [imported_late]
    assert "exec_module" not in vars(imported_late.__spec__.loader)
    assert other_late.value == imported_late.value == 1


def test_module_that_was_found_inside_and_is_loaded_later_is_left(late):
    late()
    seen = []
    with when_imported({"imported_late": seen.append}):
        spec = importlib.util.find_spec("imported_late")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == []


def test_import_succeeds_where_the_action_fails(late):
    late()
    failed = []

    def action(module):
        raise AttributeError("made otherwise")

    with when_imported({"imported_late": action}, lambda name, error: failed.append(name)):
        import imported_late  # noqa: F401
    assert failed == ["imported_late"]
