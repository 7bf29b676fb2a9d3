"""What ``ggsched race`` adds to an op on the host, without a GPU.

Tensors of the host count as those of a device, and each result as a new block of its allocator.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.table import Row

STEPS, ROUNDS, DEPTH = 40, 40, 12


def run() -> list[Row]:
    """Measure; the least of the rounds counts, since other work only adds to it."""
    try:
        import torch
    except ImportError:
        return []
    from ggsched_race.pytorch import DispatchMode, Recorder
    from ggsched_race.recording import Recording

    torch.set_num_threads(1)
    platform = HostAsDevice()
    recorder = Recorder(Recording(Nowhere(), "ops"), platform, rows=False)  # type: ignore[arg-type]
    platform.allocated = recorder.allocated
    ops = 0

    def plainly(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        nonlocal ops
        ops += 1
        return func(*args, **kwargs)

    with DispatchMode(recorder.op):
        step = decode_step()
        recorded, calls = _least(step), _calls(step)
    with DispatchMode(plainly):
        plain, calls = _least(step), calls - _calls(step)
        ops = 0
        step()
    cost = 1e6 * (recorded - plain) / ops
    return [
        Row("race_recorder", "time that an op of a decode step takes more", cost, cost, cost, "us"),
        Row("race_recorder", "calls that it takes more", *[calls / ops] * 3, "calls"),
    ]


class HostAsDevice:
    """A platform whose device is the host."""

    def __init__(self) -> None:
        self.allocated: Callable[[int], None]

    def device_of(self, tensor: Any) -> int:
        """Return the device, of any tensor."""
        del tensor
        return 0

    def address(self, storage: Any) -> int:
        """Return the address of a block."""
        return int(storage.data_ptr())

    def stream(self, device: int | None) -> tuple[int, int]:
        """Return the one stream."""
        del device
        return 0, 16

    def before_op(self) -> None:
        """Do nothing."""

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an op; its result is in a block that was given for it."""
        result = func(*args, **kwargs)
        returns = func._schema.returns
        if len(returns) == 1 and returns[0].alias_info is None:
            self.allocated(result.data_ptr())
        return result


class Nowhere:
    """A file that keeps nothing."""

    def write(self, data: bytes) -> int:
        """Return how much there was."""
        return len(data)


def decode_step() -> Callable[[], None]:
    """Return a step with rows of a cache, products, sums, views and a list of tensors."""
    import torch

    cache, q, slots = torch.zeros(64, 8, 64), torch.randn(8, 8, 64), torch.arange(8)
    weights, gradients = ([torch.randn(8, 8) for _ in range(12)] for _ in range(2))

    def step(depth: int = DEPTH) -> None:
        if depth:  # below that many calls, as in a module of modules
            step(depth - 1)
            return
        cache[slots] = q
        scores = (q * cache.index_select(0, slots)).sum(-1)
        torch.softmax(scores, -1).argmax(-1)
        q.view(64, 64)[:8].add_(1)
        q.transpose(0, 1) + 1
        torch._foreach_add_(weights, gradients)

    return step


def _least(step: Callable[[], None]) -> float:
    """Return the seconds of the CPU that a step takes."""
    took = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(STEPS):
            step()
        took.append((time.process_time() - start) / STEPS)
    return min(took)


def _calls(step: Callable[[], None]) -> int:
    """Return how many functions of Python a step calls, from where it has been called before."""
    count = 0

    def called(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    for _ in range(2):
        count = 0
        step()
    sys.setprofile(None)
    return count
