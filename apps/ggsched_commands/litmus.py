"""``ggsched litmus``: verdicts on litmus programs, broken and fixed, by checker and explorer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggsched.cli.console import write_folded, write_json
from ggsched.cli.options import json_option
from ggsched.files.reading import read_text_argument
from ggsched.printable import write_out
from ggsched_commands.spread_options import shown_results, spread_options, text_digest
from ggsched_testing.spread import Spread

if TYPE_CHECKING:
    from ggsched_testing.litmus import BlockVerdict
    from ggsched_testing.litmus.program import LitmusBlock
    from ggsched_testing.litmus.verdict import VariantResult

_FINDING = 1


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-q", "--quiet", is_flag=True, help="Say only what is not as stated.")
@spread_options
@json_option
def litmus(
    files: tuple[str, ...],
    quiet: bool,
    jobs: int,
    ray: str | None,
    journal: Path | None,
    as_json: bool,
) -> int:
    """Check litmus programs, plain ones or fences in Markdown.

    The sanitizer decides by clocks, the explorer by running all interleavings. The exit code is 1
    if a verdict is not the one that the header states, or if the two do not agree. Verdicts and
    their order do not depend on --jobs and --ray.
    """
    from ggsched_testing.litmus import BlockVerdict, parse_litmus
    from ggsched_testing.litmus.verdict import VariantResult

    blocks = [block for file in files for block in parse_litmus(read_text_argument(file), file)]
    said = shown_results(
        Spread(jobs, ray, journal),
        _both_verdicts,
        blocks,
        keys=[f"{block.file} {block.id} {number}" for number, block in enumerate(blocks)],
        work="verdicts on litmus programs " + text_digest(map(repr, blocks)),
        kind=tuple[VariantResult, ...],
    )
    verdicts = [
        BlockVerdict(block, *one) for block, both in zip(blocks, said, strict=True) for one in both
    ]
    if as_json:
        write_json([j.to_json() for j in verdicts])
    else:
        _write(verdicts, quiet)
    return 0 if all(j.is_as_stated for j in verdicts) else _FINDING


def _both_verdicts(block: "LitmusBlock") -> "tuple[VariantResult, ...]":
    from ggsched_testing.litmus import block_verdict
    from ggsched_testing.litmus.verdict import VariantResult

    return tuple(
        VariantResult(j.variant, j.verdict, j.witness, j.fix, j.explored)
        for j in block_verdict(block)
    )


def _write(verdicts: Sequence["BlockVerdict"], quiet: bool) -> None:
    for j in verdicts:
        if quiet and j.is_as_stated:
            continue
        stated = j.block.expected(j.variant)
        note = "" if j.verdict == stated else f"  but stated is {stated}"
        if not j.agree:
            note += f"  but the explorer says {j.explored.verdict or 'nothing'}"
        write_out(f"{j.block.id:<8} {j.variant:<7} {j.verdict}{note}\n")
        lines = [j.witness, f"fix: {j.fix}" if j.fix else ""]
        lines += [f"explorer: {j.explored.what}" if j.explored.what and not j.agree else ""]
        for line in filter(None, lines):
            write_folded(f"    {line}", indent=6)
    wrong = sum(not j.is_as_stated for j in verdicts)
    agree = "agree" if all(j.agree for j in verdicts) else "disagree"
    write_out(f"{len(verdicts)} verdicts, {wrong} not as stated, checker and explorer {agree}\n")
