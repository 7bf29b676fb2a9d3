"""Times of work on the GPU, by events of the driver."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from ggsched_cuda import driver
from ggsched_cuda.capture import driver as capturing

REPEATS = 5
ROUNDS = 9


class Timer:
    """Measures what is enqueued on a stream.

    Args:
        device: The device.
        stream: The stream.
    """

    def __init__(self, device: Any, stream: Any) -> None:
        device.gpu.enter()
        self._stream = stream
        self._from, self._to = driver.make_timed_event(), driver.make_timed_event()

    def seconds(self, work: Callable[[], object]) -> float:
        """Return how long the GPU takes for what a call enqueues."""
        handle = self._stream.handle
        driver.record_event(self._from, handle)
        work()
        driver.record_event(self._to, handle)
        # Not by the stream's sync: a kernel that runs out of its place may find other ids.
        while driver.query_event(self._to)[0] == driver.NOT_READY:
            pass
        return driver.seconds_between(self._from, self._to)

    def replayed(
        self,
        enqueue: Callable[[], object],
        choose: Callable[[list[float]], float] = lambda took: median(took[2:]),
    ) -> float:
        """Return the seconds of a captured graph of what a call enqueues, the median or another."""
        handle = self._stream.handle
        capturing.begin_capture(handle)
        enqueue()
        graph, _ = capturing.make_executable(capturing.end_capture(handle))
        took = [self.seconds(lambda: driver.launch_graph(graph, handle)) for _ in range(ROUNDS)]
        capturing.close_executable(graph)
        return choose(took)


def _key(call: Any, arguments: tuple[Any, ...], label: str) -> tuple[Any, ...]:
    """Return the kind of a call: kernel, grid and lanes, or the node of a product."""
    if not arguments:
        return (type(call).__name__, label)
    if len(arguments) > 4:
        return arguments[:5]
    config, function = arguments[:2]
    return (function, config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX)


def program_times(programs: Iterable[Any]) -> dict[str, str]:
    """Return the time of each kind of call in programs, the slowest first.

    Each call runs alone, ``REPEATS`` times in a row; calls are distinguished by function and grid.
    """
    total: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    names: dict[tuple[Any, ...], str] = {}
    for program in programs:
        timer = Timer(program.stream.device, program.stream)
        known: dict[tuple[Any, ...], float] = {}
        for (call, arguments), label in zip(program.steps, program.labels, strict=True):
            key = _key(call, arguments, label)
            if key not in known:

                def work(call: Any = call, arguments: Any = arguments) -> None:
                    for _ in range(REPEATS):
                        call(*arguments)

                work()
                known[key] = timer.seconds(work) / REPEATS
                names[key] = f"{label.split(' ', 1)[1]} grid {key[1:]}"
            total[key][0] += known[key]
            total[key][1] += 1
    ranked = sorted(total.items(), key=lambda item: -item[1][0])
    return {
        names[key]: f"{count:.0f} x {1e6 * seconds / count:.2f} us = {1e6 * seconds:.1f} us"
        for key, (seconds, count) in ranked
    }
