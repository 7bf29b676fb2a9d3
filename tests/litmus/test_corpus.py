"""Every block of the corpus gets the verdict that its header states, from both checkers."""

from collections import Counter
from pathlib import Path

import pytest

from ggsched_testing.litmus import block_verdict, parse_litmus

FILES = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".md", ".litmus"))
BLOCKS = [block for p in FILES for block in parse_litmus(p.read_text(encoding="utf-8"), p.name)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.id)
def test_verdicts(block):
    for verdict in block_verdict(block):
        assert verdict.is_as_stated, verdict.to_json()
        assert bool(verdict.witness) == (verdict.verdict != "clean")
        assert bool(verdict.explored.what) == (verdict.verdict != "clean")


def test_the_corpus_is_large_and_has_every_kind():
    kinds = Counter(block.kind for block in BLOCKS)
    assert len(BLOCKS) >= 80
    assert kinds["race"] >= 50
    assert kinds["value"] >= 20
    assert kinds["capture"] >= 6
    assert kinds["clean"] >= 5


def test_each_name_is_there_once():
    assert not [name for name, count in Counter(b.id for b in BLOCKS).items() if count > 1]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind != "clean"], ids=lambda b: b.id)
def test_the_variants_differ(block):
    assert block.variant("broken") != block.variant("fixed")
