"""Two GPUs against one, by layers and by shares of each layer: ``python -m benchmarks.gpu.tensor``.

- the sum of a hidden state over both GPUs, in a chain of links that scale and add up;
- a llama of 8B in bf16: a prompt of 8192 tokens in micro-batches of 512 and decoding, on one GPU,
  ``-sm layer``, ``-sm tensor`` and ``-sm tensor --pipeline on`` (pairs) on both;
- gpt-oss 20B in mxfp4: the same without pairs.

Weights are random. A table goes to stderr, one line of JSON to stdout and to a file. No case begins
after the budget, so a machine that compiles kernels for the first time gives what it has. The exit
code is 1 where logits differ.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from benchmarks.gpu.running import model_of
from ggsched.backend.protocols import Device
from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, MXFP4
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Tensor
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.place import Constraints
from ggsched.plan.stats import plan_stats
from ggsched.scheduler import Scheduler
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.spec import ModelSpec
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B, LLAMA_8B, SMALL, random_weights, spec_of

Devices = Sequence[str] | Sequence[Device]

MODELS: Final = {
    "llama-8b": (spec_of(LLAMA_8B, BF16), ("one", "tensor", "pairs", "layer")),
    "gpt-oss-20b": (spec_of(GPT_OSS_20B, BF16, MXFP4), ("one", "tensor", "layer")),
    "llama-1b": (spec_of(LLAMA_1B, BF16), ("one", "tensor", "layer")),
    "small": (spec_of(replace(SMALL, n_layer=4), BF16), ("one", "tensor", "pairs", "layer")),
}
TARGETS: Final = {
    "link with a sum of 16 KiB, us": 8.0,
    "llama-8b tensor decode": 1.6,
    "llama-8b layer decode": 0.97,
    "llama-8b tensor prefill": 1.6,
    "llama-8b layer prefill": 1.8,
    "gpt-oss-20b tensor prefill": 1.8,
    "gpt-oss-20b tensor decode": 1.5,
    "gpt-oss-20b layer prefill": 1.7,
    "gpt-oss-20b layer decode": 0.97,
}
HIDDEN: Final = 4096
CHAINS: Final = (8, 136)
"""Lengths of chains of sums; a link takes the difference of their times, divided."""

PROMPT, UBATCH, PREDICT, ROUNDS, BUDGET_S = 8192, 512, 48, 3, 170.0
CLOSE: Final = 0.02
"""Logits of two ways differ by less than that share of the largest."""


# --- sums ---------------------------------------------------------------------------------


def exchange(
    devices: Devices, width: int = HIDDEN, *, rows: int = 1, peers: bool = True
) -> dict[str, Any]:
    """Return what a sum of f32 over devices takes, in a chain of them.

    In each link of the chain every device scales what it has, and adds up what all have. ``alone``
    is the same chain of one device, which adds up what it has made itself. A link is more than a
    sum, so it is what a target is held against: to take off what it does besides would be a
    difference of figures that are nearly the same.

    Args:
        devices: At least two.
        width: Elements of a row of the sum.
        rows: Rows of the sum.
        peers: Whether summands are read where they lie, if the devices can.
    """
    found: dict[str, Any] = {"nbytes": 4 * width * rows}
    for name, count in (("link", len(devices)), ("alone", 1)):
        with Scheduler(devices[:count], settings=Settings()) as scheduler:
            runs = []
            for length in CHAINS:
                graph, pins = _chain(len(devices), count, length, (rows, width))
                wanted = Constraints(pins=pins, reads_peers=peers)
                x = {"x": np.full((rows, width), 1e-3, np.float32)}
                runs.append(partial(scheduler.run, graph, x, wanted))
                executor: Any = scheduler._executor(graph, wanted)
            short, long = _least_seconds(runs)
            found[f"{name}_us"] = (long - short) / (CHAINS[1] - CHAINS[0]) * 1e6
            if name == "link":
                found |= _account(executor.plan) | _captures(executor)
    return found


def _chain(
    parts: int, devices: int, length: int, shape: tuple[int, int]
) -> tuple[Graph, dict[int, int]]:
    """Return a chain of sums of some parts, and the device of each node."""
    g, pins = GraphBuilder(f"chain of {length}"), dict[int, int]()
    held = [g.input("x", shape)] * devices

    def on(device: int, made: Tensor) -> Tensor:
        pins[len(pins)] = device
        return made

    for _ in range(length):
        made = [on(i % devices, g.scale(held[i % devices], 1.0 / parts)) for i in range(parts)]
        held = [on(d, g.add(made[0], made[1])) for d in range(devices)]
        for one in made[2:]:
            held = [on(d, g.add(held[d], one)) for d in range(devices)]
    return g.build(*held), pins


def _least_seconds(runs: Sequence[Callable[[], object]], rounds: int = 20) -> list[float]:
    """Return the least seconds of each call, in turns, after three that bind and capture."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(3 + rounds):
        for run, took in zip(runs, times, strict=True):
            began = perf_counter()
            run()
            took.append(perf_counter() - began)
    return [min(took[3:]) for took in times]


# --- models -------------------------------------------------------------------------------


class Sides:
    """A model of random weights on one device and on several.

    Args:
        spec: The model.
        devices: The first one is the one alone.
        n_prompt: Tokens of the prompt, one batch.
        ubatch: Tokens of a micro-batch.
    """

    def __init__(self, spec: ModelSpec, devices: Devices, n_prompt: int, ubatch: int) -> None:
        self._spec, self._source = spec, random_weights(spec)
        self._devices, self._n_prompt, self._ubatch = devices, n_prompt, ubatch
        rng = np.random.default_rng(1)
        self._tokens = rng.integers(0, spec.hparams.n_vocab, n_prompt).tolist()
        self._logits: np.ndarray | None = None

    @property
    def tokens(self) -> list[int]:
        """The prompt."""
        return self._tokens

    @contextmanager
    def session(self, side: str, n_predict: int = 0, **options: Any) -> Iterator[Session]:
        """Open a session: ``one``, ``layer``, ``tensor``, or ``pairs`` of micro-batches at once."""
        devices = self._devices[:1] if side == "one" else self._devices
        chosen = SessionOptions(
            n_ctx=self._n_prompt + n_predict + 16,
            n_batch=self._n_prompt,
            n_ubatch=self._ubatch,
            split_mode="tensor" if side in ("tensor", "pairs") else "layer",
            pipelining="on" if side == "pairs" else SessionOptions().pipelining,
        )

        with (
            model_of(self._spec, self._source) as model,
            Session(model, devices, replace(chosen, **options)) as session,
        ):
            yield session

    def measure(self, side: str, rounds: int, n_predict: int) -> dict[str, Any]:
        """Return what a prompt and decoding steps take, of a side of ``session``."""
        with self.session(side, n_predict) as session:
            found: dict[str, Any] = {}
            # A plan is enqueued command by command in its first run and captured in its second.
            for name in ("first", "second"):
                logits, found[f"{name}_prompt_s"] = timed_prompt(session, self._tokens)
            seconds = [timed_prompt(session, self._tokens)[1] for _ in range(rounds)]
            found |= {"prompt_s": min(seconds, default=0.0), "all_prompt_s": seconds}
            found["prompt_plan"] = _account(session.last_plan)
            session.reset()
            times = [perf_counter() for _ in session.generate(self._tokens[:8], n_predict)]
            steps = np.diff(times)[len(times) // 2 :]  # the first ones bind and capture
            found |= {"step_s": float(np.median(steps)), "least_step_s": float(steps.min())}
            graph = session.step_graph(8 + n_predict - 2)  # as the last step's
            plan = session.plan_of(graph)
            found["predicted_step_s"] = predict_step(graph, plan, session.rates).seconds
            found["step_plan"] = _account(session.last_plan)
            executor: Any = session.scheduler._executor(graph, session.constraints)
            found |= _captures(executor) | {"enqueue_s": _enqueue_s(executor)}
        found["difference"] = self.difference(logits)
        return found

    def difference(self, logits: np.ndarray) -> float:
        """Return how far logits are from the first ones given, as a share of the largest."""
        if self._logits is None:
            self._logits = logits
        return float(np.abs(logits - self._logits).max() / np.abs(self._logits).max())


def timed_prompt(session: Session, tokens: list[int]) -> tuple[np.ndarray, float]:
    """Feed a prompt to an empty sequence; return the logits and the seconds."""
    session.reset()
    began = perf_counter()
    logits = session.feed(tokens)
    return logits, perf_counter() - began


def _account(plan: Any) -> dict[str, Any]:
    """Return what a plan consists of."""
    stats = plan_stats(plan)
    return {
        "commands": dict(stats.commands),
        "streams": dict(stats.streams),
        "reads_peers": bool(stats.peer_reads),
    }


def _enqueue_s(executor: Any, steps: int = 20) -> float:
    """Return the median seconds that the host takes to enqueue a step whose inputs are there.

    A step cannot be quicker than that: the last wait of the host is made, and not counted.
    """
    spent = []
    for _ in range(steps):
        began = perf_counter()
        for call in executor._calls[:-1]:
            call()
        spent.append(perf_counter() - began)
        executor._calls[-1]()
        executor._retire_events()
    return float(np.median(spent))


def _captures(executor: Any) -> dict[str, Any]:
    """Return what of an executor's commands is replayed."""
    if executor.captured is None:
        return {"segments": 0, "obstacles": 0}
    report = executor.captured.report
    reasons = [o.reason for o in report.plan.obstacles]
    return {
        "segments": len(report.plan.segments),
        "obstacles": len(reasons),
        "refused": sorted(set(report.refused.values())),
        "graph_nodes": sum(report.nodes.values()),
        "reasons": sorted({re.sub(r"\d+", "N", reason) for reason in reasons}),
    }


# --- all of it ----------------------------------------------------------------------------


def apart() -> Any:
    """Return a context in which each device has graphs of its own, with events between them."""
    return patch("ggsched.run.capture_plan.SHORT", 0)


def found_of(devices: Devices, asked: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the findings of each case, the ones that matter most first."""
    if "sums" in asked.cases:
        sums = {"peers": exchange(devices), "copies": exchange(devices, peers=False)}
        with apart():
            sums["apart"] = exchange(devices)
        yield "sums", sums
    for name in (case for case in asked.cases if case != "sums"):
        spec, ways = MODELS[name]
        sides = Sides(spec, devices, asked.prompt, asked.ubatch)
        for side in ways:
            yield f"{name} {side}", sides.measure(side, asked.rounds, asked.predict)
        if asked.apart and "tensor" in ways:
            with apart():
                yield f"{name} apart", sides.measure("tensor", asked.rounds, asked.predict)


def ratios(found: Mapping[str, Any]) -> dict[str, float]:
    """Return how many times as fast several devices are as one, and what a sum takes."""
    made = {}
    if "sums" in found:
        sums = found["sums"]
        size = f"{sums['peers']['nbytes'] >> 10} KiB"
        made[f"link with a sum of {size}, us"] = sums["peers"]["link_us"]
        made["the same on one GPU, us"] = sums["peers"]["alone_us"]
        made["a graph of each GPU, us"] = sums["apart"]["link_us"]
        made["by copies, us"] = sums["copies"]["link_us"]
    for case, figures in found.items():
        name, _, side = case.partition(" ")
        one = found.get(f"{name} one")
        if side in ("layer", "tensor", "pairs", "apart") and one is not None:
            made[f"{case} decode"] = one["step_s"] / figures["step_s"]
            made[f"{case} prefill"] = one["prompt_s"] / figures["prompt_s"]
            predicted = one["predicted_step_s"] / figures["predicted_step_s"]
            made[f"{case} decode, predicted"] = predicted
    return made


def table(made: Mapping[str, float], found: Mapping[str, Any], n_prompt: int) -> str:
    """Return figures beside their targets, and the rates of each side."""
    lines = []
    for name, value in made.items():
        target = TARGETS.get(name)
        relation = "<=" if name.endswith("us") else ">="
        wanted = f"  (target {relation} {target:g})" if target is not None else ""
        lines.append(f"{name:34} {value:8.2f}{wanted}")
    for case, figures in found.items():
        if "step_s" in figures:
            rates = f"{n_prompt / figures['prompt_s']:10,.0f} t/s {1 / figures['step_s']:8.1f} t/s"
            cut = f"{figures['segments']} graphs, {figures['obstacles']} obstacles"
            host = f"enqueued in {1e6 * figures['enqueue_s']:.0f} us"
            lines.append(f"{case:34} {rates}   {cut}, {host}; off {figures['difference']:.1e}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure; the exit code is 1 where logits differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tensor", description=__doc__)
    cases = ("sums", "llama-8b", "gpt-oss-20b")
    parser.add_argument("cases", nargs="*", default=cases, help=f"of sums, {', '.join(MODELS)}")
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="the first is the one alone")
    parser.add_argument("-p", "--prompt", type=int, default=PROMPT)
    parser.add_argument("-ub", "--ubatch", type=int, default=UBATCH)
    parser.add_argument("-n", "--predict", type=int, default=PREDICT)
    parser.add_argument("--apart", action="store_true", help="tensor again, a graph of each GPU")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds")
    parser.add_argument("-o", "--output", metavar="FILE", help="write JSON there, after each case")
    asked = parser.parse_args()
    unknown = set(asked.cases) - {"sums", *MODELS}
    if unknown:
        parser.error(f"no case {min(unknown)!r}; there are sums, {', '.join(MODELS)}")
    devices, began = asked.devices.split(","), perf_counter()
    found: dict[str, Any] = {}
    result: dict[str, Any] = {"devices": devices, "prompt": asked.prompt, "ubatch": asked.ubatch}
    for name, figures in found_of(devices, asked):
        found[name] = figures
        result |= {"seconds": round(perf_counter() - began, 1), "cases": found}
        result["ratios"] = ratios(found)
        sys.stderr.write(f"{result['seconds']:6.1f} s: {name}\n")
        if asked.output:
            Path(asked.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        if result["seconds"] > asked.budget:
            result["cut_off_behind"] = name
            break
    sys.stderr.write(table(result["ratios"], found, asked.prompt))
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if all(f.get("difference", 0.0) < CLOSE for f in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
