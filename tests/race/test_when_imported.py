"""Modules are patched when the program imports them, and only then."""

import sys

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
