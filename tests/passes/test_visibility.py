"""What is known to be complete: the bisection against a scan of every birth."""

from hypothesis import given
from hypothesis import strategies as st

from ggsched.passes.order.visibility import Visibility


@st.composite
def tables(draw):
    """Draw values that are born one after another, and steps that touch some bytes."""
    lanes, count = draw(st.integers(2, 4)), draw(st.integers(0, 12))
    knowns = st.tuples(*[st.integers(-1, count)] * lanes)
    first = tuple(draw(st.lists(knowns, min_size=count, max_size=count)))
    born = tuple(enumerate(draw(st.permutations(range(count)))))
    values = draw(st.lists(st.integers(0, count - 1), unique=True)) if count else []
    return Visibility(first, (), (0,) * count, born), values, draw(st.lists(knowns, min_size=1))


@given(tables())
def test_last_unaware(made):
    table, values, touched = made
    expected = [
        max(
            [
                step
                for step, v in table.born
                if v in values and any(k < s for k, s in zip(table.first[v], last, strict=True))
            ],
            default=-1,
        )
        for last in touched
    ]
    assert table.last_conflicting_birth(values, touched) == expected
