"""Measures the rates of one device, over the contract and nothing else."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ggsched.backend.protocols import Program, Stream
from ggsched.errors import GgschedError
from ggsched.ir.dtype import F32, FLOAT_DTYPES, DType
from ggsched.ir.graph import Graph
from ggsched.ops.record import ELEMENTS
from ggsched.passes.cost.work_size import node_work
from ggsched.topology.caps import DeviceFacts, op_key
from ggsched.topology.cost import KernelRate, Rates, Work, rates_of
from ggsched_calibrate.samples import Samples, samples
from ggsched_calibrate.timing import NOT_TRUSTED, Allowance, Disturbed
from ggsched_calibrate.workload import (
    TIMEOUT_S,
    Bench,
    activations,
    chain,
    launches,
    products,
    repeated,
    sums,
)

Note = Callable[[str], None]
"""Called with what is being measured."""

NO_TIME: Final = "no time was left"
"""Why a rate was not measured."""
_FIRST: Final = ("nodes", "mul_mat:f32")
"""What all predictions of a device begin with."""
_LINKS: Final = 16
_MEASUREMENTS: Final = 6
"""For each sort of rate, what is not timed (filling memory, compiling) counted as timed."""
_WEIGHTS: Final = 4
_SLOW_ENOUGH_S: Final = 4e-4
"""A product that takes as long as this is not about what a launch costs."""
_SAMPLED_S: Final = 5e-5
_MANY: Final = 8
"""How many times longer than a launch and a node a sample takes, unless it is large then."""
_LARGEST_SCALE: Final = 64
_LARGEST_NBYTES: Final = 256 << 20
_LEAST_GAIN: Final = 0.75
"""Share of the ideal from which on streams count as running beside each other."""


@dataclass(slots=True)
class _Work:
    """What the measurements of a device share."""

    bench: Bench
    facts: DeviceFacts
    streams: list[Stream]
    allowance: Allowance
    left: int
    note: Note
    rates: Rates
    kernels: dict[str, KernelRate] = field(default_factory=dict)

    def time(self, what: str, repeat: Callable[[int], None]) -> float:
        self.note(what)
        left, self.left = self.left, max(1, self.left - 1)
        return max(self.allowance.time(repeat, left), 1e-9)


def measure_rates(
    bench: Bench,
    streams: list[Stream],
    allowance: Allowance,
    note: Note,
    older: Rates | None = None,
    wanted: tuple[Samples, Samples] | None = None,
) -> tuple[Rates | None, list[str]]:
    """Return the rates of a device, and what could not be measured.

    What cannot be measured (an op that the device lacks, too little memory, an allowance that is
    spent, a disturbance) stays as it was, or a guess by kind of device. Without anything older, a
    device of which what all predictions begin with cannot be trusted has no rates.

    Args:
        bench: The device.
        streams: One stream of it, or two.
        allowance: How long that may take.
        note: Called with what is measured next.
        older: What was measured of it before.
        wanted: What ``samples`` returns for it, which takes a while.
    """
    facts = bench.device.facts
    dtypes = [d for d in FLOAT_DTYPES if op_key("mul_mat", d.name) in facts.ops]
    kinds = [(f"mul_mat:{d.name}", _product_of(d)) for d in dtypes]  # f32 is the first
    families, others = wanted or samples(facts)
    steps: list[tuple[str, Callable[[_Work], None]]] = [
        ("nodes", _nodes),
        ("elements", _elements),
        ("events", _events),
        *kinds[:1],
        ("streams", _shared),
        *((name, _sampled(name, makers)) for name, makers in families.items()),
        *kinds[1:],
        *((n, _sampled(n, made)) for n, made in others.items() if made not in families.values()),
    ]
    known = {kernel.name: kernel for kernel in older.kernels} if older is not None else {}
    work = _Work(bench, facts, streams, allowance, 1, note, older or rates_of(facts), known)
    missing, doubts = list[str](), dict[str, str]()
    for number, (what, step) in enumerate(steps):
        work.left = _MEASUREMENTS * (len(steps) - number)
        if allowance.is_spent:
            if what not in doubts:
                missing.append(f"{what}: {NO_TIME}")
            continue
        try:
            step(work)
            doubts.pop(what, None)
        except GgschedError as error:
            missing.append(f"{what}: {error.one_line()}")
        except Disturbed as error:
            if what not in doubts:
                steps.append((what, step))  # once more, at the end
            doubts[what] = f"{what}: {NOT_TRUSTED}, {error}"
    is_unknown = older is None and any(what in doubts for what in _FIRST)
    missing += doubts.values()
    kernels = tuple(work.kernels[name] for name in sorted(work.kernels))
    return None if is_unknown else replace(work.rates, kernels=kernels), missing


def measure_product(bench: Bench, stream: Stream, dtype: DType, allowance: Allowance) -> KernelRate:
    """Return the rate of products with weights of one type, measured quickly.

    Args:
        bench: The device.
        dtype: Of the weights.
        allowance: How long that may take, about.

    Raises:
        GgschedError: the device has no such product, or it failed.
    """
    facts = bench.device.facts
    work = _Work(bench, facts, [stream], allowance, 2, lambda what: None, rates_of(facts))
    _product_of(dtype)(work)
    return work.kernels[op_key("mul_mat", dtype.name)]


def _timed(work: _Work, what: str, graph: Graph) -> float:
    """Return the seconds of one launch of a graph."""
    stream = work.streams[0]
    with work.bench.program(graph, stream) as program, launches(stream, program) as repeat:
        return work.time(what, repeat)


def _nodes(work: _Work) -> None:
    has_all = {op_key(op, "f32") for op in ("add", "mul_mat", "rms_norm")} <= work.facts.ops
    few, most = (chain(1), chain(_LINKS)) if has_all else (sums(1, 4), sums(3 * _LINKS, 4))
    one = _timed(work, "a launch", few)
    many = _timed(work, "a node", most)
    node_s = max((many - one) / (len(most.nodes) - len(few.nodes)), 1e-8)
    work.rates = replace(
        work.rates, node_s=node_s, launch_s=max(0.0, one - len(few.nodes) * node_s)
    )


def _elements(work: _Work) -> None:
    fixed = work.rates.launch_s + work.rates.node_s
    size = 1 << 18
    seconds = _timed(work, "sums of vectors", sums(1, size))
    while seconds < _SLOW_ENOUGH_S and 12 * size < _room(work.facts):
        size *= 4
        seconds = _timed(work, "sums of vectors", sums(1, size))
    bandwidth = 12 * size / max(seconds - fixed, seconds / 4)
    small = 1 << 14  # in the caches
    seconds = _timed(work, "functions", activations(small))
    flops = 2 * small / max(seconds - fixed, seconds / 4)
    work.kernels[ELEMENTS] = KernelRate(ELEMENTS, max(flops, 2 * bandwidth / 12), bandwidth)


def _sampled(name: str, makers: Sequence[Callable[[int], Graph]]) -> Callable[[_Work], None]:
    """Return the measurement of one sort of node: what limits it, and its steps if it has any."""

    def measure(work: _Work) -> None:
        took, does = _sample(work, name, makers[0])
        step_s = 0.0
        if len(makers) > 1:
            short_s, many = _sample(work, name, makers[1])
            step_s = min(short_s / many.steps, 0.9 * took / does.steps)
            took -= does.steps * step_s
        flops = does.flops / took or work.rates.flops
        op, variant = does.op, name.partition(":")[1:]
        for key in {name, "".join((op, *variant))}:
            work.kernels[key] = KernelRate(key, flops, does.nbytes / took, step_s)

    return measure


def _sample(work: _Work, name: str, make: Callable[[int], Graph]) -> tuple[float, Work]:
    """Return the seconds of a node beyond those of a launch, and what it does."""
    fixed = work.rates.launch_s + work.rates.node_s
    scale, graph = 1, make(1)
    seconds = _timed(work, name, graph)
    while seconds < _MANY * fixed + _SAMPLED_S and scale < _LARGEST_SCALE:
        scale, graph = 8 * scale, make(8 * scale)
        seconds = _timed(work, name, graph)
    return max(seconds - fixed, seconds / 4), node_work(graph, graph.nodes[0])


def _product_of(dtype: DType) -> Callable[[_Work], None]:
    """Return the measurement of the products with weights of a type."""

    def measure(work: _Work) -> None:
        name = op_key("mul_mat", dtype.name)
        rows, width = _streamed_shape(work, dtype)
        nbytes = rows * dtype.row_nbytes(width)
        graph = products(_WEIGHTS, rows, width, 1, dtype)
        seconds = _timed(work, f"{name}, one column", graph) / _WEIGHTS
        fixed = work.rates.node_s + work.rates.launch_s / _WEIGHTS
        bandwidth = nbytes / max(seconds - fixed, seconds / 4)
        flops = _flops(work, dtype, name)
        work.kernels[name] = KernelRate(name, flops, bandwidth)
        if name == "mul_mat:f32":
            work.rates = replace(
                work.rates,
                flops=flops,
                bandwidth=bandwidth,
                total_bandwidth=bandwidth,
                parallel=1,
            )
        elif bandwidth > work.rates.total_bandwidth:  # what one stream reaches, all do
            work.rates = replace(work.rates, total_bandwidth=bandwidth)

    return measure


def _streamed_shape(work: _Work, dtype: DType) -> tuple[int, int]:
    """Return rows and width of weights that several of do not stay in caches, as far as can be.

    The allowance does not matter here: compiling may have spent it, and weights that stay in caches
    or take as long as a launch say nothing of the memory. Few products are tried, and slow ones end
    it.
    """
    rows, width = 512, 1024
    while True:
        nbytes = rows * dtype.row_nbytes(width)
        if 4 * _WEIGHTS * nbytes > _room(work.facts):
            return rows, width
        stream = work.streams[0]
        graph = products(_WEIGHTS, rows, width, 1, dtype)
        with work.bench.program(graph, stream) as program, launches(stream, program) as repeat:
            seconds = _roughly(repeat) / _WEIGHTS
        if seconds > _SLOW_ENOUGH_S and nbytes >= 4 << 20:
            return rows, width
        if seconds > 20 * _SLOW_ENOUGH_S:
            return rows, width
        rows, width = 2 * rows, 2 * width


def _roughly(repeat: Callable[[int], None]) -> float:
    """Return about how long something takes."""
    repeat(1)
    began = time.perf_counter()
    repeat(1)
    return time.perf_counter() - began


def _flops(work: _Work, dtype: DType, name: str) -> float:
    """Return the operations per second of a product with many columns."""
    rows, width, columns = 512, 1024, 64
    graph = products(1, rows, width, columns, dtype)
    seconds = _timed(work, f"{name}, many columns", graph)
    while seconds < _SLOW_ENOUGH_S and columns < 4096:
        rows, width, columns = 2 * rows, 2 * width, 2 * columns
        seconds = _timed(work, f"{name}, many columns", products(1, rows, width, columns, dtype))
    fixed = work.rates.launch_s + work.rates.node_s
    return 2.0 * rows * width * columns / max(seconds - fixed, seconds / 4)


def _events(work: _Work) -> None:
    """Measure a hop from stream to stream and back, or over the host where there are no events."""
    graph = sums(1, 4)
    streams = work.streams
    own_s = work.rates.launch_s + work.rates.node_s
    if not work.facts.has_events or len(streams) < 2:
        with work.bench.program(graph, streams[0]) as program:

            def there(count: int) -> None:
                for _ in range(count):
                    streams[0].launch(program)
                    streams[0].sync(TIMEOUT_S)

            seconds = work.time("a sync of the host", there)
    else:
        with (
            work.bench.program(graph, streams[0]) as first,
            work.bench.program(graph, streams[1]) as second,
        ):
            programs = (first, second)
            seconds = work.time("an event", lambda count: _ping_pong(streams, programs, count)) / 2
    work.rates = replace(work.rates, event_s=max(seconds - own_s, 1e-7))


def _ping_pong(streams: list[Stream], programs: tuple[Program, Program], count: int) -> None:
    events = []
    for i in range(2 * count):
        here, there = streams[i % 2], streams[1 - i % 2]
        here.launch(programs[i % 2])
        event = here.device.create_event()
        here.record(event)
        there.wait(event)
        events.append(event)
    for stream in streams:
        stream.sync(TIMEOUT_S)
    for event in events:
        event.close()


def _shared(work: _Work) -> None:
    """Measure what two streams reach together, of memory and of arithmetic."""
    f32 = work.kernels.get("mul_mat:f32")
    if f32 is None or len(work.streams) < 2:
        return
    rows, width = 2048, 2048
    one, two = _alone_and_together(work, "memory", products(_WEIGHTS, rows, width, 1, F32))
    gain = min(2.0, max(1.0, 2 * one / two))
    work.rates = replace(work.rates, total_bandwidth=gain * f32.bandwidth)
    one, two = _alone_and_together(work, "arithmetic", products(1, 512, 1024, 64, F32))
    if 2 * one / two >= 2 * _LEAST_GAIN:
        work.rates = replace(work.rates, parallel=2)


def _alone_and_together(work: _Work, what: str, graph: Graph) -> tuple[float, float]:
    """Return the seconds of a launch on one stream, and of one on each of two streams."""
    a, b = work.streams[:2]
    with work.bench.program(graph, a) as first, work.bench.program(graph, b) as second:

        def both(count: int) -> None:
            for _ in range(count):
                a.launch(first)
                b.launch(second)
            a.sync(TIMEOUT_S)
            b.sync(TIMEOUT_S)

        with repeated(a, lambda: a.launch(first), may_capture=False) as repeat:
            alone = work.time(f"{what} of one stream", repeat)
        return alone, work.time(f"{what} of two streams", both)


def _room(facts: DeviceFacts) -> int:
    """Return the bytes that a measurement may take at most."""
    return min(_LARGEST_NBYTES, facts.memory_nbytes // 16, facts.max_allocation_nbytes)
