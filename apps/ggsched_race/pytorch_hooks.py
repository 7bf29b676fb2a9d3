"""Everything of PyTorch that a recorder listens to, apart from the ops themselves."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, wraps
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.cuda import _gpu_trace

from ggsched_race.cupy_hooks import cupy_actions
from ggsched_race.host_buffers import patch_buffers
from ggsched_race.host_memory import converting
from ggsched_race.patches import Patches
from ggsched_race.pytorch import DispatchMode, Recorder, first_line
from ggsched_race.triton_hooks import triton_actions
from ggsched_race.when_imported import when_imported


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Record what the calling thread does, and threads that begin meanwhile."""

    def not_followed(module: str, error: Exception) -> None:
        """Go on with a version of a library that is made otherwise."""
        recorder.recording.notice(f"{module} is not followed, or in part: {first_line(error)}")

    with ExitStack() as stack:
        _add_callbacks(stack, recorder)
        patches = stack.enter_context(Patches())
        _patch_waits(patches, recorder)
        _patch_graphs(patches, recorder)
        _patch_memory(patches, recorder)
        _patch_reads(patches, recorder)
        _patch_backward(patches, recorder)
        _patch_threads(patches, recorder)
        actions = _eager_actions(patches, stack, recorder)
        actions |= {**triton_actions(patches, recorder), **cupy_actions(patches, recorder)}
        stack.enter_context(when_imported(actions, not_followed))
        stack.enter_context(DispatchMode(recorder.op))
        try:
            yield
        finally:
            recorder.end()


def _eager_actions(
    patches: Patches, stack: ExitStack, recorder: Recorder
) -> dict[str, Callable[[ModuleType], None]]:
    """Let compiled functions run op by op; the compiler is not loaded for it.

    Returns:
        What to do when it is loaded.
    """
    compiled, what = torch.compile, "functions of torch.compile ran op by op, not as kernels"

    @cache
    def run_eagerly() -> None:
        stack.enter_context(torch.compiler.set_stance("force_eager"))

    @wraps(compiled)
    def compile_later(*args: Any, **kwargs: Any) -> Any:
        if recorder.is_enabled:  # a program may have kept this function
            run_eagerly()
            recorder.recording.notice(what)
        return compiled(*args, **kwargs)

    def loaded(frames: ModuleType) -> None:
        choose = getattr(frames, "_callback_from_stance", None)
        if choose is None:  # of another version; the stance does it, for torch.compile
            return

        def choose_callback(callback: Any) -> Any:
            if callback in (None, False):
                return choose(callback)
            recorder.recording.notice(what)  # compiled before, or by another way
            return None

        patches.set(frames, "_callback_from_stance", choose_callback)

    patches.set(torch, "compile", compile_later)
    if "torch._dynamo.eval_frame" in sys.modules:
        run_eagerly()
    return {"torch._dynamo.eval_frame": loaded}


def _add_callbacks(stack: ExitStack, recorder: Recorder) -> None:
    """Register with the hooks of PyTorch's own sanitizer."""
    recording = recorder.recording

    def device() -> int:
        return recorder.platform.stream(None)[0]

    def actor_of(handle: int) -> int:
        return recording.stream((device(), handle))

    def ordered(record: Callable[..., None], waits: bool = False) -> Callable[..., None]:
        def called(event: int, stream: int) -> None:
            at, actor = recording.sites.here(), actor_of(stream)
            recorder.after(lambda _: record(event, actor, at), actor if waits else None)

        return called

    hooks: list[tuple[Any, Callable[..., None]]] = [
        (_gpu_trace.EventCreationCallbacks, recording.event_created),
        (_gpu_trace.EventDeletionCallbacks, recording.event_deleted),
        (_gpu_trace.EventRecordCallbacks, ordered(recording.record)),
        (_gpu_trace.EventWaitCallbacks, ordered(recording.wait, waits=True)),
        (_gpu_trace.MemoryAllocationCallbacks, recorder.allocated),
        (_gpu_trace.MemoryDeallocationCallbacks, recorder.freed),
        (_gpu_trace.DeviceSynchronizationCallbacks, lambda: recorder.sync(device=device())),
        (
            _gpu_trace.StreamSynchronizationCallbacks,
            lambda stream: recorder.sync(streams=[actor_of(stream)]),
        ),
        (
            _gpu_trace.EventSynchronizationCallbacks,
            lambda event: recorder.sync(event=event, streams=()),
        ),
    ]
    for registry, callback in hooks:
        registry.add_callback(callback)
        stack.callback(registry.callback_list.remove, callback)


def _patch_waits(patches: Patches, recorder: Recorder) -> None:
    """Time what blocks the host, and take a poll that says "done" for a wait."""

    def timed(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def waits(*args: Any, **kwargs: Any) -> Any:
            with recorder.deferring():
                return original(*args, **kwargs)

        patches.set(owner, name, waits)

    timed(torch.cuda, "synchronize")
    timed(torch.cuda.Stream, "synchronize")
    timed(torch.cuda.Event, "synchronize")
    query_event, query_stream = torch.cuda.Event.query, torch.cuda.Stream.query

    def event_done(event: Any) -> Any:
        done = query_event(event)
        if done and event.cuda_event:
            recorder.sync(event=event.cuda_event, streams=())
        return done

    def stream_done(stream: Any) -> Any:
        done = query_stream(stream)
        if done:
            actor = recorder.recording.stream(recorder.platform.key_of(stream))
            recorder.sync(streams=[actor])
        return done

    patches.set(torch.cuda.Event, "query", event_done)
    patches.set(torch.cuda.Stream, "query", stream_done)

    native, platform = torch.cuda.Stream.__init__, recorder.platform
    takes_arguments = "__init__" in vars(torch.cuda.Stream)

    def made(stream: Any, *args: Any, **kwargs: Any) -> None:
        if takes_arguments:
            native(stream, *args, **kwargs)
        if "stream_id" not in kwargs:
            key, is_blocking = platform.key_of(stream), platform.is_blocking(stream)
            recorder.recording.stream(key, is_blocking)

    patches.set(torch.cuda.Stream, "__init__", made)


def _patch_graphs(patches: Patches, recorder: Recorder) -> None:
    recording, graph = recorder.recording, torch.cuda.CUDAGraph
    end_name = "capture_end_pre" if hasattr(graph, "capture_end_pre") else "capture_end"
    begin, end, replay, reset = (
        getattr(graph, name) for name in ("capture_begin", end_name, "replay", "reset")
    )

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        recording.begin_capture(id(self), recorder.stream())

    def capture_end(self: Any) -> None:
        recording.end_capture(id(self))
        end(self)

    def replayed(self: Any) -> None:
        actor, at = recorder.stream(), recording.sites.here()
        with recording.lock:
            if recorder.is_enabled:
                recorder.take_back()
                recording.replay(id(self), actor, at)
        replay(self)

    def forgotten(self: Any) -> None:
        recording.forget_graph(id(self))
        reset(self)

    patches.set(graph, "capture_begin", capture_begin)
    patches.set(graph, end_name, capture_end)
    patches.set(graph, "replay", replayed)
    patches.set(graph, "reset", forgotten)


def _patch_memory(patches: Patches, recorder: Recorder) -> None:
    """Note ``record_stream`` also where its caller keeps it from the dispatcher, as FSDP does.

    A tensor that is handed over by DLPack may be a part of another one.
    """
    native = torch.Tensor.record_stream

    def record_stream(self: Any, stream: Any) -> None:
        recorder.record_stream(self, stream)
        native(self, stream)

    patches.set(torch.Tensor, "record_stream", record_stream)
    use_pool = torch.cuda.use_mem_pool

    @contextmanager
    def allocating_from(pool: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        with use_pool(pool, *args, **kwargs), recorder.allocating_from(pool.id):
            yield

    for owner in (torch.cuda, torch.cuda.memory):
        patches.set(owner, "use_mem_pool", allocating_from)
    from_dlpack = torch.from_dlpack

    def take_over(*args: Any, **kwargs: Any) -> Any:
        recorder.share_blocks()
        return from_dlpack(*args, **kwargs)

    for owner in (torch, torch.utils.dlpack):
        patches.set(owner, "from_dlpack", take_over)


def _patch_reads(patches: Patches, recorder: Recorder) -> None:
    """Record how the host uses memory of tensors without the dispatcher."""
    numpy, tolist, reduce = (
        getattr(torch.Tensor, name) for name in ("numpy", "tolist", "__reduce_ex__")
    )

    def as_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.traced_array(self, numpy(self, *args, **kwargs))

    def as_list(self: Any) -> Any:
        recorder.host_read("tolist", self)
        return tolist(self)

    def reduced(self: Any, protocol: Any) -> Any:
        recorder.host_read("pickle", self)
        return reduce(self, protocol)

    patches.set(torch.Tensor, "numpy", as_numpy)
    patches.set(torch.Tensor, "tolist", as_list)
    patches.set(torch.Tensor, "__reduce_ex__", reduced)
    names = ("array", "asarray", "asanyarray", "ascontiguousarray", "frombuffer", "from_dlpack")
    others = (np.ctypeslib, "as_array"), (np.lib.stride_tricks, "as_strided")
    converters = [*((np, name) for name in names), *others, (torch, "frombuffer")]
    for owner, name in converters:
        native = getattr(owner, name)
        patches.set(owner, name, converting(native, torch.Tensor, recorder.adopted))
    patch_buffers(patches, recorder.host_access)


def _patch_backward(patches: Patches, recorder: Recorder) -> None:
    """Let what threads of the engine do have the stack of the call of the backward pass."""
    sites, threads = recorder.recording.sites, recorder.threads

    def located(native: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before, sites.outside = sites.outside, sites.here()
            caller = threads.calls_engine() if threads is not None else None
            try:
                return native(*args, **kwargs)
            finally:
                sites.outside = before
                if threads is not None and caller is not None:
                    threads.returned(caller)

        return call

    for name in ("backward", "grad"):
        patches.set(torch.autograd, name, located(getattr(torch.autograd, name)))


def _patch_threads(patches: Patches, recorder: Recorder) -> None:
    run = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(thread: Any) -> None:
        with DispatchMode(recorder.op) if recorder.is_enabled else nullcontext():
            run(thread)

    patches.set(threading.Thread, "_bootstrap_inner", bootstrap)
    if recorder.threads is not None:
        recorder.threads.patch(patches)
