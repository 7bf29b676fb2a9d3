"""A litmus program's order, shown in three ways: by events, by clocks, by timelines.

    python -m tests.docs.three_ways docs/explanation/order.md

puts what is shown of each program behind its fence.
"""

import re
import sys
from pathlib import Path
from textwrap import wrap

from ggsched.sanitize.from_trace import from_trace
from ggsched.sanitize.order import HappensBefore
from ggsched.trace.schema import Record, Sync, Wait, Work
from ggsched_testing.litmus import block_verdict, parse_litmus
from ggsched_testing.litmus.as_trace import litmus_trace
from ggsched_testing.litmus.program import Variant

PAIR = re.compile(
    r"^```litmus (?P<head>.*)\n(?P<body>(?:.*\n)*?)```\n\n```text\n(?:.*\n)*?```$", re.M
)


def filled(text: str) -> str:
    """Return a page with what is shown of each program in the fence that follows it."""

    def one(match: re.Match[str]) -> str:
        shown = "\n".join(shown_of(match["head"], match["body"]))
        return f"```litmus {match['head']}\n{match['body']}```\n\n```text\n{shown}\n```"

    return PAIR.sub(one, text)


def shown_of(head: str, body: str) -> list[str]:
    """Return the verdicts of both checkers, and the fixed variant in three ways."""
    (block,) = parse_litmus(f"litmus {head}\n{body}")
    broken, fixed = block_verdict(block)
    assert broken.is_as_stated, head
    assert fixed.is_as_stated, head
    witness = re.sub(r"\bline \d+ ", "", broken.witness)
    lines = wrap(f"without '+': {witness}" if witness else "", 76, subsequent_indent="    ")
    names = ["lane", *block.actors]
    rows = [("operation", f"clock [{' '.join(names[1:])}]", "timelines"), *rows_of(block, "fixed")]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for operation, clock, timeline in rows:
        lines.append(f"{operation:{widths[0]}}  {clock:{widths[1]}}  {timeline}".rstrip())
    return lines


def rows_of(block, variant: Variant):
    """Yield (operation, clock, timelines) of each operation."""
    trace, ops, _ = litmus_trace(block, variant)
    events = from_trace(trace)
    order = HappensBefore(events)
    counts = [0] * len(trace.actors)
    recorded = {}
    for number, (entry, op) in enumerate(zip(trace.entries, ops, strict=True)):
        if op is None:
            continue
        shown = ""
        if isinstance(entry, Work):
            _, clock = order.work(events.events[number], number, 0)
            counts[entry.actor] += 1
            shown = f"signal {op.actor} = {counts[entry.actor]}"
        else:
            order.follow(events.events[number])
            clock = order.all_of(entry.actor)
        match entry:
            case Record(actor=actor, event=event):
                recorded[event] = (block.actors[actor], counts[actor])
                shown = f"{op.target} is {op.actor} = {counts[actor]}"
            case Wait(event=event) | Sync(event=int(event)):
                lane, value = recorded[event]
                shown = f"wait {lane} >= {value}"
            case Sync(stream=int(stream)):
                shown = f"wait {block.actors[stream]} >= {counts[stream]}"
        numbers = [number for chunk in clock for number in chunk][: len(order.log)]
        yield op.text, f"[{' '.join(map(str, numbers))}]", shown


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
