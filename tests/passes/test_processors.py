"""Devices that share a processor."""

from hypothesis import given
from hypothesis import strategies as st

from ggsched.passes.cost.simulate import _Processor
from ggsched.topology.caps import processors
from tests.passes.machines import device


def test_devices_of_one_name_share_a_processor():
    named = [device(f"cpu:{i}", processor=name) for i, name in enumerate(("", "a", "b", "a", ""))]
    assert processors(named) == (0, 1, 2, 1, 4)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=12
    )
)
def test_turns_of_different_devices_do_not_overlap(asked):
    """Each begins as early as the turns taken before it let it, and not before it is ready."""
    processor, taken = _Processor(), []
    for owner, ready, seconds in asked:
        begin = processor.begin(owner, float(ready), float(seconds))
        assert begin >= ready
        others = [(a, b) for a, b, other in taken if other != owner and b > a]
        is_free = [
            not any(a < at + seconds and at < b for a, b in others) for at in range(ready, 200)
        ]
        assert seconds == 0 or begin == ready + is_free.index(True)
        taken.append((begin, begin + seconds, owner))
