"""Measures what it costs to move bytes: latency and bandwidth of each way."""

from collections.abc import Callable, Sequence
from typing import Final

from ggsched.backend.page_lock import lock_pages
from ggsched.backend.protocols import Stream
from ggsched.topology.cost import Link
from ggsched_calibrate.timing import Allowance
from ggsched_calibrate.workload import TIMEOUT_S, repeated

SIZES: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 22)

TOGETHER: Final = 8
"""Copies of a repetition: a run has several transfers, and one graph holds them."""

Sample = tuple[int, float]
"""Bytes of a copy, and its seconds."""


def measure_upload(stream: Stream, allowance: Allowance, left: int) -> tuple[Link, list[Sample]]:
    """Return the link from host memory to a device, and what was measured."""
    device = stream.device

    def make(nbytes: int) -> tuple[Callable[[], None], list[Callable[[], None]]]:
        source, buffer = device.allocate_host(nbytes), device.allocate(nbytes)
        memory = source.toreadonly()
        return lambda: stream.upload(memory, buffer, 0), [buffer.close]

    return _measure(stream, make, allowance, left, not device.facts.snapshots_uploads)


def measure_download(stream: Stream, allowance: Allowance, left: int) -> tuple[Link, list[Sample]]:
    """Return the link from a device to host memory, and what was measured."""
    device = stream.device

    def make(nbytes: int) -> tuple[Callable[[], None], list[Callable[[], None]]]:
        target, buffer = device.allocate_host(nbytes), device.allocate(nbytes)
        return lambda: stream.download(buffer, 0, target), [buffer.close]

    return _measure(stream, make, allowance, left)


def measure_copy(
    stream: Stream, src: Stream, dst: Stream, allowance: Allowance, left: int
) -> tuple[Link, list[Sample]]:
    """Return the link between two devices, and what was measured.

    Args:
        stream: Whose stream makes the copy.
        src: A stream of the device that holds the bytes.
        dst: A stream of the device that gets them.
        allowance: How long that may take.
        left: Links that are still to be measured.
    """

    def make(nbytes: int) -> tuple[Callable[[], None], list[Callable[[], None]]]:
        a, b = src.device.allocate(nbytes), dst.device.allocate(nbytes)
        # As the memory that plans copy from and to, see ``ggsched.backend.page_lock``.
        on_host = [x for x in (a, b) if x.device.facts.is_host and x.device is not stream.device]
        locks = [lock for x in on_host if (lock := lock_pages(stream.device, x.host_view()))]
        release = [*(lock.close for lock in locks), a.close, b.close]
        return lambda: stream.copy(a, 0, b, 0, nbytes), release

    return _measure(stream, make, allowance, left, may_capture=False)


def fit_link(samples: Sequence[Sample]) -> Link:
    """Return latency and bandwidth that go through samples of several sizes.

    Least squares of the *relative* errors: a plain fit would see the largest copies only.

    Args:
        samples: Of at least one size; with one the latency is taken for nothing.
    """
    weighted = [(n, t, 1.0 / max(t, 1e-12) ** 2) for n, t in samples]
    total = sum(w for _, _, w in weighted)
    mean_n = sum(w * n for n, _, w in weighted) / total
    mean_t = sum(w * t for _, t, w in weighted) / total
    spread = sum(w * (n - mean_n) ** 2 for n, _, w in weighted)
    common = sum(w * (n - mean_n) * (t - mean_t) for n, t, w in weighted)
    largest, longest = max(samples)
    slope = common / spread if spread > 0 and common > 0 else longest / largest
    latency = max(mean_t - slope * mean_n, 0.0)
    return Link(latency, 1.0 / slope)


def _measure(
    stream: Stream,
    make: Callable[[int], tuple[Callable[[], None], list[Callable[[], None]]]],
    allowance: Allowance,
    left: int,
    may_capture: bool = True,
) -> tuple[Link, list[Sample]]:
    samples = []
    for number, nbytes in enumerate(SIZES):
        enqueue, release = make(nbytes)
        try:
            with repeated(stream, enqueue, TOGETHER, may_capture=may_capture) as repeat:
                seconds = allowance.time(repeat, left * len(SIZES) - number) / TOGETHER
            samples.append((nbytes, seconds))
        finally:
            stream.sync(TIMEOUT_S)
            for close in release:
                close()
    return fit_link(samples), samples
