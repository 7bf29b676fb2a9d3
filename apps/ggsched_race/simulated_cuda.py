"""Streams, events and graphs of a simulation, and the functions of ``torch.cuda`` that use them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import torch
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import _disable_current_modes

from ggsched_race.ops import restored, stored, tensors_in


class Device(Protocol):
    """What streams, events and graphs need of a simulation.

    Attributes:
        default: What work goes to where no stream is chosen.
        capturing: The graph that is being captured.
    """

    default: "SimulatedStream"
    capturing: "SimulatedGraph | None"

    def handle(self) -> int:
        """Return a new handle, of a stream or an event."""

    def current(self) -> "SimulatedStream":
        """Return the calling thread's stream."""

    def set_current(self, stream: "SimulatedStream") -> None:
        """Let the calling thread use a stream."""

    def refuse_in_capture(self) -> None:
        """Raise if a graph is being captured."""

    def register(self, address: int, nbytes: int, flags: int = 0) -> int:
        """Let memory of the host be pinned where it is."""

    def unregister(self, address: int) -> int:
        """Undo ``register``."""

    def allocating_from(self, pool: Any, device: Any = None) -> AbstractContextManager[None]:
        """Let the calling thread allocate from a pool."""


class SimulatedStream:
    """A stream; what it is given is done at once.

    Attributes:
        cuda_stream: Its handle; 0 for the default stream.
    """

    cuda: ClassVar[Device]

    def __init__(
        self, device: Any = None, priority: int = 0, *, stream_ptr: int | None = None
    ) -> None:
        del device
        self.cuda_stream = self.cuda.handle() if stream_ptr is None else stream_ptr
        self.priority = priority
        self.stream_id = self.cuda_stream
        self.device = torch.device("cuda", 0)
        self.device_index = 0
        self._outer: list[SimulatedStream] = []

    def wait_event(self, event: "SimulatedEvent") -> None:
        """Let later work wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: "SimulatedStream") -> None:
        """Let later work wait for all that another stream has so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: "SimulatedEvent | None" = None) -> "SimulatedEvent":
        """Record an event, a new one if none is given."""
        event = event or torch.cuda.Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Return True: all work is done when it is called."""
        return True

    def is_capturing(self) -> bool:
        """Return whether a graph is being captured."""
        return self.cuda.capturing is not None

    def synchronize(self) -> None:
        """Let the host wait."""
        self.cuda.refuse_in_capture()
        _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(self.cuda_stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedStream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self) -> "SimulatedStream":
        self._outer.append(self.cuda.current())
        self.cuda.set_current(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.cuda.set_current(self._outer.pop())


class SimulatedEvent:
    """An event.

    Attributes:
        cuda_event: Its handle; 0 until it is recorded.
    """

    cuda: ClassVar[Device]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs  # timing, and how the host waits
        self.cuda_event = 0
        self.device = torch.device("cuda", 0)

    def record(self, stream: SimulatedStream | None = None) -> None:
        """Let the event stand for all that a stream has so far."""
        if not self.cuda_event:
            self.cuda_event = self.cuda.handle()
            _gpu_trace.EventCreationCallbacks.fire_callbacks(self.cuda_event)
        handle = (stream or self.cuda.current()).cuda_stream
        _gpu_trace.EventRecordCallbacks.fire_callbacks(self.cuda_event, handle)

    def wait(self, stream: SimulatedStream | None = None) -> None:
        """Let later work of a stream wait for the event."""
        if self.cuda_event:
            handle = (stream or self.cuda.current()).cuda_stream
            _gpu_trace.EventWaitCallbacks.fire_callbacks(self.cuda_event, handle)

    def query(self) -> bool:
        """Return True: all work is done when it is called."""
        return True

    def synchronize(self) -> None:
        """Let the host wait."""
        self.cuda.refuse_in_capture()
        if self.cuda_event:
            _gpu_trace.EventSynchronizationCallbacks.fire_callbacks(self.cuda_event)

    def elapsed_time(self, end_event: "SimulatedEvent") -> float:
        """Return 0: times are not simulated."""
        del end_event
        return 0.0

    def __del__(self) -> None:
        if self.cuda_event:
            _gpu_trace.EventDeletionCallbacks.fire_callbacks(self.cuda_event)


class SimulatedGraph:
    """A graph: ops that are called again, and what they wrote during the capture, undone.

    Attributes:
        pool_id: What its memory is from.
    """

    cuda: ClassVar[Device]

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self.pool_id: object = None
        self._calls: list[tuple[Any, Sequence[Any], dict[str, Any], Any]] = []
        self._before: dict[int, tuple[Any, Any]] = {}

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        """Collect ops from here on."""
        del capture_error_mode
        self.cuda.refuse_in_capture()
        self.pool_id = pool or (0, self.cuda.handle())
        self.cuda.capturing = self

    def capture_end(self) -> None:
        """Undo what the capture has written to memory that existed before."""
        self.cuda.capturing = None
        with _disable_current_modes():
            for storage, content in self._before.values():
                storage.copy_(content)
        self._before.clear()

    def before(self, func: Any, inputs: Sequence[Any]) -> None:
        """Keep the content of memory that an op is about to write."""
        if not func._schema.is_mutable:
            return
        for tensor in inputs:
            storage = tensor.untyped_storage()
            if id(storage) not in self._before:
                with _disable_current_modes():
                    self._before[id(storage)] = storage, storage.clone()

    def collected(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Add an op."""
        self._calls.append((func, stored(args), kwargs, out))

    def replay(self) -> None:
        """Call the ops again; results go to the memory of the first ones."""
        with _disable_current_modes():
            for func, args, kwargs, out in self._calls:
                try:
                    again = func(*restored(args), **kwargs)
                except LookupError:  # a real graph computes with whatever is there now
                    continue
                for new, old in zip(tensors_in(again), tensors_in(out), strict=True):
                    if new.shape == old.shape and not _is_same_memory(new, old):
                        torch.ops.aten.copy_.default(old, new)

    def reset(self) -> None:
        """Forget everything."""
        self._calls.clear()

    def pool(self) -> object:
        """Return what its memory is from."""
        return self.pool_id


def _is_same_memory(a: Any, b: Any) -> bool:
    return a is b or bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def device_functions(cuda: Device) -> Iterator[tuple[Any, str, Any]]:
    """Yield (owner, name, value) of everything that is replaced in ``torch.cuda``."""
    native = torch.cuda

    @contextmanager
    def stream(stream: SimulatedStream | None) -> Iterator[None]:
        with stream or nullcontext():
            yield

    @contextmanager
    def graph(
        cuda_graph: SimulatedGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        **more: Any,
    ) -> Iterator[None]:
        del more  # annotations, and whether inputs are watched
        synchronize()
        with native.stream(stream or capture_stream):
            cuda_graph.capture_begin(pool=pool, capture_error_mode=capture_error_mode)
            try:
                yield
            finally:
                cuda_graph.capture_end()

    def synchronize(device: Any = None) -> None:
        del device
        cuda.refuse_in_capture()
        _gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()

    capture_stream = SimulatedStream(stream_ptr=cuda.handle())
    facts = SimpleNamespace(
        name="simulated", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132
    )
    classes = {"Stream": SimulatedStream, "Event": SimulatedEvent, "CUDAGraph": SimulatedGraph}
    profiler = dict.fromkeys(("cudaProfilerStart", "cudaProfilerStop"), lambda: 0)
    runtime = SimpleNamespace(
        cudaHostRegister=cuda.register, cudaHostUnregister=cuda.unregister, **profiler
    )
    functions = {
        "ExternalStream": lambda stream_ptr, device=None: SimulatedStream(stream_ptr=stream_ptr),
        "stream": stream,
        "StreamContext": stream,
        "graph": graph,
        "synchronize": synchronize,
        "current_stream": lambda device=None: cuda.current(),
        "default_stream": lambda device=None: cuda.default,
        "set_stream": cuda.set_current,
        "graph_pool_handle": lambda: (0, cuda.handle()),
        "is_current_stream_capturing": lambda: cuda.capturing is not None,
        "MemPool": lambda *args, **kwargs: SimpleNamespace(id=(0, cuda.handle())),
        "use_mem_pool": cuda.allocating_from,
        "cudart": lambda: runtime,
        "_sleep": lambda cycles: None,
        "device": nullcontext,
        "device_of": nullcontext,
    }
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": "simulated",
        "get_device_capability": (9, 0),
        "get_device_properties": facts,
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
        "mem_get_info": (80 << 30, 80 << 30),
        "is_initialized": True,
        "is_bf16_supported": True,
        **dict.fromkeys(
            ("_lazy_init", "init", "set_device", "empty_cache", "ipc_collect", "manual_seed"),
        ),
        **dict.fromkeys(
            ("manual_seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated")
        ),
    }
    yield from ((kind, "cuda", cuda) for kind in classes.values())
    yield from ((native, name, value) for name, value in (*classes.items(), *functions.items()))
    yield from ((native, name, _answering(value)) for name, value in answers.items())
    for name in ("synchronize", "current_stream", "set_stream"):
        yield torch.accelerator, name, functions[name]
    for name in ("is_available", "device_count"):
        yield torch.accelerator, name, _answering(answers[name])
    yield torch.accelerator, "current_accelerator", _answering(torch.device("cuda"))
    yield torch.backends.cudnn, "is_acceptable", _answering(False)
    yield from ((native.streams, name, classes[name]) for name in ("Stream", "Event"))
    yield from ((torch, name, classes[name]) for name in ("Stream", "Event"))
    yield native.graphs, "CUDAGraph", SimulatedGraph
    yield native.graphs, "graph", graph


def _answering(value: Any) -> Any:
    return lambda *args, **kwargs: value
