"""Every public name stands in the API reference, with a docstring."""

from tests.docs.public_names import API, documented, home_of, promised, without_docstring
from tests.meta.repository import ROOT


def test_every_public_name_is_in_the_reference():
    known = documented()
    missing = {
        f"{home[0]}.{home[1]}: {place}"
        for name, place in promised()
        if (home := home_of(name)) is not None and home not in known
    }
    assert not missing, f"add their modules to {API.relative_to(ROOT)}: {sorted(missing)}"


def test_every_documented_name_says_something():
    modules = {module for module, _ in documented()}
    assert len(modules) > 50
    silent = [name for module in sorted(modules) for name in without_docstring(module)]
    assert not silent


def test_names_are_found_where_they_are_defined():
    assert home_of(("ggsched", "GraphBuilder")) == ("ggsched.ir.builder", "GraphBuilder")
    assert home_of(("ggsched.backend", "checks")) is None
    assert ("ggsched.ir.builder", "GraphBuilder") in documented()
