"""What a sum over GPUs costs in a step, and why: ``python -m benchmarks.gpu.peer_edges``.

First a chain of kernels of its own, on two GPUs: each link reads weights on both, makes a row of
16 KiB on each and adds the two up. Ways to order the sum behind the other GPU's row: an edge of the
graph, nothing (wrong, the least that can be), words in the memory of the GPUs that kernels write
and wait for. Then a decoding step of a llama of 8B whose kernels meet, with rows that are pushed or
read, with edges between GPUs in place of that, and with neither (wrong, the least that can be
without pushed rows): what the host and the GPUs take.
"""

import argparse
import ctypes
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from cuda.bindings import driver as cu

from benchmarks.gpu.running import model_of
from ggsched.ir.dtype import BF16
from ggsched_cuda import driver
from ggsched_cuda.capture import driver as capturing
from ggsched_cuda.capture_sink import CapturingSink
from ggsched_cuda.compiler.driver import compile_text
from ggsched_cuda.driver import check
from ggsched_cuda.event import Marker
from ggsched_cuda.rendezvous import CaptureRendezvous
from ggsched_cuda_kernels.sources import architecture_of
from ggsched_llm.session import Session, SessionOptions
from tests.support.shapes import LLAMA_8B, random_weights, spec_of

WIDTH: Final = 4096
LINKS: Final = 64
BLOCKS: Final = 132
SIZES: Final = (17 << 20, 88 << 20)
"""Bytes of weights in front of a sum: half of an output projection of attention, and half of what a
layer has on average."""
ROUNDS: Final = 30

# name: (HOW, early, edges, graphs)
WAYS: Final = {
    "own sum (not summed over GPUs)": (0, True, False, 1),
    "nothing, early (wrong)": (0, True, False, 1),
    "nothing, in turn (wrong)": (0, False, False, 1),
    "edges (as now)": (0, False, True, 1),
    "words, in turn": (1, False, False, 1),
    "words, early": (1, True, False, 1),
    "words, early, 2 graphs": (1, True, False, 2),
    "pushed, early": (2, True, False, 1),
    "marked words, early": (3, True, False, 1),
    "marked words, early, 2 graphs": (3, True, False, 2),
}


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Gpu:
    """One of two GPUs with what a chain needs."""

    def __init__(self, ordinal: int, peer: int) -> None:
        self.context = driver.context_of(ordinal)
        driver.enter(self.context)
        self.stream = driver.make_stream()
        pool = driver.make_pool(ordinal, [peer])
        arch = next(g.arch for g in driver.find_gpus() if g.ordinal == ordinal)
        text = (Path(__file__).parent / "peer_edges.cu").read_text("utf-8")
        self.functions = {}
        for how in range(4):
            for early in (0, 1):
                code = compile_text(
                    text,
                    (f"--gpu-architecture={architecture_of(arch)}", "-std=c++17",
                     f"-DHOW={how}", f"-DEARLY={early}"),
                )  # fmt: skip
                module = driver.load_module(code)
                for name in ("work", "sum"):
                    self.functions[name, how, early] = driver.function_of(module, name, 0)

        def take(nbytes: int) -> int:
            memory = driver.take_memory(pool, nbytes, self.stream)
            driver.enqueue_fill(memory, nbytes, bytes(4), self.stream)
            return memory

        self.weights = take(3 << 30)
        self.row = [take(4 * WIDTH) for _ in range(2)]
        self.y, self.words, self.late = take(4 * WIDTH), take(1 << 16), take(4)
        self.inbox = take(8 * WIDTH * LINKS)
        check(cu.cuStreamSynchronize(self.stream), "cuStreamSynchronize")

    def launch(self, key: Any, grid: int, lanes: int, early: bool, *values: Any) -> None:
        """Launch a kernel with addresses and integers as arguments."""
        driver.enter(self.context)
        held = [ctypes.c_uint64(v) for v in values]
        pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
        config = driver.launch_config((grid, 1, 1), lanes, 0, self.stream, early=early)
        check(
            driver.launch_configured(config, self.functions[key], ctypes.addressof(pointers), 0),
            "cuLaunchKernelEx",
        )


def event_behind(gpu: Gpu) -> int:
    """Return an event that is recorded now."""
    driver.enter(gpu.context)
    event = driver.make_event()
    check(driver.record_event(event, gpu.stream), "cuEventRecord")
    return event


def enqueue(gpus: list[Gpu], way: str, nbytes: int, only: int = -1) -> None:
    """Enqueue a chain: on both GPUs, or one alone."""
    how, early, edges, _ = WAYS[way]
    alone = way.startswith("own")
    for link in range(LINKS):
        count = nbytes // 16
        places = (3 << 30) // nbytes
        for d, gpu in enumerate(gpus):
            if only in (-1, d):
                w = gpu.weights + link % places * nbytes
                gpu.launch(("work", 0, 1), BLOCKS, 512, True,
                           w, count, gpu.y, gpu.row[link % 2], WIDTH)  # fmt: skip
        if edges:
            events = [event_behind(gpu) for gpu in gpus]
            for d, gpu in enumerate(gpus):
                driver.enter(gpu.context)
                driver.enqueue_wait(gpu.stream, events[1 - d])
        for d, gpu in enumerate(gpus):
            if only in (-1, d):
                peer = gpu if alone else gpus[1 - d]
                gpu.launch(("sum", how, int(early)), 1, 1024, early,
                           gpu.row[link % 2], peer.row[link % 2], gpu.y,
                           gpu.inbox + 8 * WIDTH * link, peer.inbox + 8 * WIDTH * link,
                           gpu.words + 64 * link, peer.words + 64 * link, gpu.late,
                           WIDTH // 4)  # fmt: skip


def graph_of(gpus: list[Gpu], way: str, nbytes: int) -> list[tuple[Gpu, Any, int]]:
    """Return executable graphs of a chain, and who launches them."""
    graphs = WAYS[way][3]
    made = []
    for only in [-1] if graphs == 1 else [0, 1]:
        origin = gpus[max(only, 0)]
        driver.enter(origin.context)
        capturing.begin_capture(origin.stream)
        if only < 0:
            event = event_behind(gpus[0])
            driver.enter(gpus[1].context)
            driver.enqueue_wait(gpus[1].stream, event)
        enqueue(gpus, way, nbytes, only)
        if only < 0:
            event = event_behind(gpus[1])
            driver.enter(gpus[0].context)
            driver.enqueue_wait(gpus[0].stream, event)
        driver.enter(origin.context)
        executable, count = capturing.make_executable(capturing.end_capture(origin.stream))
        made.append((origin, executable, count))
    return made


def time_way(gpus: list[Gpu], way: str, nbytes: int) -> str:
    """Return a line about a way."""
    graphs = graph_of(gpus, way, nbytes)
    times, hosts = [], []
    for _ in range(ROUNDS):
        began = perf_counter()
        for gpu, executable, _ in graphs:
            driver.enter(gpu.context)
            check(driver.launch_graph(executable, gpu.stream), "cuGraphLaunch")
        hosts.append(perf_counter() - began)
        for gpu in gpus:
            driver.enter(gpu.context)
            check(cu.cuStreamSynchronize(gpu.stream), "cuStreamSynchronize")
        times.append(perf_counter() - began)
    late = 0
    for gpu in gpus:
        driver.enter(gpu.context)
        word = np.zeros(1, np.uint32)
        check(cu.cuMemcpyDtoH(word.ctypes.data, gpu.late, 4), "cuMemcpyDtoH")
        late += int(word[0])
    nodes = sum(n for *_, n in graphs)
    mark = "  LATE" if late else ""
    least, median = (1e6 * t / LINKS for t in (min(times), float(np.median(times))))
    return (
        f"{way:34} {least:7.2f} us a link  {median:7.2f} median  launch {1e6 * min(hosts):6.0f} us"
        f"  {nodes} nodes{mark}"
    )


def chains(gpus: list[Gpu]) -> None:
    """Measure all ways."""
    for nbytes in SIZES:
        say(f"== chain of {LINKS}, {nbytes / 2**20:.0f} MiB of weights a link and GPU")
        for way in WAYS:
            try:
                say(time_way(gpus, way, nbytes))
            except Exception as error:
                say(f"{way:34} failed: {error!r}"[:300])


# --- a step of a model ----------------------------------------------------------------------


def kinds_of(executable_graph: Any) -> Counter:
    """Return how many nodes of each kind a graph has."""
    nodes, count = check(cu.cuGraphGetNodes(executable_graph), "cuGraphGetNodes")
    nodes, _ = check(cu.cuGraphGetNodes(executable_graph, count), "cuGraphGetNodes")
    made: Counter = Counter()
    for node in nodes[:count]:
        kind = check(cu.cuGraphNodeGetType(node), "cuGraphNodeGetType")
        made[kind.name.replace("CU_GRAPH_NODE_TYPE_", "")] += 1
    return made


class Steps:
    """Steps of an executor, whose graph is captured again for each variant."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def seconds(self, count: int = 40) -> dict[str, float]:
        """Return the seconds of a step, of the host's launch, and of the GPU."""
        e, steps, hosts, gpus = self.executor, [], [], []
        replay = next(p for p in e.captured._parts)
        stream = replay._origin
        gpu = stream.device.gpu
        gpu.enter()
        first, last = driver.make_timed_event(), driver.make_timed_event()
        calls = list(e._calls)
        at = calls.index(replay)
        for _ in range(count):
            began = perf_counter()
            for call in calls[:at]:
                call()
            gpu.enter()
            driver.record_event(first, stream.handle)
            t0 = perf_counter()
            calls[at]()
            hosts.append(perf_counter() - t0)
            gpu.enter()
            driver.record_event(last, stream.handle)
            for call in calls[at + 1 :]:
                call()
            steps.append(perf_counter() - began)
            e._retire_events()
            gpu.enter()
            while driver.query_event(last)[0] == driver.NOT_READY:
                pass
            gpus.append(driver.seconds_between(first, last))
        half = count // 2
        return {
            "step": float(np.median(steps[half:])), "least": min(steps[half:]),
            "launch": float(np.median(hosts[half:])), "gpu": float(np.median(gpus[half:])),
        }  # fmt: skip

    def report(self, name: str) -> float:
        """Capture again, and write what a step takes; return the seconds."""
        kinds: list[Counter] = []
        make = capturing.make_executable

        def watched(graph: Any) -> Any:
            kinds.append(kinds_of(graph))
            return make(graph)

        with patch.object(capturing, "make_executable", watched):
            self.executor.captured.close()
            s = self.seconds()
        found = dict(kinds[-1]) if kinds else {}
        print(
            f"{name:40} step {1e6 * s['step']:7.0f} us (least {1e6 * s['least']:.0f})  "
            f"gpu {1e6 * s['gpu']:7.0f} us  launch {1e6 * s['launch']:5.0f} us  {found}",
        )
        return s["step"]


def without_edges(*, early: bool) -> ExitStack:
    """Return a context in which captures have no edges between GPUs; results are wrong."""
    wait = CapturingSink.wait

    def patched(self: Any, event: Any) -> None:
        point = event.recorded
        marker: Marker = point.marker
        if marker.gpu is self.gpu:
            wait(self, event)
            return
        self.flush()
        self.captured.keeps.append(marker)
        self._is_behind_peer = not early

    stack = ExitStack()
    stack.enter_context(patch.object(CapturingSink, "wait", patched))
    return stack


def model(layers: int, several: list[str]) -> None:
    """Measure a model on one device and on several."""
    spec = spec_of(replace(LLAMA_8B, n_layer=layers), BF16)
    source = random_weights(spec)
    tokens = np.random.default_rng(1).integers(0, spec.hparams.n_vocab, 16).tolist()
    alone = 0.0
    for side in ("one", "tensor"):
        devices = several[:1] if side == "one" else several
        options = SessionOptions(
            n_ctx=128, n_batch=16, n_ubatch=16,
            split_mode="tensor" if side == "tensor" else "layer",
        )  # fmt: skip

        began = perf_counter()
        with (
            model_of(spec, source) as loaded,
            Session(loaded, devices, options) as session,
        ):
            for _ in session.generate(tokens[:8], 8):
                pass
            executor: Any = session.scheduler._executor(session.step_graph(14), session.constraints)
            ready = perf_counter() - began
            say(f"== {len(devices)} GPUs, {layers} layers (ready after {ready:.1f} s)")
            steps = Steps(executor)
            if side == "one":
                alone = steps.report("one GPU")
                continue
            took = {"kernels meet, rows are pushed": steps.report("kernels meet, rows are pushed")}
            with patch.object(CaptureRendezvous, "_push", lambda *_: []):
                took["kernels meet, rows are read"] = steps.report("kernels meet, rows are read")
            with patch.object(CaptureRendezvous, "offer", lambda *_: False):
                took["edges"] = steps.report("edges")
            for early in (False, True):
                name = f"no edges, {'early' if early else 'in turn'} (wrong)"
                with without_edges(early=early):
                    took[name] = steps.report(name)
            took["rows are pushed, again"] = steps.report("rows are pushed, again")
            for name, seconds in took.items():
                say(f"  {name:34} {alone / seconds:.3f} of one GPU")


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.peer_edges", description=__doc__
    )
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="of the model")
    parser.add_argument("--no-chains", action="store_true", help="only the model")
    asked = parser.parse_args()
    driver.find_gpus()
    if not asked.no_chains:
        chains([Gpu(0, 1), Gpu(1, 0)])
    model(asked.layers, asked.devices.split(","))
    return 0


if __name__ == "__main__":
    sys.exit(main())
