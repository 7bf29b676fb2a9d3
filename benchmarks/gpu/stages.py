"""Prefill over several GPUs against one: ``python -m benchmarks.gpu.stages``, one line of JSON.

A llama of 8B in bf16 with random weights, sessions with default options. Rounds on one GPU and on
all of them alternate in one process; the fastest of each counts. Beside the measured ratio stand
the predicted one and the closed form of equal stages, m p / (m + p - 1). With ``--machines`` each
of several GPUs is that of a machine of its own, a process of this host.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

import numpy as np

from benchmarks.gpu.running import model_of
from ggsched.backend.protocols import Device
from ggsched.ir.dtype import BF16
from ggsched.passes.cost.predict import predict_step
from ggsched.plan.command import Launch
from ggsched.run.release import close_all
from ggsched_cluster.local import local_start
from ggsched_cluster.remote_devices import open_group
from ggsched_llm.batches import MicroBatch, Pipelining
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.spec import ModelSpec
from tests.support.shapes import LLAMA_1B, LLAMA_8B, SMALL, random_weights, spec_of

MODELS: Final = {"llama-8b": LLAMA_8B, "llama-1b": LLAMA_1B, "small": replace(SMALL, n_layer=4)}
DEVICES: Final = ("cuda:0", "cuda:1")
TOKENS: Final = (4096, 8192)
UBATCH: Final = 512
ROUNDS: Final = 5
CLOSE: Final = 0.02
"""Logits of both ways differ by less than that share of the largest."""


def measure(
    spec: ModelSpec,
    one: Sequence[str] | Sequence[Device],
    several: Sequence[str] | Sequence[Device],
    n_tokens: int,
    ubatch: int,
    rounds: int = ROUNDS,
    batch: int | None = None,
    pipelining: Pipelining = "auto",
) -> dict[str, Any]:
    """Return what a prompt takes on one device and on several.

    Args:
        spec: The model; its weights are random.
        one: Names of one device, or the device.
        several: Names of several devices, or the devices.
        n_tokens: Tokens of the prompt.
        ubatch: Tokens of a micro-batch.
        rounds: Prompts that are timed on each.
        batch: Tokens of a batch at most; by default the prompt is one.
        pipelining: Of several devices; ``on`` where guessed rates of links say that it cannot pay.
    """
    options = SessionOptions(n_ctx=n_tokens, n_batch=batch or n_tokens, n_ubatch=ubatch)
    tokens = np.random.default_rng(1).integers(0, spec.hparams.n_vocab, n_tokens).tolist()
    with (
        model_of(spec, random_weights(spec)) as model,
        Session(model, one, options) as alone,
        Session(model, several, replace(options, pipelining=pipelining)) as spread,
    ):
        sides = {"one": alone, "several": spread}
        logits = {name: session.feed(tokens) for name, session in sides.items()}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, session in sides.items():
                session.reset()
                began = perf_counter()
                session.feed(tokens)
                seconds[name].append(perf_counter() - began)
        best = {name: min(took) for name, took in seconds.items()}
        parts, p = -(-n_tokens // ubatch), len(several)
        plan: Any = spread.last_plan
        largest = float(np.abs(logits["one"]).max())
        return {
            "tokens": n_tokens,
            "micro_batches": parts,
            "devices": p,
            "one_s": best["one"],
            "several_s": best["several"],
            "one_tokens_per_s": n_tokens / best["one"],
            "several_tokens_per_s": n_tokens / best["several"],
            "ratio": best["one"] / best["several"],
            "closed_form": parts * p / (parts + p - 1),
            "predicted_ratio": _predicted(alone, n_tokens) / _predicted(spread, n_tokens),
            "is_joined": spread.timing.joined > 0,
            "plans": spread.scheduler.plan_cache.misses,
            "commands": len(plan.commands),
            "launches": sum(isinstance(c, Launch) for c in plan.commands),
            "streams": len(plan.streams.streams),
            "layers": spread.options.offload.stage_layers,
            "embedding_on": spread.homes.devices["token_embd.weight"],
            "all_seconds": seconds,
            "difference": float(np.abs(logits["one"] - logits["several"]).max()) / largest,
        }


def _predicted(session: Session, n_tokens: int) -> float:
    """Return the predicted seconds of a prompt, joined or not as the session does it."""
    batches = session.batches.micro_batches
    step = session.options.step
    graphs = [
        session.graph(min(step, n_tokens - start), start, 1) for start in range(0, n_tokens, step)
    ]
    parts = [MicroBatch(graph, graph is graphs[-1]) for graph in graphs]
    forecast = batches.forecast(parts) if batches.pays(parts) else None
    if forecast is not None:
        return forecast.together_s
    plans = [session.plan_of(graph) for graph in graphs]
    return sum(
        predict_step(graph, plan, session.rates).seconds
        for graph, plan in zip(graphs, plans, strict=True)
    )


def machines(devices: Sequence[str]) -> list[Device]:
    """Open each device on a machine of its own, which sees no other GPU."""
    own, wanted = dict[str, dict[str, str]](), list[tuple[str, tuple[str, ...]]]()
    for device in devices:
        backend, _, number = device.partition(":")
        name = f"machine{len(own)}"
        own[name] = {"GGSCHED_BACKENDS": backend, "CUDA_VISIBLE_DEVICES": number}
        wanted.append((name, (f"{backend}:0",)))
    return open_group(local_start(tuple(own), own=own), wanted)


def main() -> int:
    """Measure each size of prompt; the exit code is 1 where logits differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.stages", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="llama-8b")
    parser.add_argument("--devices", default=",".join(DEVICES), help="the first is the one alone")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="sizes of prompts")
    parser.add_argument("-ub", "--ubatch", type=int, default=UBATCH)
    parser.add_argument("-b", "--batch", type=int, help="tokens of a batch; the whole prompt")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--machines", action="store_true", help="each device on one of its own")
    asked = parser.parse_args()
    devices = asked.devices.split(",")
    several: Any = machines(devices) if asked.machines else devices
    spec = spec_of(MODELS[asked.model], BF16)
    cases = []
    try:
        for n_tokens in map(int, asked.tokens.split(",")):
            sizes = n_tokens, asked.ubatch, asked.rounds, asked.batch
            how: Pipelining = "on" if asked.machines else "auto"
            found = measure(spec, devices[:1], several, *sizes, pipelining=how)
            sys.stderr.write(f"{n_tokens} tokens: {found['ratio']:.2f} of one device\n")
            cases.append(found)
    finally:
        if asked.machines:
            close_all(several)
    ok = all(case["difference"] < CLOSE for case in cases)
    result = {"model": f"{asked.model} bf16", "devices": devices, "ok": ok, "cases": cases}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
