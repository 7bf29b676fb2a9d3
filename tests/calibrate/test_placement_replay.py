"""Placements by rates of a machine, against what each device alone took there.

The data are of one run on an H200 and eight processors; rates are those that its graphs need.
"""

import json
from pathlib import Path

import pytest

from benchmarks.placed_graphs import build
from ggsched.ir.ops import LIBRARY_KEYS
from ggsched.passes import make_plan
from ggsched.passes.place import Constraints
from ggsched.passes.placement.cost import CostBased
from ggsched.topology.cost import KernelRate, Link, MachineRates, Rates, guessed_rates
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device

DATA = json.loads(Path(__file__).with_name("placement_h200.json").read_text())
NAMES = ("cuda:0", "cpu:0")
OPS = ALL_OPS | LIBRARY_KEYS
MACHINE = Topology(
    (
        fake_device("cuda:0", ops=OPS),
        fake_device("cpu:0", ops=OPS, kind="cpu", is_host=True, processor="host"),
    ),
    {ends: CopyPath(*ends, 0) for ends in ((0, 1), (1, 0))},
    dict.fromkeys(((0, 1), (1, 0)), "native"),
)


def saved_rates():
    """Return the rates that were measured there."""
    devices = [
        Rates(**numbers, kernels=tuple(KernelRate(n, *v) for n, v in kernels.items()))
        for numbers, kernels in DATA["devices"]
    ]
    links = {(src, dst): Link(*numbers) for src, dst, *numbers in DATA["links"]}
    return MachineRates(tuple(devices), links, DATA["enqueue_s"])


@pytest.mark.parametrize("name", DATA["took_us"])
@pytest.mark.parametrize("known", [True, False], ids=["measured", "guessed"])
def test_no_placement_is_much_slower_than_the_best_device(name, known):
    rates = saved_rates() if known else guessed_rates(MACHINE)
    plan = make_plan(build(name)[0], MACHINE, Constraints(rates=rates), placement=CostBased())
    where = sorted({NAMES[choice.device] for choice in plan.placement.choices})
    took = DATA["took_us"][name]
    best = min(took[device] for device in NAMES)
    assert took[" + ".join(where)] <= (1.1 if known else 1.2) * best
