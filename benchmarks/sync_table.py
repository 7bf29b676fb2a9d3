"""Waits and host syncs of a decoding step, beside a planner that synchronises as ggml does.

``python -m benchmarks.sync_table`` prints a table in Markdown.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.table import Row
from ggsched.passes import make_plan
from ggsched.plan.bundle import Plan
from ggsched.plan.stats import plan_stats
from tests.support.model_mixes import MIXES, decode_graph, mix, specs
from tests.support.split_sync import split_sync_plan

N_KV = 256


@dataclass(frozen=True, slots=True)
class Syncs:
    """What a decoding step of a model on a machine takes.

    Attributes:
        model: Name of the model.
        mix: Name of the machine.
        splits: Splits of the plan.
        ours: (waits and barriers, host syncs) of ours.
        theirs: The same of a planner that synchronises as ggml does.
    """

    model: str
    mix: str
    splits: int
    ours: tuple[int, int]
    theirs: tuple[int, int]


def measure() -> Iterator[Syncs]:
    """Plan each model on each machine, one stream per device."""
    for model, spec in specs():
        graph = decode_graph(spec, N_KV)
        for name in MIXES:
            if name.endswith("experts") and not spec.hparams.n_expert:
                continue
            topology, constraints = mix(name, spec)
            plan = make_plan(graph, topology, constraints)
            theirs = split_sync_plan(graph, topology, constraints)
            yield Syncs(model, name, len(plan.splits.splits), _count(plan), _count(theirs))


def rows() -> list[Row]:
    """Return the host syncs per token, and the worst of waits against the other planner."""
    found = list(measure())
    most = [s.ours[1] for s in found]
    per_token = "decode, all models and machines: host syncs per token, most"
    out = [Row("streams", per_token, max(most), min(most), max(most), "", "<= 1")]
    for name in MIXES:
        some = [s for s in found if s.mix == name]
        ours, theirs = (sum(map(sum, counts)) for counts in _columns(some))
        ratios = [sum(s.ours) / sum(s.theirs) for s in some]
        what = f"decode, {name}: all syncs of ours / with a sync at each split boundary"
        out.append(Row("streams", what, ours / theirs, min(ratios), max(ratios), "x", "<= 1"))
    return out


def _columns(some: list[Syncs]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [s.ours for s in some], [s.theirs for s in some]


def _count(plan: Plan) -> tuple[int, int]:
    stats = plan_stats(plan)
    return stats.waits + stats.barriers, stats.host_syncs


def main() -> int:
    """Print the table."""
    head = "| model | devices | splits | waits | host syncs | waits, ggml's way | host syncs |"
    lines = [head, "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    lines += [
        f"| {s.model} | {s.mix} | {s.splits} | {s.ours[0]} | {s.ours[1]} | {s.theirs[0]} | "
        f"{s.theirs[1]} |"
        for s in measure()
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
