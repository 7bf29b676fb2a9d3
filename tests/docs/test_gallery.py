"""The pictures of the gallery are drawn by the repository, small, and all shown."""

import importlib.util
from xml.etree import ElementTree

import pytest

from tests.meta.repository import ROOT

IMAGES = ROOT / "docs" / "images"
MAX_NBYTES = 40_000


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", IMAGES / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_drawn(gallery, tmp_path):
    gallery.draw(tmp_path)
    for name in gallery.PICTURES:
        drawn = ElementTree.parse(tmp_path / f"{name}.svg")
        assert len(drawn.findall(".//{*}rect")) > 5
        assert (tmp_path / f"{name}.svg").stat().st_size < MAX_NBYTES
    race = (tmp_path / "race.svg").read_text(encoding="utf-8")
    assert race.count(f'fill="{gallery.RACE}"') == 2  # the two commands that race
    assert "RAW" in race


def test_committed_pictures_are_those_of_the_gallery(gallery):
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    committed = {path.stem for path in IMAGES.glob("*.svg")}
    assert committed == set(gallery.PICTURES)
    for name in committed:
        assert f"images/{name}.svg" in text
        assert (IMAGES / f"{name}.svg").stat().st_size < MAX_NBYTES
