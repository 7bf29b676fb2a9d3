"""A plan file with a wrong number in it gives findings or is refused, but crashes nothing."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import PlanError
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from tests.plan.examples import example

PLANS = [
    json.loads(plan_to_json(example(**facts).plan))
    for facts in ({}, {"copy_order": "barrier"}, {"has_events": False, "paths": False})
]


def places(value, path=()):
    """Yield the path of each number and each string of letters."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from places(part, (*path, i))
    elif isinstance(value, int):
        yield path


@st.composite
def damaged(draw):
    data = json.loads(json.dumps(draw(st.sampled_from(PLANS))))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(data))))
        at = data
        for key in path[:-1]:
            at = at[key]
        if draw(st.integers(0, 9)) == 0 and isinstance(at, list):
            del at[path[-1]]
        else:
            at[path[-1]] = draw(st.one_of(st.integers(-2, 12), st.integers()))
    return json.dumps(data)


@settings(max_examples=max(150, settings().max_examples))
@given(text=damaged())
def test_damage_is_told_or_harmless(text):
    try:
        plan = plan_from_json(text)
    except PlanError:
        return
    report = check_plan(plan)
    assert report.to_text()
    assert report.to_json()
    if not {"id", "region"} & {f.kind for f in report.findings}:
        assert plan_text(plan, verbose=True)
