"""What it costs to write down a run, and to check what was written.

Runs from the cache with a recorder around the devices, against the same runs without one: the
graph of ``bench_overhead`` whose 2,000 nodes take turns on two logical CPU devices, so that each
node brings a launch, a copy, a record and a wait, which is the worst case; and the same graph on
one device, where a run is one launch.
"""

import numpy as np

from benchmarks.bench_overhead import N, chain
from benchmarks.measure import interleaved, ratio
from benchmarks.table import Row
from ggsched.config import Settings
from ggsched.passes import Constraints
from ggsched.sanitize import check_trace
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched_cpu.device import CpuDevice, CpuSettings

ROUNDS = 25
LIMIT = 4_000_000


def run() -> list[Row]:
    """Measure."""
    rows = []
    for is_sync in (True, False):
        for devices in (1, 2):
            rows += _traced_run(is_sync, devices)
            rows += _traced_run(is_sync, devices, times=True)
    return rows


def _traced_run(is_sync: bool, devices: int, *, times: bool = False) -> list[Row]:
    graph, recorder = chain(), Recorder(LIMIT, times=times)
    pins = Constraints(pins={i: i % devices for i in range(N)})
    inputs = {"x": np.zeros(16, np.float32)}
    opened = [CpuDevice(i, CpuSettings(sync=is_sync)) for i in range(devices)]
    weights = {"c": np.ones(16, np.float32)}
    with (
        Scheduler(opened, weights=weights, settings=Settings()) as plain,
        Scheduler(opened, weights=weights, settings=Settings(), recorder=recorder) as traced,
    ):
        commands = len(plain.plan(graph, pins).commands)
        sides = {
            "plain": lambda: _discard(plain.run(graph, inputs, pins)),
            "traced": lambda: _discard(traced.run(graph, inputs, pins)),
        }
        took = interleaved(sides, ROUNDS)
    for device in opened:
        device.close()
    mode = "synchronous" if is_sync else "worker thread"
    timed = "timed and traced" if times else "traced"
    what = f"{commands} commands, {mode}: {timed} run / run"
    bound = "<= 3" if times else "<= 2"
    rows = [Row("trace", what, *ratio(took["traced"], took["plain"]), bound=bound)]
    if devices == 2 and is_sync and not times:
        trace = recorder.trace("bench")
        checked = interleaved({"checker": lambda: _discard(check_trace(trace))}, 3)["checker"]
        each = [t / (1 + ROUNDS) for t in checked]
        what = f"{len(trace.entries)} records: checking them, per run recorded / run"
        rows.append(Row("trace", what, *ratio(each, took["plain"][:3])))
    return rows


def _discard(result: object) -> None:
    del result
