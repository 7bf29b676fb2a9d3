"""Whatever the planner makes, on whatever machine, the judge must find in order."""

from hypothesis import given
from hypothesis import strategies as st

from ggsched.passes import make_plan
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched.testing.strategies import graphs
from ggsched.testing.topologies import constraints, topologies


@given(drawn=graphs(), topology=topologies(), data=st.data())
def test_plans_are_clean(drawn, topology, data):
    wanted = data.draw(constraints(drawn.graph, topology))
    plan = make_plan(drawn.graph, topology, wanted, verify=True)
    report = check_plan(plan)
    assert report.is_clean, f"{report.to_text()}\n{plan_text(plan, verbose=True)}"
