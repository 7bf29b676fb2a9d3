"""Stop strings are found wherever pieces are cut, and nothing of them is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched_llm.stop_text import StopText

LETTERS = st.text("ab\n", max_size=12)


@given(
    pieces=st.lists(LETTERS, max_size=8),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_text_ends_at_the_first_stop_string(pieces, stops):
    cut = StopText(stops)
    found = "".join(cut.push(piece) for piece in pieces)
    whole = "".join(pieces)
    ends = [at for stop in stops if (at := whole.find(stop)) >= 0]
    assert cut.is_done == bool(ends)
    if ends:
        # Of two that overlap, the one that is complete first ends the text.
        assert whole.startswith(found)
        assert not any(stop in found for stop in stops)
        assert cut.finish() == ""
    else:
        assert found + cut.finish() == whole


def test_nothing_is_held_back_that_cannot_become_a_stop_string():
    cut = StopText(["</s>"])
    assert [cut.push(piece) for piece in ("a<", "b", "</", "s", ">c", "d")] == [
        "a", "<b", "", "", "", "",
    ]  # fmt: skip


def test_empty_stop_string():
    with pytest.raises(UsageError, match="empty"):
        StopText([""])
