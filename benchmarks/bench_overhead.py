"""What a run from the cache costs the host, everything but the kernels' own time.

Per node and barrier: a table of 2,000 additions of two rows of 16 floats, one row for each of two
threads, where each addition waits for both rows of the one before.

Per node: a graph of 2,000 additions of 16 floats as one launch, less the time of 2,000 bare
``np.add(a, b, out=c)``, against one of these. Per command: the same graph over two logical CPU
devices that take turns at every node, so that each node brings a launch, a copy, a record and a
wait, against ``ThreadPoolExecutor.submit(...).result()``; on worker threads and synchronously.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

import numpy as np

from benchmarks.measure import interleaved, ratio, spread
from benchmarks.table import Row
from ggsched.backend.arrays import aligned_bytes
from ggsched.config import Settings
from ggsched.ir import Graph, GraphBuilder
from ggsched.passes import Constraints
from ggsched.scheduler import Scheduler
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.kernels.vectors import HEAD
from ggsched_cpu.lowering.tasks import row_task
from ggsched_cpu.program import Stretch
from ggsched_cpu.runner import Runner

N = 2_000
ROUNDS = 15
FAR_NBYTES = 4096


def run() -> list[Row]:
    """Measure."""
    rows = []
    for is_sync in (True, False):
        rows += _per_node(is_sync)
        rows += _per_command(is_sync)
    return [*rows, *_per_barrier()]


def _per_barrier() -> list[Row]:
    """Measure a node of a team; the least counts most where other programs run."""
    rows = []
    for threads, bound in ((1, ""), (2, "<= 150")):
        device = CpuDevice(0, CpuSettings(threads=threads))
        kernels, stream = device.kernels_used, device.create_stream()
        if kernels is None:
            return []
        x = aligned_bytes(2 * FAR_NBYTES, FAR_NBYTES).view(np.float32).reshape(2, -1)[:, :16]
        task = row_task(kernels.address("elementwise_add", "plain"), (x, x, x), (2,), 16, threads)
        assert task is not None
        args = list(task.args)
        args[HEAD.index("part_rows")] = 1
        each = replace(task, args=tuple(args), parts=2, is_serial=False)
        stretch = Stretch(["add"] * N, [each] * N, Runner(stream, threads))
        took = sorted(_seconds(stretch.run) for _ in range(20 * ROUNDS))
        ns = [1e9 * s / N for s in took]
        what = f"a node and its barrier, {threads} threads: least and median"
        rows.append(Row("overhead", what, ns[0], ns[0], ns[len(ns) // 2], "ns", bound=bound))
        device.close()
    return rows


def _seconds(call: Callable[[], None]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def chain() -> Graph:
    """Return N additions of 16 floats, one after another."""
    g = GraphBuilder("chain")
    x, c = g.input("x", (16,)), g.weight("c", (16,))
    for _ in range(N):
        x = g.add(x, c)
    return g.build(x)


def _per_node(is_sync: bool) -> list[Row]:
    took, _ = _measure(is_sync, 1, N)
    own = [t - a for t, a in zip(took["run"], took["add"], strict=True)]
    what = f"per node, {_mode(is_sync)}: (run - kernels) / np.add on 16 floats"
    return [Row("overhead", what, *ratio(own, took["add"]), bound="<= 3")]


def _per_command(is_sync: bool) -> list[Row]:
    took, commands = _measure(is_sync, 2, 1)
    own = [(t - a) / commands for t, a in zip(took["run"], took["add"], strict=True)]
    what = f"per command, {_mode(is_sync)}: (run - kernels) / submit and result"
    bound = "<= 0.25" if is_sync else "<= 1"
    each = [t / N for t in took["pool"]]
    return [
        Row("overhead", what, *ratio(own, each), bound=bound),
        Row("overhead", f"  a command, {_mode(is_sync)}", *_us(own), unit="us"),
        Row("overhead", "  submit and result", *_us(each), unit="us"),
    ]


def _measure(is_sync: bool, devices: int, every: int) -> tuple[dict[str, list[float]], int]:
    graph = chain()
    constant = np.ones(16, np.float32)
    opened = [CpuDevice(i, CpuSettings(sync=is_sync)) for i in range(devices)]
    pins = Constraints(pins={i: (i // every) % devices for i in range(N)})
    with (
        Scheduler(opened, weights={"c": constant}, settings=Settings()) as scheduler,
        ThreadPoolExecutor(1) as pool,
    ):
        inputs = {"x": np.zeros(16, np.float32)}
        commands = len(scheduler.plan(graph, pins).commands)
        sides = {
            "run": lambda: _discard(scheduler.run(graph, inputs, pins)),
            "add": _bare_adds(constant),
            "pool": lambda: _submit(pool),
        }
        took = interleaved(sides, ROUNDS)
    for device in opened:
        device.close()
    return took, commands


def _bare_adds(constant: np.ndarray) -> Callable[[], None]:
    a, c, add = np.zeros(16, np.float32), np.zeros(16, np.float32), np.add

    def adds() -> None:
        for _ in range(N):
            add(a, constant, out=c)

    return adds


def _submit(pool: ThreadPoolExecutor) -> None:
    for _ in range(N):
        pool.submit(_nothing).result()


def _nothing() -> None:
    pass


def _discard(result: object) -> None:
    del result


def _mode(is_sync: bool) -> str:
    return "synchronous" if is_sync else "worker thread"


def _us(seconds: list[float]) -> tuple[float, float, float]:
    return spread(1e6 * s for s in seconds)
