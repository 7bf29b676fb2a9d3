"""What is known to be complete: the bisection against a scan of every birth."""

from sys import maxsize

from hypothesis import given
from hypothesis import strategies as st

from ggsched.passes.order.happens_before import AfterItem, HostClock
from ggsched.passes.order.visibility import KnownSteps, Visibility


@st.composite
def tables(draw):
    """Draw values that are born one after another, and steps that touch some bytes.

    Items are steps. The host learns something between births, and births know things beyond that.
    """
    lanes, count = draw(st.integers(2, 4)), draw(st.integers(0, 12))
    items = st.dictionaries(st.integers(0, lanes - 1), st.integers(0, count), max_size=lanes)
    host, first, steps = HostClock(lanes), {}, [*range(count + 1), -1]
    order = draw(st.permutations(range(count)))
    for step, v in enumerate(order):
        for lane, item in draw(items).items():
            host.learn(lane, item)
        host.version += 1
        after = AfterItem(draw(st.integers(0, lanes - 1)), step, draw(items), host, host.version)
        most = draw(st.just(maxsize) | st.integers(0, count))
        first[v] = KnownSteps(after, steps, step - 1, most)
    values = draw(st.lists(st.integers(0, count - 1), unique=True)) if count else []
    touched = draw(st.lists(items, min_size=1))
    known = tuple(first[v] for v in range(count))
    return Visibility(known, (), (0,) * count, {v: s for s, v in enumerate(order)}), values, touched


@given(tables())
def test_last_unaware(made):
    table, values, touched = made
    expected = [
        max(
            [
                step
                for v, step in table.born.items()
                if v in values and any(table.first[v][k] < s for k, s in last.items())
            ],
            default=-1,
        )
        for last in touched
    ]
    assert table.last_conflicting_birth(values, touched) == expected
