"""Finding special tokens: as a regular expression would, however many there are."""

import re

from hypothesis import given
from hypothesis import strategies as st

from ggsched_llm.special_tokens import SpecialTokens

LETTERS = "ab]^-\\"


@given(st.lists(st.text(LETTERS, max_size=4), max_size=6), st.text(LETTERS + "x", max_size=30))
def test_as_a_regular_expression_of_the_longest_first(tokens, text):
    longest = sorted(filter(None, tokens), key=len, reverse=True)
    wanted = [m.span() for m in re.finditer("|".join(map(re.escape, longest)), text)]
    assert list(SpecialTokens(tokens).find(text)) == (wanted if longest else [])


class Counted(str):
    """A text that counts how often a character is looked at."""

    looks = 0

    def __getitem__(self, key):
        Counted.looks += 1
        return super().__getitem__(key)


def test_a_hundred_thousand_tokens_cost_no_more_than_one():
    """Characters that are looked at, not seconds."""
    many = SpecialTokens([*(f"<|special_{i}|>" for i in range(100_000)), "<s>"])
    one = SpecialTokens(["<s>"])
    looked = []
    for tokens in (one, many):
        Counted.looks = 0
        text = Counted("plain text < and <s> or <|special_99999|>. " * 100)
        assert len(list(tokens.find(text))) == (100 if tokens is one else 200)
        looked.append(Counted.looks)
    assert looked[1] <= looked[0] + 20 * 200
    assert looked[1] < len(text)
