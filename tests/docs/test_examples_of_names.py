"""What programs use has its parameters and errors in its docstring, and an example that works.

Examples of methods go on from the example of their class.
"""

import ast
import doctest
import inspect
import re
import textwrap
from importlib import import_module
from importlib.util import find_spec

import pytest

from tests.meta.test_docstrings import words

PACKAGES = (
    "ggsched", "ggsched_task", "ggsched_import.onnx", "ggsched_import.torch",
    "ggsched.ir", "ggsched_llm.session", "ggsched.ops.nd", "ggsched.passes", "ggsched.sanitize",
)  # fmt: skip
"""Of which each public name is looked at."""

CONVERTERS = "ggsched_import.torch.call.Call"
"""What converters of PyTorch's ops get; ``docs/how-to/run-a-pytorch-model.md`` shows how."""

NEEDS = {"ggsched_import.onnx": "onnx", "ggsched_import.torch": "torch", "ggsched_race": "torch"}
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples):$", re.M)


def public():
    """Return names of classes, functions and methods, and for a method its class."""
    found = {}
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            home = getattr(thing, "__module__", "")
            path = f"{home}.{name}"
            if not home.startswith("ggsched") or path == CONVERTERS:
                continue
            if inspect.isclass(thing):
                found[path] = (thing, None)
                for method, value in inspect.getmembers(thing):
                    if method not in vars(thing) and not hasattr(value, "record"):
                        continue  # inherited, and not made from the record of an op
                    bare = getattr(value, "__func__", value)
                    if not method.startswith("_") and inspect.isfunction(bare):
                        found[f"{path}.{method}"] = (bare, thing)
            elif inspect.isfunction(thing):
                found[path] = (thing, None)
    return found


PUBLIC = public()
FUNCTIONS = [path for path, (thing, _) in PUBLIC.items() if not inspect.isclass(thing)]


def sections(thing):
    """Return the text of a docstring by section; "" is what is before the first."""
    parts = SECTION.split(inspect.cleandoc(thing.__doc__ or ""))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def raises(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def test_there_are_many():
    assert len(FUNCTIONS) > 100


@pytest.mark.parametrize("path", FUNCTIONS)
def test_parameters_errors_and_an_example_are_there(path):
    function, _ = PUBLIC[path]
    said = sections(function)
    named = set(re.findall(r"^ {4}\**(\w+):", said.get("Args", ""), re.M))
    parameters = inspect.signature(function).parameters
    assert named <= {*parameters}, "the docstring has parameters that there are not"
    left_out = {n for n, p in parameters.items() if words(n) & words(str(p.annotation))}
    assert {*parameters} - {"self", "cls"} - named <= left_out, "parameters without an entry"
    assert not raises(function) or "Raises" in said, "errors that the docstring does not name"
    assert ">>>" in said.get("Examples", ""), "it has no example"


def examples(thing, path, names):
    finder = doctest.DocTestFinder(recurse=False)
    tests = finder.find(thing, path, globs=names)
    return [test for test in tests if test.examples]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("registries_restored")
@pytest.mark.parametrize("path", PUBLIC)
def test_the_example_works(path):
    thing, owner = PUBLIC[path]
    home = thing.__module__
    needed = next((n for package, n in NEEDS.items() if home.startswith(package)), None)
    needed = "onnx" if home.startswith("ggsched_import.common") else needed
    if needed and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    names = {"__name__": "example"}
    of_class = examples(owner, path, names) if owner else []
    for test in (*of_class, *examples(thing, path, names)):
        test.globs = names
        lines = []
        result = doctest.DocTestRunner().run(test, out=lines.append, clear_globs=False)
        assert not result.failed, "".join(lines)
