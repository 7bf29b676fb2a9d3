"""Steps of models with many experts, of which the first few blocks stand for all: decode, prefill.

Blocks of one kind take the same time, so that 4 and 8 of them say what each takes and what lies
outside of them. ``ratio`` is how long the weights that a token reads take at the speed of a copy,
over how long the step takes on the GPU.
"""

import sys
from typing import Any

import numpy as np

from benchmarks.gpu.decode import copy_bandwidth, kernel_times
from benchmarks.gpu.running import Running
from ggsched.config import Settings
from ggsched.ir.dtype import F16
from ggsched.scheduler import Scheduler
from tests.support.expert_files import random_model
from tests.support.shapes import read_nbytes

CASES = (("qwen3next-80b", "q8_0"), ("qwen3next-80b", "q4_k_m"), ("qwen3-30b", "q4_k_m"))
LAYERS = (4, 8)
PROMPT = 512
SHOWN = 40


def run(*, quick: bool) -> dict[str, Any]:
    """Measure each case; replays must give what the eager step gives."""
    bandwidth = copy_bandwidth()
    found: dict[str, Any] = {"copy_bytes_per_s": bandwidth}
    ok = True
    for name, kind in CASES[:1] if quick else CASES:
        steps = {n: _measured(name, kind, n, bandwidth) for n in LAYERS}
        few, many = (steps[n] for n in LAYERS)
        each = (many["device_us"] - few["device_us"]) / (LAYERS[1] - LAYERS[0])
        all_us = few["device_us"] + each * (48 - LAYERS[0])
        each_pp = (many["prefill_us"] - few["prefill_us"]) / (LAYERS[1] - LAYERS[0])
        all_pp = few["prefill_us"] + each_pp * (48 - LAYERS[0])
        found[f"{name} {kind}"] = {**steps, "block_us": each, "all_us": all_us, "pp_us": all_pp}
        sys.stdout.write(
            f"   {name} {kind}: a block {each:.1f} us, 48 of them {all_us / 1e3:.3f} ms a token, "
            f"prompt of {PROMPT} {all_pp / 1e3:.1f} ms\n"
        )
        sys.stdout.flush()
        ok = ok and all(step["equal"] for step in steps.values())
    return {"ok": ok, **found}


def _measured(name: str, kind: str, n_layer: int, bandwidth: float) -> dict[str, Any]:
    spec, source = random_model(name, kind, n_layer)
    settings = Settings.from_environment(capture=False)
    scheduler = Scheduler(["cuda:0"], weights=source, settings=settings)
    running = Running(scheduler, spec, kv_dtype=F16)
    result: dict[str, Any] = {"floor_us": read_nbytes(spec) / bandwidth * 1e6}
    try:
        eager = running.step()
        report = running.capture().report
        scheduler.clear_states()
        replayed = running.step()
        result |= {
            "equal": bool(np.array_equal(eager, replayed) and np.isfinite(eager).all()),
            "device_us": running.device_seconds() * 1e6,
            "step_us": running.seconds(50) * 1e6,
            "graph_nodes": sum(report.nodes.values()),
        }
        result["ratio"] = result["floor_us"] / result["device_us"]
        running.again("on")
        _show(f"{name} {kind} {n_layer} blocks, decode", result, running, n_layer)
        prompt = Running(scheduler, spec, PROMPT, PROMPT, kv_dtype=F16)
        prompt.step()
        result["prefill_us"] = prompt.seconds(5) * 1e6
        shown = {"prefill_us": result["prefill_us"]}
        _show(f"{name} {kind} {n_layer} blocks, pp{PROMPT}", shown, prompt, n_layer)
        return result
    finally:
        running.close()


def _show(what: str, result: dict[str, Any], running: Running, n_layer: int) -> None:
    sys.stdout.write(f"   {what}: {result}\n")
    if n_layer == LAYERS[0]:
        for kernel, line in list(kernel_times(running).items())[:SHOWN]:
            sys.stdout.write(f"      {kernel}: {line}\n")
    sys.stdout.flush()
