"""Where the time of shared layers goes: ``python -m benchmarks.gpu.tensor_parts``.

A llama of 8B in bf16 with random weights, on one GPU and in shares on two. Of prompts: the seconds
of each micro-batch, and of one micro-batch the host's and the GPUs' time of a replay, the same
without edges between the GPUs (wrong, the least that can be), and two micro-batches at once. Of a
micro-batch and of a decoding step: the time of each kind of kernel on each GPU, run by itself in
the order of the plan, without waits between the GPUs. Then prompts with two micro-batches at once
(``--pipeline on``), and sums of as many rows in a chain.

A table goes to stderr, one line of JSON to stdout. The exit code is 1 where logits differ.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final
from unittest.mock import patch

from benchmarks.gpu.peer_edges import Steps, without_edges
from benchmarks.gpu.prefill import _kind
from benchmarks.gpu.tensor import CLOSE, MODELS, Sides, exchange, timed_prompt
from ggsched.models.session import Session
from ggsched.plan.command import Launch
from ggsched_cuda import driver, program
from ggsched_cuda.harness import KernelLatch
from ggsched_cuda.rendezvous import CaptureRendezvous

STRETCH: Final = 100
"""Launches that are enqueued while the stream is held."""

IN_FLIGHT: Final = 8
"""Replays of two micro-batches in turns."""

Calls = Mapping[tuple[str, ...], Sequence[Any]]


@contextmanager
def lowered_calls() -> Iterator[Calls]:
    """Yield the calls of each program that is compiled meanwhile, by their labels."""
    found: dict[tuple[str, ...], Sequence[Any]] = {}
    lower = program.lower

    def noting(nodes: Any, profile: Any) -> Any:
        calls, memory = lower(nodes, profile)
        found[tuple(call.label for call in calls)] = calls
        return calls, memory

    with patch.object(program, "lower", noting):
        yield found


def kernel_times(executor: Any, calls_of: Calls, device: int) -> dict[str, tuple[int, float]]:
    """Return how often each kind of call runs on a device, and its microseconds in all.

    The calls of all launches run in the order of the plan, each behind an event, and wait for
    nothing of another device.
    """
    plan = executor.plan
    marks: list[tuple[str, int, int]] = []
    for c in plan.commands:
        if isinstance(c, Launch) and plan.streams.streams[c.stream].device == device:
            p = executor._resources.programs[c.id]
            _run_marked(p, calls_of[tuple(p.labels)], marks)
    total: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for kind, earlier, later in marks:
        count, us = total[kind]
        total[kind] = count + 1, us + 1e6 * driver.seconds_between(earlier, later)
    return dict(sorted(total.items(), key=lambda item: -item[1][1]))


def _run_marked(p: Any, calls: Sequence[Any], marks: list[tuple[str, int, int]]) -> None:
    handle, pairs = p.stream.handle, list(zip(calls, p.steps, strict=True))
    p.stream.gpu.enter()
    for at in range(0, len(pairs), STRETCH):
        latch = KernelLatch(p.stream)
        earlier = driver.make_timed_event()
        driver.record_event(earlier, handle)
        for call, (launch, arguments) in pairs[at : at + STRETCH]:
            launch(*arguments)
            later = driver.make_timed_event()
            driver.record_event(later, handle)
            marks.append((_kind(call), earlier, later))
            earlier = later
        latch.release()
        while driver.query_event(earlier)[0] == driver.NOT_READY:
            pass


def in_flight(executors: Sequence[Any]) -> dict[str, float]:
    """Return the seconds of a micro-batch, one after another and two at once; results are wrong.

    Args:
        executors: Of two micro-batches that have been captured.
    """
    replays = [next(iter(e.captured._parts)) for e in executors]
    origin = replays[0]._origin
    graphs = [r._graph._executable for r in replays]
    origin.gpu.enter()
    handles = [origin.handle, driver.make_stream()]
    events = [driver.make_timed_event() for _ in handles]
    found = {}
    for ways in (1, 2, 1, 2):
        began = perf_counter()
        for k in range(IN_FLIGHT):
            driver.check(driver.launch_graph(graphs[k % 2], handles[k % ways]), "cuGraphLaunch")
        for handle, event in zip(handles, events, strict=True):
            driver.record_event(event, handle)
        for event in events:
            while driver.query_event(event)[0] == driver.NOT_READY:
                pass
        found[f"{ways}_s"] = (perf_counter() - began) / IN_FLIGHT
    return found


def parts_of(
    sides: Sides, side: str, prompts: Sequence[int], ubatch: int, rounds: int
) -> dict[str, Any]:
    """Return where the time of one side goes."""
    found: dict[str, Any] = {"prompts": {}}
    with lowered_calls() as calls, sides.session(side, 64) as session:
        for count in prompts:
            found["prompts"][count] = _prompt(session, sides.tokens[:count], rounds)
        session.reset()
        logits = session.feed(sides.tokens[:8])
        for token in sides.tokens[8:24]:
            began = perf_counter()
            session.feed([token])
            found["step_s"] = min(found.get("step_s", 1.0), perf_counter() - began)
        found["difference"] = sides.difference(logits)
        rows = min(4 * ubatch, max(prompts))

        def executor(n_tokens: int, n_past: int) -> Any:
            graph = session.graph(n_tokens, n_past, 1)
            return session.scheduler._executor(graph, session.constraints)

        some = [executor(ubatch, ubatch), executor(ubatch, rows - ubatch)]
        found["replay"] = Steps(some[1]).seconds(12)
        found["step"] = Steps(executor(1, session.n_past - 1)).seconds(24)
        n_devices = len(session.scheduler.topology.devices)
        if n_devices > 1:
            with without_edges(early=False):
                found["replay without edges"] = _again(some[1]).seconds(12)
        with patch.object(CaptureRendezvous, "offer", lambda *_: False):
            for one in some:
                _again(one).seconds(2)
            found["in flight"] = in_flight(some)
        step = executor(1, session.n_past - 1)
        for d in range(n_devices):
            found[f"kernels {d}"] = kernel_times(some[1], calls, d)
            found[f"kernels of a step {d}"] = kernel_times(step, calls, d)
    return found


def pairs_of(sides: Sides, prompts: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return what prompts take with two micro-batches at once on all devices."""
    found: dict[str, Any] = {"prompts": {}}
    with sides.session("tensor", 64, pipelining="on") as session:
        for count in prompts:
            found["prompts"][count] = _prompt(session, sides.tokens[:count], rounds)
        session.reset()
        found["difference"] = sides.difference(session.feed(sides.tokens[:8]))
    return found


def _again(executor: Any) -> Steps:
    """Return the steps of an executor that captures once more."""
    executor.captured.close()
    return Steps(executor)


def _prompt(session: Session, tokens: list[int], rounds: int) -> dict[str, Any]:
    """Return the seconds of prompts, the first ones apart, and of the last one's micro-batches."""
    runner: Any = session.batches
    run, parts = runner._run, []

    def timed(*args: Any) -> Any:
        began = perf_counter()
        logits = run(*args)
        parts.append(1e3 * (perf_counter() - began))
        return logits

    with patch.object(runner, "_run", timed):
        seconds = []
        for _ in range(2 + rounds):
            parts.clear()
            seconds.append(timed_prompt(session, tokens)[1])
    return {
        "first_s": seconds[:2],
        "prompt_s": min(seconds[2:]),
        "all_s": seconds[2:],
        "parts_ms": list(parts),
    }


def write(found: Mapping[str, Any], out: Callable[[str], object]) -> None:
    """Write the findings for people."""
    one, two, pairs = found["one"], found["tensor"], found["pairs"]
    for count, figures in two["prompts"].items():
        alone = one["prompts"][count]
        rates = [count / alone["prompt_s"], count / figures["prompt_s"]]
        second = alone["first_s"][1] / figures["first_s"][1]
        out(
            f"prompt of {count}: {rates[0]:,.0f}, {rates[1]:,.0f} t/s, {rates[1] / rates[0]:.2f};"
            f" the second prompt {second:.2f}\n"
        )
        at_once = alone["prompt_s"] / pairs["prompts"][count]["prompt_s"]
        out(f"   two micro-batches at once {at_once:.2f}\n")
        for side in (one, two, pairs):
            took = side["prompts"][count]
            first, second = took["first_s"]
            best = 1e3 * took["prompt_s"]
            out(
                f"   first {1e3 * first:.0f} ms, second {1e3 * second:.0f}, best {best:.1f};"
                f" micro-batches {' '.join(f'{ms:.1f}' for ms in took['parts_ms'])}\n"
            )
    out(f"decoding {one['step_s'] / two['step_s']:.2f}\n")
    for name, side in (("one", one), ("tensor", two)):
        for what in ("replay", "replay without edges", "in flight", "step"):
            if what in side:
                spent = ", ".join(f"{k} {1e6 * s:.0f}" for k, s in side[what].items())
                out(f"{name} {what}, us: {spent}\n")
    for what in ("kernels", "kernels of a step"):
        for name, side, d in (("one", one, 0), ("tensor", two, 0), ("tensor", two, 1)):
            kernels = side[f"{what} {d}"]
            total = sum(us for _, us in kernels.values())
            out(f"{what}, {name}, GPU {d}: {total:.0f} us\n")
            for kind, (count, us) in list(kernels.items())[: 18 if d == 0 else 0]:
                out(f"   {kind}: {count} x {us / count:.1f} = {us:.0f}\n")
    for rows, figures in found["sums"].items():
        out(
            f"link of a chain with a sum of {rows} rows: {figures['link_us']:.2f} us,"
            f" on one GPU {figures['alone_us']:.2f} us\n"
        )


def main() -> int:
    """Measure; the exit code is 1 where logits differ."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.tensor_parts", description=__doc__
    )
    parser.add_argument("model", nargs="?", default="llama-8b", choices=sorted(MODELS))
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="the first is the one alone")
    parser.add_argument("-p", "--prompts", default="2048,8192", help="sizes of prompts")
    parser.add_argument("-ub", "--ubatch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    prompts = [int(count) for count in asked.prompts.split(",")]
    devices, began = asked.devices.split(","), perf_counter()
    spec = MODELS[asked.model][0]
    found: dict[str, Any] = {}

    def note(text: str) -> None:
        sys.stderr.write(f"{perf_counter() - began:6.1f} s: {text}\n")

    sides = Sides(spec, devices, max(prompts), asked.ubatch)
    for side in ("one", "tensor"):
        found[side] = parts_of(sides, side, prompts, asked.ubatch, asked.rounds)
        note(side)
    found["pairs"] = pairs_of(sides, prompts, asked.rounds)
    note("two micro-batches at once")
    width = spec.hparams.n_embd
    found["sums"] = {rows: exchange(devices, width, rows=rows) for rows in (1, asked.ubatch)}
    note("sums")
    write(found, sys.stderr.write)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if all(found[side]["difference"] < CLOSE for side in ("one", "tensor", "pairs")) else 1


if __name__ == "__main__":
    sys.exit(main())
