"""Times of commands as the GPU reports them: decoding steps of a small model, traced, checked."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.ir.dtype import BF16
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Record, Run, Trace, Wait, Work
from ggsched_llm.batches import batch_inputs
from ggsched_llm.graph import build_model_graph
from tests.support.shapes import SMALL, random_weights, spec_of

RESOLUTION_S = 2e-6
"""Events of the driver are good for half a microsecond, and two of them make a time."""

MATCH_S = 2e-5
"""How far times of two clocks may be apart: of the host and a GPU, or of two GPUs."""

RUNS = 5
N_KV, N_CTX, POSITION = 256, 512, 128

CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "one stream": (("cuda:0",), 1),
    "three streams": (("cuda:0",), 3),
    "two logical devices": (("cuda:0/0", "cuda:0/1"), 1),
    "with the processor": (("cuda:0", "cpu:0"), 1),
    "two GPUs": (("cuda:0", "cuda:1"), 1),
}
"""Devices, which the nodes are shared among in their order, and streams of each."""


def run(*, quick: bool) -> dict[str, Any]:
    """Check the times of each case whose devices are there."""
    found: dict[str, Any] = {}
    ok = True
    for name, (devices, streams) in CASES.items():
        try:
            opened = open_devices(devices)
        except Exception as error:
            found[name] = f"not there: {error}"
            continue
        try:
            found[name] = result = measured(opened, streams)
        finally:
            for device in opened:
                device.close()
        ok = ok and not result["findings"]
        shown = {key: value for key, value in result.items() if key != "findings"}
        sys.stdout.write(f"   {name}: {'FAILED' if result['findings'] else 'ok'} {shown}\n")
        sys.stdout.writelines(f"      {finding}\n" for finding in result["findings"])
    there = [name for name, result in found.items() if isinstance(result, dict)]
    return {"ok": ok and bool(there), "runs": found}


def measured(devices: Any, streams: int) -> dict[str, Any]:
    """Return what is wrong with the times of some steps, and what it costs to take them.

    Args:
        devices: They share the nodes of a step in their order.
        streams: Streams of each that are used wherever nodes are independent.
    """
    recorder = Recorder()
    outputs, timed_s = _steps(devices, streams, recorder)
    plain, plain_s = _steps(devices, streams, None)
    untimed, untimed_s = _steps(devices, streams, Recorder(times=False))
    trace = recorder.trace("decoding steps")
    findings = [*findings_of(trace), *_differing(outputs, plain), *_differing(outputs, untimed)]
    pieces = [w for w in _work_of_streams(trace) if w.start_s is not None]
    last = trace.runs[-1]
    return {
        "pieces": len(pieces),
        "streams": sum(bool(actor.device) for actor in trace.actors),
        "ordered_pairs": len(list(_pairs(trace))),
        "busy_us": {
            trace.actors[actor].name: round(1e6 * sum(w.end_s - w.start_s for w in works), 1)
            for actor, works in _by_stream(trace, last).items()
        },
        "step_us": round(1e6 * plain_s, 1),
        "step_us_traced_without_times": round(1e6 * untimed_s, 1),
        "step_us_traced": round(1e6 * timed_s, 1),
        "findings": findings,
    }


def _steps(devices: Any, streams: int, recorder: Recorder | None) -> tuple[np.ndarray, float]:
    """Run some steps without captures; return the last outputs, and the least seconds of one."""
    spec = spec_of(SMALL, BF16)
    graph = build_model_graph(spec, n_tokens=1, n_kv=N_KV, n_out=1, n_ctx=N_CTX)
    inputs = batch_inputs(graph, np.zeros(1, np.int32), POSITION, 1, spec.hparams.window)
    share = -(-len(graph.nodes) // len(devices))
    pins = Constraints(pins={node.id: i // share for i, node in enumerate(graph.nodes)})
    settings = Settings.from_environment(capture=False, streams=streams)
    weights = random_weights(spec)
    best = float("inf")
    with Scheduler(devices, weights=weights, settings=settings, recorder=recorder) as scheduler:
        for _ in range(RUNS):
            began = perf_counter()
            outputs = scheduler.run(graph, inputs, pins)
            best = min(best, perf_counter() - began)
        return np.array(outputs[graph.outputs[0]]), best


def _differing(one: np.ndarray, two: np.ndarray) -> list[str]:
    return [] if np.array_equal(one, two) else ["outputs differ from those of an untraced run"]


# --- what has to hold -------------------------------------------------------------------------


def findings_of(trace: Trace) -> list[str]:
    """Return what is wrong with the times of a trace, in words; none if all is well."""
    return [*_of_pieces(trace), *_of_streams(trace), *_of_pairs(trace), *_of_runs(trace)]


def _of_pieces(trace: Trace) -> Iterator[str]:
    """Each piece of work has times, and lies behind the call that enqueued it."""
    works = _work_of_streams(trace)
    if not works:
        yield "no device has done anything"
    for work in works:
        if work.issued_s is None or work.start_s is None or work.end_s is None:
            yield f"{_name(trace, work)} has no times"
        elif work.start_s > work.end_s:
            yield f"{_name(trace, work)} begins {_us(work.start_s - work.end_s)} behind its end"
        elif work.start_s < work.issued_s - MATCH_S:
            early = work.issued_s - work.start_s
            yield f"{_name(trace, work)} begins {_us(early)} before it was enqueued"


def _of_streams(trace: Trace) -> Iterator[str]:
    """A stream does one thing after the other."""
    for works in _by_stream(trace).values():
        for one, two in pairwise(works):
            if two.start_s < one.end_s - RESOLUTION_S:
                late = _us(one.end_s - two.start_s)
                yield f"{_name(trace, two)} begins {late} before the end of {one.label}"


def _of_pairs(trace: Trace) -> Iterator[str]:
    """Work behind a wait begins when the work that it waits for has ended."""
    for one, two, bound in _pairs(trace):
        if two.start_s < one.end_s - bound:
            late = _us(one.end_s - two.start_s)
            yield f"{_name(trace, two)} begins {late} before the end of {_name(trace, one)}"


def _of_runs(trace: Trace) -> Iterator[str]:
    """In a run a stream does something, no more than fits in, and all of it before the end."""
    for number, run in enumerate(trace.runs):
        spent: dict[int, float] = {}
        for actor, works in _by_stream(trace, run).items():
            spent[actor] = sum(work.end_s - work.start_s for work in works)
            name, wall = trace.actors[actor].name, run.end_s - run.start_s
            if spent[actor] > wall:
                yield f"run {number}: {name} is busy for {_us(spent[actor])} of {_us(wall)}"
            late = max(work.end_s for work in works) - run.end_s
            if late > MATCH_S:
                yield f"run {number}: {name} ends {_us(late)} after the host has the outputs"
        if not sum(spent.values()) > 0:
            yield f"run {number}: nothing took any time"


def _pairs(trace: Trace) -> Iterator[tuple[Any, Any, float]]:
    """Yield pieces of work that an event keeps in order, and how exactly their times compare.

    The first is the last one before the record, the second the first one behind the wait.
    """
    last: dict[int, Work] = {}
    stands_for: dict[int, Work] = {}
    waiting: dict[int, list[Work]] = defaultdict(list)
    for entry in trace.entries:
        if isinstance(entry, Record) and entry.actor in last:
            stands_for[entry.event] = last[entry.actor]
        elif isinstance(entry, Wait) and entry.event in stands_for:
            waiting[entry.actor].append(stands_for[entry.event])
        elif isinstance(entry, Work) and trace.actors[entry.actor].device:
            last[entry.actor] = entry
            for earlier in waiting.pop(entry.actor, []):
                if None not in (earlier.end_s, entry.start_s):
                    clocks = {_clock(trace, work) for work in (earlier, entry)}
                    yield earlier, entry, RESOLUTION_S if len(clocks) == 1 else MATCH_S


def _clock(trace: Trace, work: Work) -> str:
    """Return whose clock times are from: one for all logical devices of a GPU."""
    return trace.actors[work.actor].device.partition("/")[0]


def _work_of_streams(trace: Trace) -> list[Work]:
    return [e for e in trace.entries if isinstance(e, Work) and trace.actors[e.actor].device]


def _by_stream(trace: Trace, run: Run | None = None) -> dict[int, list[Any]]:
    """Return the pieces of work that have times by stream, all or those of a run."""
    entries = trace.entries if run is None else trace.entries[run.first : run.end]
    found: dict[int, list[Work]] = defaultdict(list)
    for entry in entries:
        is_timed = isinstance(entry, Work) and None not in (entry.start_s, entry.end_s)
        if is_timed and trace.actors[entry.actor].device:
            found[entry.actor].append(entry)
    return found


def _name(trace: Trace, work: Work) -> str:
    return f"{trace.actors[work.actor].name} {work.label}"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.2f} us"
