"""The reference of the command line is click's tree, written down."""

import click

from ggsched.cli.main import cli
from ggsched_commands.page import commands, filled, options
from tests.meta.repository import ROOT, name_of

PAGE = ROOT / "docs" / "reference" / "cli.md"


def test_the_page_is_written_from_the_commands():
    text = PAGE.read_text(encoding="utf-8")
    assert text == filled(text), f"run: python -m ggsched_commands.page {name_of(PAGE)}"


def test_it_has_every_command_and_every_option():
    text = PAGE.read_text(encoding="utf-8")
    assert set(commands()) == set(cli.list_commands(click.Context(cli)))
    for name, command in commands().items():
        assert f"\n## {name}\n" in text
        for option in options(command):
            for spelling in (*option.opts, *option.secondary_opts):
                assert f"`{spelling}`" in text, (name, spelling)
