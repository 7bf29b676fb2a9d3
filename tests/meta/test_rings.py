"""The core stands alone, and what was moved out of it is found by its old name."""

import subprocess
import sys
from importlib import import_module

import pytest

from ggsched.moved import MOVED
from tests.meta.repository import ROOT, python_files

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


@pytest.mark.parametrize("old", MOVED)
def test_old_names_give_the_same_module_and_name_the_new_one(old):
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        sys.modules.pop(old, None)
        assert import_module(old) is import_module(MOVED[old])
    sys.modules.pop(old)


def test_a_module_of_a_moved_package_is_not_loaded_twice():
    with pytest.warns(DeprecationWarning) as warned:
        module = import_module("ggsched.models.load")
    assert "ggsched.models.load is now ggsched_llm.load" in [str(w.message) for w in warned]
    assert module is import_module("ggsched_llm.load")
    assert module.__spec__.name == "ggsched_llm.load"
    for name in ("ggsched.models.load", "ggsched.models"):
        sys.modules.pop(name)
