"""The page about the notation shows what the command prints."""

import re
from pathlib import Path

from ggsched.cli.main import main
from ggsched_testing.litmus.program import BARE_VERBS, KINDS, SYNC_VERBS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "litmus.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_example(capsys, tmp_path):
    program = re.search(r"^    litmus .*?(?=^```)", TEXT, re.M | re.S)[0]
    path = tmp_path / "example.litmus"
    path.write_text(program, encoding="utf-8")
    assert main(["litmus", str(path)]) == 0
    shown = re.search(r"^\$ ggsched litmus FILE\n(.*?)^```", TEXT, re.M | re.S)[1]
    assert capsys.readouterr().out == shown


def test_every_verb_and_kind_is_there():
    for word in (*SYNC_VERBS, *BARE_VERBS, "malloc"):
        assert re.search(rf"`\w+: {word}\b", TEXT), word
    for kind in KINDS:
        assert f"| `{kind}` |" in TEXT
