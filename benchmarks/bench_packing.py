"""Packing: bytes needed over a lower bound, on hard problems and on transformers at real sizes.

The eleven hard problems are those of MiniMalloc (google/minimalloc, ``benchmarks/challenging``,
Apache-2.0), read from ``../shared/minimalloc``; they are not part of this repository, and without
them that part is left out. The bound is the most that lives at one step. Each can be packed into
1,048,576 bytes, which is 1.009, 1.063 and 1.060 of the bound for C, D and J, and 1 for the others.

Rectangles cut into blocks can be packed without a gap by construction, and need no file. In the
default mode, as in a plan, and with ``effort``. Times are of one thread; the smallest of three in
the default mode.
"""

import csv
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import exp, log
from pathlib import Path
from random import Random

from benchmarks.measure import best, interleaved, ratio
from benchmarks.table import Row
from ggsched.passes import Constraints, make_plan
from ggsched.passes.memory.interference import find_near
from ggsched.passes.memory.packing import (
    MemoryBlock,
    lower_bound,
    pack,
    place_by_birth,
    place_by_size,
)
from ggsched.plan.stats import plan_stats
from ggsched.topology import Topology
from tests.support.model_mixes import topology
from tests.support.transformers import MODELS, model_graph

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "minimalloc"
EFFORT = 25
"""Takes up to 5 s for each of the hard problems."""


def run() -> list[Row]:
    """Measure."""
    rows = []
    if FOLDER.is_dir():
        problems = {path.name[0]: read(path) for path in sorted(FOLDER.glob("*.csv"))}
        rows += _table("MiniMalloc", problems, ("<= 1.36", "<= 1.20"))
    else:
        sys.stderr.write(
            f"packing: no hard problems at {FOLDER}; copy *.csv of benchmarks/challenging from "
            "https://github.com/google/minimalloc there\n"
        )
    cuts = {f"{n} blocks": cut(n, Random(n)) for n in (100, 200, 400)}
    rows += _table("cut", cuts, ("", ""))
    return rows + _transformers() + [_linear()]


def read(path: Path) -> list[MemoryBlock]:
    """Return the blocks of a file with the columns id, lower, upper (not included), size."""
    with open(path, encoding="utf-8", newline="") as file:
        return [
            MemoryBlock(int(row["lower"]), int(row["upper"]) - 1, int(row["size"]))
            for row in csv.DictReader(file)
        ]


def cut(count: int, random: Random) -> list[MemoryBlock]:
    """Return blocks that fill a rectangle of time and bytes without a gap, in random order."""
    pieces = [(0, 4096, 4096)]
    while len(pieces) < count:
        pieces.sort(key=lambda piece: (piece[1] - piece[0]) * piece[2])
        first, end, units = pieces.pop()
        at = 0.2 + 0.6 * random.random()
        if random.random() < 0.5:
            middle = first + max(1, int((end - first) * at))
            pieces += [(first, middle, units), (middle, end, units)]
        else:
            lower = max(1, int(units * at))
            pieces += [(first, end, lower), (first, end, units - lower)]
    random.shuffle(pieces)
    return [MemoryBlock(first, end - 1, 256 * units) for first, end, units in pieces]


def _table(name: str, problems: dict[str, list[MemoryBlock]], bounds: tuple[str, str]) -> list[Row]:
    """Return a row for each problem and mode, and the geometric means."""
    rows, ratios = [], {}
    modes: dict[str, Callable[[Sequence[MemoryBlock]], tuple[list[int], int]]] = {
        "by birth, best fit": place_by_birth,
        "by size": _by_size,
        "default": pack,
        f"effort {EFFORT}": partial(pack, effort=EFFORT),
    }
    for mode, place in modes.items():
        is_search = mode.startswith("effort")
        worst = 0.0
        for problem, blocks in problems.items():
            took, total = [], 0
            for _ in range(1 if is_search else 3):
                began = time.process_time()
                total = place(blocks)[1]
                took.append(time.process_time() - began)
            over = total / lower_bound(blocks)
            ratios.setdefault(mode, []).append(over)
            worst = max(worst, best(took))
            if mode == "default" or is_search:
                what = f"{name} {problem} ({len(blocks)} blocks), {mode}: bytes / bound"
                rows.append(Row("packing", what, over, over, over))
        mean = exp(sum(map(log, ratios[mode])) / len(problems))
        target = {"default": bounds[0], f"effort {EFFORT}": bounds[1]}.get(mode, "")
        what = f"{name}, {mode}: bytes / bound, geometric mean"
        rows.append(Row("packing", what, mean, min(ratios[mode]), max(ratios[mode]), "x", target))
        if mode == "default" or is_search:
            limit = f"<= {5.0 if is_search else 0.05}"
            rows.append(Row("packing", f"{name}, {mode}: slowest", worst, worst, worst, "s", limit))
    return rows


def _by_size(blocks: Sequence[MemoryBlock]) -> tuple[list[int], int]:
    near = find_near(blocks, most=len(blocks) ** 2)
    assert near is not None
    return place_by_size(blocks, near)


def _transformers() -> list[Row]:
    rows = []
    two = topology()
    one = Topology(two.devices[1:], {}, {})
    for hparams in MODELS:
        found = []
        for n_tokens, n_kv in ((1, 256), (1, 4096), (512, 512), (512, 4096)):
            graph = model_graph(hparams, n_tokens, n_kv)
            half = {i: int(2 * i >= len(graph.nodes)) for i in range(len(graph.nodes))}
            for machine, pins in ((one, {}), (two, half)):
                plan = make_plan(graph, machine, Constraints(pins=pins))
                found.append(plan_stats(plan).waste)
        what = f"{hparams.name}, {hparams.n_layer} layers, 1 and 2 devices: bytes / bound"
        rows.append(Row("packing", what, max(found), min(found), max(found), "x", "<= 1.02"))
    return rows


def _linear() -> Row:
    """Return how much longer five times as many blocks take, over five; neither is searched."""
    small, large = (
        [MemoryBlock(k, k + 3 + k % 17, 64 * (1 + k * 7919 % 97)) for k in range(n)]
        for n in (4_000, 20_000)
    )
    sides = {"large": partial(pack, large), "small": partial(pack, small)}
    took = interleaved(sides, 5, time.process_time)  # type: ignore[arg-type]
    value, low, high = (x / 5 for x in ratio(took["large"], took["small"]))
    return Row("packing", "time per block, 20,000 blocks / 4,000", value, low, high, "x", "<= 2")
