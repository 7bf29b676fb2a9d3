"""``ggsched bench --compare``: two files of results beside each other."""

import json

import click

from ggsched.errors import UsageError
from ggsched.files.reading import read_text_argument
from ggsched.printable import write_out


def compare_files(
    context: click.Context, option: click.Parameter, paths: tuple[str, str] | None
) -> None:
    """Write a table of ratios and end the command; for an option that is eager.

    Raises:
        UsageError: a file that is not what ``ggsched bench -o json`` writes.
    """
    if paths is None or context.resilient_parsing:
        return
    from ggsched_llm.speed_comparison import SpeedRatio, compare

    a, b = (_decoded(path) for path in paths)
    found, alone = compare(a, b, paths)
    write_out(f"A is {paths[0]}, B is {paths[1]}; the ratio is B / A.\n\n")
    width = max(len("test"), *(len(ratio.test) for ratio in found))

    def line(ratio: SpeedRatio) -> str:
        interval = "-" if ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
        verdict = "differs" if ratio.is_sure else "-" if ratio.low is None else "may be equal"
        return f"| {ratio.test:{width}} | {ratio.ratio:5.3f} | {interval:14} | {verdict:12} |\n"

    write_out(f"| {'test':{width}} | ratio | {'95 % interval':14} | {'verdict':12} |\n")
    write_out(f"| {'-' * width} | ----- | {'-' * 14} | {'-' * 12} |\n")
    for ratio in found:
        write_out(line(ratio))
    for path, tests in alone.items():
        if tests:
            write_out(f"only {path} has {', '.join(tests)}\n")
    context.exit(0)


def _decoded(path: str) -> object:
    try:
        return json.loads(read_text_argument(path))
    except (ValueError, RecursionError) as error:
        raise UsageError("this is no JSON", where=path, why=str(error)) from error
