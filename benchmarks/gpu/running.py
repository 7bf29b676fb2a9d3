"""A graph on live devices, step by step: eager or captured, with what each takes of the host."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

import numpy as np

from ggsched.config import Settings
from ggsched.ir.dtype import F32, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.passes.pipeline import make_plan
from ggsched.run.capture import CapturedRun, captured_run
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.scheduler import Scheduler
from ggsched_llm.batches import batch_inputs
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import Model
from ggsched_llm.spec import ModelSpec

N_CTX = 512
N_KV = 256


class Running:
    """A model's graph, prepared on devices.

    Args:
        scheduler: Has the devices and the weights.
        spec: The model.
        n_tokens: Tokens of a step.
        n_kv: Rows of the cache that attention looks at.
        n_past: Tokens before these; 128 of one token and none of several, if not given.
        kv_dtype: Type of the cache.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        spec: ModelSpec,
        n_tokens: int = 1,
        n_kv: int = N_KV,
        *,
        n_past: int | None = None,
        kv_dtype: DType = F32,
    ) -> None:
        self.scheduler = scheduler
        self.graph: Graph = build_model_graph(
            spec, n_tokens=n_tokens, n_kv=n_kv, n_out=1, n_ctx=max(n_kv, N_CTX), kv_dtype=kv_dtype
        )
        if n_past is None:
            n_past = 128 if n_tokens == 1 else 0
        tokens = np.arange(n_tokens, dtype=np.int32)
        self.inputs: Mapping[str, np.ndarray] = batch_inputs(
            self.graph, tokens, n_past, 1, spec.hparams.window
        )
        self.plan = scheduler.plan(self.graph)
        scheduler.prepare(self.graph)
        self.executor: Any = scheduler._executor(self.graph, _FREE)
        self._more: list[Executor] = []

    @classmethod
    def on(cls, devices: Sequence[str], spec: ModelSpec, weights: Any, n_tokens: int = 1) -> Self:
        """Open devices, fill weights and prepare a graph."""
        settings = Settings.from_environment(capture=False)
        return cls(Scheduler(devices, weights=weights, settings=settings), spec, n_tokens)

    def again(self, early: str, streams: int = 0) -> None:
        """Compile everything again, with or without PDL, and run that from now on.

        Args:
            early: Mode of ``ggsched_cuda_kernels.programmatic_launch``.
            streams: Streams that are used wherever nodes are independent; 0 for the plan as it is.
        """
        device: Any = self.scheduler._store.devices[0]
        device.early = early
        if streams:
            policy = StreamPolicy(streams, is_forced=streams > 1)
            options = PlanOptions(streams=policy)
            self.plan = make_plan(self.graph, self.scheduler.topology, _FREE, options)
        store = self.scheduler._store
        resources = Resources(self.graph, self.plan, store)
        self._more.append(
            Executor(self.graph, self.plan, resources, timeout_s=self.scheduler.settings.timeout_s)
        )
        self.executor = self._more[-1]

    def step(self) -> np.ndarray:
        """Run once; return the logits."""
        return self.executor.run(self.inputs)[self.graph.outputs[0]]

    def capture(self) -> CapturedRun:
        """Let the steps from now on be replays; return what was found."""
        return capture_executor(self.executor)

    def seconds(self, steps: int) -> float:
        """Return the least seconds of a step in five series, after two steps to warm up.

        Logits are read where they are, as a session does that generates.
        """
        for _ in range(2):
            self.step()
        best = float("inf")
        for _ in range(5):
            began = perf_counter()
            for _ in range(max(1, steps // 5)):
                self.executor.run(self.inputs, copy=False)
            best = min(best, (perf_counter() - began) / max(1, steps // 5))
        return best

    def enqueue_seconds(self, steps: int) -> float:
        """Return the median seconds that the host spends on enqueueing a step.

        The calls are those of the plan up to its last wait of the host, which is made, but not
        counted.
        """
        calls = self.executor._calls
        spent = []
        for _ in range(steps):
            began = perf_counter()
            for call in calls[:-1]:
                call()
            spent.append(perf_counter() - began)
            calls[-1]()
            self.executor._retire_events()
        return float(np.median(spent))

    def device_seconds(self, replays: int = 10) -> float:
        """Return the seconds of a replay on the GPU, transfers of inputs and results included.

        Replays stand one behind the other, so that the GPU waits for none of them; what the host
        does before and after a step is not in it.
        """
        from benchmarks.gpu.timing import Timer

        found = [c for c in self.executor._calls if type(c).__name__ == "_Replay"]
        assert len(found) == 1, "one segment is captured"
        timer = Timer(found[0]._origin.device, found[0]._origin)

        def work() -> None:
            for _ in range(replays):
                found[0]()

        work()
        return min(timer.seconds(work) for _ in range(5)) / replays

    def close(self) -> None:
        """Release everything."""
        self.scheduler._store.drain()
        for executor in self._more:
            executor.close()
        self.scheduler.close()


@contextmanager
def model_of(spec: ModelSpec, weights: Callable[[str], Any]) -> Iterator[Model]:
    """Give a model without a file, whose sessions take their weights from a function."""
    file: Any = SimpleNamespace(path="random", tensors={})
    tokenizer: Any = None

    def array(_: object, name: str) -> Any:
        return weights(name)

    with (
        patch("ggsched_llm.session.weight_array", array),
        patch("ggsched_llm.sharing.weight_array", array),
    ):
        yield Model(file, spec, tokenizer)


def run_in_modes(graph: Graph, values: Mapping[str, Any], modes: Sequence[str]) -> list[list[Any]]:
    """Return the outputs of two runs in each mode of PDL, one after the other."""
    inputs = {t.name: values[t.name] for t in graph.roots(Role.INPUT)}
    settings = Settings.from_environment(capture=False)
    got = []
    for mode in modes:
        with Scheduler(["cuda:0"], weights=values, settings=settings) as scheduler:
            inner: Any = scheduler._store.devices[0]
            getattr(inner, "inner", inner).early = mode
            for _ in range(2):
                made = scheduler.run(graph, inputs)
                got.append([made[tid].copy() for tid in graph.outputs])
    return got


def capture_executor(executor: Executor) -> CapturedRun:
    """Put captured calls in the place of an executor's own."""
    inner: Any = executor
    made = captured_run(
        inner.plan, inner._resources, inner._calls, inner._events, first_eager=False
    )
    inner.captured, inner._calls, inner._numbers = made, made.calls, made.numbers
    return made


def _free() -> Any:
    from ggsched.passes.place import Constraints

    return Constraints()


_FREE = _free()
