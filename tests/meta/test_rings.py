"""The core stands alone, and what was moved out of it is found by its old name."""

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from ggsched.moved import MOVED
from tests.meta.repository import CODE, ROOT, name_of, own_files, python_files

ALLOWED = {"ggsched", "msgspec", "numpy", *sys.stdlib_module_names}
CORE = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in python_files("ggsched")
    if path.relative_to(ROOT).parts[1] != "cli" and path.stem != "__main__"
)
ALONE = """
import sys

allowed = set(sys.argv[1].split())

class Refused:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"{name} is not of the core", name=name)

sys.meta_path.insert(0, Refused())
for module in sys.argv[2].split():
    __import__(module)

from ggsched import GraphBuilder, Topology
from ggsched.passes.pipeline import make_plan
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.sanitize.check import check_plan
from ggsched.topology.codec import topology_from_text

builder = GraphBuilder("alone")
x = builder.input("x", (4, 4))
graph = builder.build(builder.silu(builder.add(x, builder.weight("w", (4, 4)))))
topology = topology_from_text(open(sys.argv[3]).read())
plan = plan_from_json(plan_to_json(make_plan(graph, topology)))
assert not check_plan(plan, graph=graph).findings
"""


def test_core_plans_and_checks_with_numpy_and_msgspec_alone():
    machine = ROOT / "tests" / "data" / "topologies" / "h200-cpu.json"
    done = subprocess.run(
        [sys.executable, "-c", ALONE, " ".join(ALLOWED), " ".join(CORE), str(machine)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_core_is_one_that_one_person_can_know():
    kinds = (".py", ".js", ".css", ".html")
    files = [path for path in own_files() if name_of(path).startswith("ggsched/")]
    lines = sum(len(p.read_text("utf-8").splitlines()) for p in files if p.suffix in kinds)
    assert lines <= 45_000, "move what one application alone uses to it"


def imported(name):
    """Import a module by an old name; return it and what is warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module = import_module(name)
    for old in [key for key in sys.modules if key == name or name.startswith(f"{key}.")]:
        if old in MOVED or old == name:
            sys.modules.pop(old)
    return module, [str(warning.message) for warning in warned]


@pytest.mark.parametrize("old", [*MOVED, "ggsched.models.load"])
def test_old_names_give_the_same_module_and_name_the_new_one(old):
    new = MOVED.get(old, "ggsched_llm.load")
    module, warned = imported(old)
    assert module is import_module(new)
    assert module.__spec__.name == new
    assert warned[-1] == f"{old} is now {new}"


def test_messages_of_applications_reach_the_handlers_of_ggsched():
    """A logger by the name of an application's module is not below ``ggsched``."""
    own = [name_of(p) for p in python_files(*CODE) if "getLogger(__name__)" in p.read_text("utf-8")]
    assert own == []


def test_a_module_that_there_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"ggsched\.models\.nope"):
        imported("ggsched.models.nope")
