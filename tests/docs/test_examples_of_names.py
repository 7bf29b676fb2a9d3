"""Each name of ``ggsched`` has an example in its docstring, which works."""

import doctest
from importlib import import_module
from importlib.util import find_spec

import pytest

import ggsched

NAMES = sorted(set(ggsched.__all__) - {"__version__"})
NEEDS = {"from_onnx": "onnx", "from_torch": "torch"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_example_works(name):
    needed = NEEDS.get(name)
    if needed and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    thing = getattr(ggsched, name)
    module = import_module(thing.__module__)
    tests = [
        t for t in doctest.DocTestFinder(recurse=False).find(thing, name, module) if t.examples
    ]
    assert len(tests) == 1, "a public name needs an example"
    lines = []
    result = doctest.DocTestRunner().run(tests[0], out=lines.append)
    assert not result.failed, "".join(lines)
