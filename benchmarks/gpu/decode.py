"""A decoding step of models of known shapes, eager and by replay, against the bytes it reads."""

import sys
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu.running import Running
from ggsched.ir.dtype import BF16, MXFP4, Q8_0
from ggsched.plan.command import HostSync
from tests.support.shapes import (
    GPT_OSS_20B,
    LLAMA_1B,
    LLAMA_8B,
    SMALL,
    SMALL_MOE,
    random_weights,
    read_nbytes,
    spec_of,
)

CASES = {
    "llama-1b bf16": (LLAMA_1B, BF16, None),
    "llama-8b bf16": (LLAMA_8B, BF16, None),
    "llama-8b q8_0": (LLAMA_8B, Q8_0, None),
    "gpt-oss-20b mxfp4": (GPT_OSS_20B, BF16, MXFP4),
    "gpt-oss-20b q8_0": (GPT_OSS_20B, Q8_0, None),
    "gpt-oss-20b bf16": (GPT_OSS_20B, BF16, None),
}
TOLERANCE = 1e-5  # of the norm of the logits
QUICK = {"small bf16": (SMALL, BF16, None), "small moe mxfp4": (SMALL_MOE, BF16, MXFP4)}


def run(*, quick: bool) -> dict[str, Any]:
    """Measure each case; every replay has to give the bytes of the eager step."""
    bandwidth = copy_bandwidth()
    found: dict[str, Any] = {"copy_bytes_per_s": bandwidth}
    ok = True
    for name, (hp, dtype, experts) in (QUICK if quick else CASES).items():
        spec = spec_of(hp, dtype, experts)
        result = _measured(spec, bandwidth)
        found[name] = result
        ok = ok and result["equal"]
        shown = {k: v for k, v in result.items() if k not in ("report", "kernels")}
        sys.stdout.write(f"   {name}: {shown}\n{result['report']}\n")
        for kernel, line in list(result.get("kernels", {}).items())[:16]:
            sys.stdout.write(f"      {kernel}: {line}\n")
        sys.stdout.flush()
    return {"ok": ok, **found}


def _measured(spec: Any, bandwidth: float) -> dict[str, Any]:
    running = Running.on(["cuda:0"], spec, random_weights(spec))
    try:
        eager = running.step()
        eager_s = running.seconds(20)
        result: dict[str, Any] = {
            "read_nbytes": read_nbytes(spec),
            "floor_us": read_nbytes(spec) / bandwidth * 1e6,
            "host_syncs": sum(isinstance(c, HostSync) for c in running.plan.commands),
            "nodes": len(running.graph.nodes),
            "eager_us": eager_s * 1e6,
            "eager_host_us": running.enqueue_seconds(10) * 1e6,
        }
        running.again("off")
        running.capture()
        plain = running.step()
        plain_s = running.seconds(50)
        running.again("on")
        captured = running.capture()
        replayed = running.step()
        replay_s = running.seconds(50)
        equal = np.array_equal(eager, replayed) and np.array_equal(eager, plain)
        result |= {
            "replay_us": replay_s * 1e6,
            "device_us": (device_s := running.device_seconds()) * 1e6,
            "device_of_floor": result["floor_us"] / (device_s * 1e6),
            "replay_host_us": running.enqueue_seconds(50) * 1e6,
            **replay_calls(running),
        }
        for streams in (1, 2, 3):
            running.again("on", streams)
            running.capture()
            # Other neighbours on a stream are joined otherwise, which rounds sums otherwise.
            apart = np.linalg.norm(running.step() - eager) / np.linalg.norm(eager)
            result[f"difference_{streams}_streams"] = float(apart)
            equal = bool(equal and apart < TOLERANCE)
            result[f"replay_us_{streams}_streams"] = running.seconds(50) * 1e6
            result[f"device_us_{streams}_streams"] = running.device_seconds() * 1e6
        running.again("on", 1)
        result["kernels"] = kernel_times(running)  # last: ids may have been overwritten by now
        return result | {
            "replay_of_floor": result["floor_us"] / (replay_s * 1e6),
            "eager_by_replay": eager_s / replay_s,
            "late_by_early_launch": plain_s / replay_s,
            "graph_nodes": sum(captured.report.nodes.values()),
            "equal": bool(equal) and bool(np.isfinite(eager).all()),
            "report": captured.report.text(),
        }
    finally:
        running.close()


def replay_calls(running: Running) -> dict[str, float]:
    """Return the median and the least microseconds of the calls that enqueue graphs in a step."""
    calls = running.executor._calls
    spent = []
    for _ in range(100):
        total = 0.0
        for call in calls[:-1]:
            began = perf_counter()
            call()
            took = perf_counter() - began
            if type(call).__name__ == "_Replay":
                total += took
        spent.append(total)
        calls[-1]()
        running.executor._retire_events()
    return {
        "replay_call_us": float(np.median(spent)) * 1e6,
        "replay_call_least_us": min(spent) * 1e6,
    }


def copy_bandwidth(nbytes: int = 1 << 32) -> float:
    """Return bytes read and written per second by a copy on the GPU."""
    from benchmarks.gpu.timing import Timer
    from ggsched_cuda.backend import CudaBackend

    device: Any = CudaBackend().open_device(0)
    stream = device.create_stream()
    a, b = device.allocate(nbytes), device.allocate(nbytes)
    timer = Timer(device, stream)
    seconds = min(timer.seconds(lambda: stream.copy(a, 0, b, 0, nbytes)) for _ in range(5))
    device.close()
    return 2 * nbytes / seconds


def kernel_times(running: Running) -> dict[str, str]:
    """Return how long the kernels of one step take, by kernel and shape of the grid."""
    from benchmarks.gpu.timing import program_times

    programs = running.executor._resources.programs
    return program_times(programs.values())
