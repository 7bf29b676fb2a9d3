"""Findings as one page of HTML, with the lines of the program where they are at hand."""

from html import escape
from linecache import getline
from typing import Final

from ggsched_race.call_sites import Stack
from ggsched_race.report import RaceFinding, RaceReport, Side

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em }
table { border-collapse: collapse; width: 100% }
td { vertical-align: top; padding: .4em 1em .4em 0 }
code, pre { font: 13px/1.4 ui-monospace, monospace } pre { margin: .2em 0; overflow: auto }
section { border-top: 1px solid #8886; margin-top: 1.5em } .mend { font-weight: 600 }
.at { opacity: .7 } @media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } }
"""


def to_html(report: RaceReport) -> str:
    """Return a page that needs nothing else."""
    parts = [
        f"<title>{escape(report.name)}: {report.verdict}</title><style>{_STYLE}</style>",
        f"<h1>{escape(report.name)}</h1><p>{report.verdict}</p>",
        *(_section(i, finding, report.least) for i, finding in enumerate(report.findings, 1)),
        *(f"<p>note: {escape(notice)}</p>" for notice in report.notices),
        *(f"<p>advice: {escape(a.what)}; {a.times} times</p>" for a in report.advice),
    ]
    return f'<!doctype html><html lang="en"><meta charset="utf-8">{"".join(parts)}</html>\n'


def _section(number: int, finding: RaceFinding, least: str) -> str:
    times = f"<p>The same two calls race {least}{finding.times} times.</p>"
    times = times if finding.times > 1 else ""
    return (
        f"<section><h2>{number} {escape(finding.kind)}</h2><p>{escape(finding.what)}</p>"
        f"<p><code>{escape(finding.tensor)}</code></p><table><tr>"
        + "".join(f"<td>{_side(side)}</td>" for side in finding.sides)
        + f'</tr></table><p class="mend">{escape(finding.mend)}</p>{times}</section>'
    )


def _side(side: Side) -> str:
    captured = f"captured at{_frames(side.captured)}" if side.captured else ""
    what = f"{side.mode}: <code>{escape(side.op)}</code> on <code>{escape(side.stream)}</code>"
    return f"<b>{what}</b>{_frames(side.stack)}{captured}"


def _frames(stack: Stack) -> str:
    lines = [
        f'<div class="at">{escape(f.to_text())}</div>'
        f"<pre>{escape(getline(f.file, f.line).strip())}</pre>"
        for f in stack
    ]
    return "".join(lines)
