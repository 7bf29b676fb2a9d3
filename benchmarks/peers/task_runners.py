"""The same tasks by numpy in a loop, a pool of threads, dask, torch, and ggsched from its cache.

Each function takes tasks and yields, as a context manager, a function that runs them once and
returns the last result. Whatever can be prepared once, as for a plan, is prepared before.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from benchmarks.peers.task_graphs import FIRST, Tasks
from ggsched.config import Settings
from ggsched.passes import Constraints
from ggsched.scheduler import Scheduler
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_task import TaskGraph, TaskRunner

TIMEOUT_S = 60.0
_UFUNCS = {"add": np.add, "mul": np.multiply}

Once = Callable[[], np.ndarray]
Runner = Callable[[Tasks], AbstractContextManager[Once]]


@contextmanager
def numpy_loop(tasks: Tasks) -> Iterator[Once]:
    """Run the calls one after another: what no scheduler in Python can beat by much."""
    calls = [(_UFUNCS[op], a, b) for op, a, b in tasks.calls]
    x, c = tasks.inputs()

    def once() -> np.ndarray:
        made: list[Any] = [x, c]
        for f, a, b in calls:
            made.append(f(made[a], made[b]))  # each reads what was made before
        return np.asarray(made[-1])

    yield once


def thread_pool(workers: int) -> Runner:
    """Return a runner that submits each task to a pool; a task waits for its operands' futures.

    Tasks are submitted in an order in which they can run and workers take them in that order, so
    whatever a worker waits for is running or done.
    """

    @contextmanager
    def runner(tasks: Tasks) -> Iterator[Once]:
        with ThreadPoolExecutor(workers) as pool:

            def once() -> np.ndarray:
                made = [_done(value) for value in tasks.inputs()]
                for op, a, b in tasks.calls:
                    made.append(pool.submit(_apply, _UFUNCS[op], made[a], made[b]))
                return np.asarray(made[-1].result(TIMEOUT_S))

            yield once

    return runner


def _done(value: np.ndarray) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _apply(f: Callable[[Any, Any], Any], a: "Future[Any]", b: "Future[Any]") -> Any:
    return f(a.result(TIMEOUT_S), b.result(TIMEOUT_S))


def dask_threads(workers: int) -> Runner:
    """Return a runner on dask's threaded scheduler."""

    @contextmanager
    def runner(tasks: Tasks) -> Iterator[Once]:
        import dask.threaded

        x, c = tasks.inputs()
        graph: dict[str, Any] = {"t0": x, "t1": c}
        for i, (op, a, b) in enumerate(tasks.calls):
            graph[f"t{FIRST + i}"] = (_UFUNCS[op], f"t{a}", f"t{b}")
        last = f"t{FIRST + len(tasks.calls) - 1}"
        yield lambda: np.asarray(dask.threaded.get(graph, last, num_workers=workers))

    return runner


def ggsched_tasks(workers: int) -> Runner:
    """Return a runner on ``ggsched_task``: each call is a Python callable on objects."""

    @contextmanager
    def runner(tasks: Tasks) -> Iterator[Once]:
        x, c = tasks.inputs()
        g = TaskGraph(tasks.name)
        made = [g.input("x"), g.input("c")]
        for op, a, b in tasks.calls:
            made.append(g.add(_UFUNCS[op], made[a], made[b], cost=1e-6))
        inputs, last = {"x": x, "c": c}, made[-1:]
        with TaskRunner({"cpu": workers}) as found:
            yield lambda: np.asarray(found.run(g, inputs, last)[0])

    return runner


@contextmanager
def torch_eager(tasks: Tasks) -> Iterator[Once]:
    """Run the calls one after another on tensors, on one thread and without autograd."""
    import torch

    torch.set_num_threads(1)
    ops = {"add": torch.add, "mul": torch.mul}
    calls = [(ops[op], a, b) for op, a, b in tasks.calls]
    x, c = (torch.from_numpy(value) for value in tasks.inputs())

    def once() -> np.ndarray:
        made: list[Any] = [x, c]
        with torch.inference_mode():
            for f, a, b in calls:
                made.append(f(made[a], made[b]))
        return np.asarray(made[-1])

    yield once


def ggsched_cached(*, is_sync: bool, devices: int = 1) -> Runner:
    """Return a runner that runs a plan from the cache.

    Args:
        is_sync: On the caller's thread instead of worker threads.
        devices: Logical devices that take turns at every node. With one all nodes are one launch;
            with two each node is a launch, a copy, a record and a wait.
    """

    @contextmanager
    def runner(tasks: Tasks) -> Iterator[Once]:
        graph = tasks.graph()
        x, c = tasks.inputs()
        opened = [CpuDevice(i, CpuSettings(sync=is_sync)) for i in range(devices)]
        pins = Constraints(pins={i: i % devices for i in range(len(graph.nodes))})
        settings = Settings(timeout_s=TIMEOUT_S, rates="off", streams=1)
        try:
            with Scheduler(opened, weights={"c": c}, settings=settings) as scheduler:
                inputs, last = {"x": x}, graph.outputs[0]
                yield lambda: np.asarray(scheduler.run(graph, inputs, pins)[last])
        finally:
            for device in opened:
                device.close()

    return runner
