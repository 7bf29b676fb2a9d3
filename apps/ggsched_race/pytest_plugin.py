"""Tests that fail where what they do races.

    pytest_plugins = ["ggsched_race.pytest_plugin"]

    @pytest.mark.race                      # or race(simulate=True, suppressions=[...])
    def test_prefetch():
        ...

``--race`` watches all tests, ``--race-simulate`` without a GPU.
"""

from collections.abc import Iterator

import pytest

from ggsched_race.watch import watch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ggsched")
    group.addoption("--race", action="store_true", help="look for races of streams in all tests")
    text = "simulate CUDA where races are looked for"
    group.addoption("--race-simulate", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    text = "race(simulate=False, rows=True, suppressions=()): fails where streams race"
    config.addinivalue_line("markers", text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch a test that has the marker."""
    marker = item.get_closest_marker("race")
    if marker is None and not item.config.getoption("--race"):
        yield
        return
    options = dict(marker.kwargs) if marker is not None else {}
    options.setdefault("simulate", item.config.getoption("--race-simulate"))
    with watch(item.nodeid, raises=False, **options) as watched:
        yield
    if watched.report is not None and not watched.report.is_clean:
        pytest.fail(watched.report.to_text(), pytrace=False)
