"""The plug-in where Ray is not installed."""

import pytest

import ggsched_ray.backend
from ggsched.errors import BackendUnavailable
from ggsched_ray import open_backend


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_missing_is_named(is_folder, tmp_path, monkeypatch):
    """Also beside a folder of that name, such as Ray makes in /tmp."""
    if is_folder:
        (tmp_path / "nowhere_to_be_found").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ggsched_ray.backend, "MODULES", ("nowhere_to_be_found",))
    with pytest.raises(BackendUnavailable, match=r"not installed: nowhere_to_be_found \(pip "):
        open_backend()
