"""Commands that pages show exist, with their options."""

import re
import shlex

import pytest

from ggsched_commands.page import commands, options
from tests.meta.repository import ROOT, name_of, own_files

PAGES = [
    path
    for path in own_files()
    if path.suffix == ".md" and (path == ROOT / "README.md" or path.is_relative_to(ROOT / "docs"))
]
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.M | re.S)
INDENTED = re.compile(r"^ {4}((?:GGSCHED_\w+=\S+ )*ggsched .*)$", re.M)
INLINE = re.compile(r"`((?:GGSCHED_\w+=\S+ )?ggsched [a-z][^`\n]*)`")
EVERYWHERE = {"-h", "--help", "--version"}


def shown(text):
    """Yield each call of ggsched on a page, as words."""
    lines = [line for fence in SHELL.findall(text) for line in fence.splitlines()]
    for line in [*lines, *INDENTED.findall(text), *INLINE.findall(text)]:
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words[:1] == ["ggsched"] and len(words) > 1:
            end = next((i for i, word in enumerate(words) if set(word) & set("|&;<>")), None)
            yield words[1:end]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_exist(page):
    known = commands()
    for name, *words in shown(page.read_text(encoding="utf-8")):
        if name in {"[OPTIONS]", *EVERYWHERE} or name.isupper():
            continue
        assert name in known, name
        has = {o for option in options(known[name]) for o in (*option.opts, *option.secondary_opts)}
        used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= has | EVERYWHERE, (name, used - has)


def test_commands_are_found():
    text = "```sh\nA=1 ggsched run $M -n 8 | head  # x\n```\nand `ggsched check FILE`\n"
    assert list(shown(text)) == [["run", "$M", "-n", "8"], ["check", "FILE"]]
