"""What a plan names must exist."""

import msgspec
import pytest

from ggsched.plan.memory import Region
from ggsched.plan.streams import Gain, StreamSpec
from ggsched.sanitize import check_plan
from tests.plan.examples import example

PLAN = example().plan
replace = msgspec.structs.replace


def within(part, **fields):
    return replace(PLAN, **{part: replace(getattr(PLAN, part), **fields)})


def put(items, i, **fields):
    out = list(items)
    out[i] = replace(out[i], **fields)
    return tuple(out)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (within("splits", values=put(PLAN.splits.values, 1, id=7)), "value 1: has the id 7"),
        (within("splits", values=put(PLAN.splits.values, 1, device=7)), "v1: on device 7"),
        (within("splits", transfers=put(PLAN.splits.transfers, 0, src=77)), "from value 77"),
        (within("splits", splits=put(PLAN.splits.splits, 0, end=77)), "s0: nodes [0, 77) of 4"),
        (within("splits", splits=put(PLAN.splits.splits, 0, device=7)), "s0: on device 7"),
        (within("splits", bindings=((0, 99),) * 4), "n0: bound to values (0, 99)"),
        (within("splits", bindings=()), "0 bindings instead of 4"),
        (within("streams", of_node=()), "0 streams of nodes instead of 4"),
        (within("streams", of_node=(0, 1, 5, 0)), "uses stream 5"),
        (within("streams", gains=(Gain(9, 2, 1.0, 1.0, False),)), "gain of split 9"),
        (within("streams", streams=(StreamSpec(0, 0), StreamSpec(1, 4))), "q1: on device 4"),
        (within("memory", arenas=put(PLAN.memory.arenas, 0, device=9)), "a0: on device 9"),
        (
            within("memory", regions=(Region(99, 0, 0), *PLAN.memory.regions[1:])),
            "v0: in arena 99",
        ),
        (within("memory", overwrites={0: 99}), "value 0 overwrites 99"),
        (within("memory", lower_bound={99: 1}), "lower bound of arena 99"),
        (within("memory", hinted_bound={99: 1}), "lower bound of arena 99"),
        (within("placement", choices=()), "0 choices instead of 4"),
        (within("placement", homes={0: 9}), "home of tensor 0: on device 9"),
        (replace(PLAN, inputs=put(PLAN.inputs, 0, value=99)), "'x': in value 99"),
    ],
)
def test_references(plan, message):
    findings = check_plan(plan).findings
    assert {f.kind for f in findings} == {"id"}
    assert any(message in f.what for f in findings), findings


def test_sound_plan_passes():
    assert check_plan(PLAN).is_clean
