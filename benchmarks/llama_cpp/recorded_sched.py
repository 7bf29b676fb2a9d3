"""What llama.cpp's scheduler enqueues, recorded on devices of ours and judged by the checker.

    pip install llama-cpp-python        # with ggml 0.25
    python -m benchmarks.llama_cpp.recorded_sched tests/data/oracle/*-tiny-f32.gguf

The devices are interfaces of ggml filled with callbacks. A callback lets the CPU carry the call out
at once, and records it as ggml's CUDA backend enqueues it: copies between devices are made by the
stream of the source, the stream of the target waits for them, and copies without ``async`` are
made by the host.
"""

import argparse
import ctypes
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ggsched.sanitize import check_trace
from ggsched.sanitize.report import Report
from ggsched.trace.export import write_trace
from ggsched.trace.schema import Access, Actor, Alloc, Entry, Free, Record, Sync, Trace, Wait, Work
from ggsched_ggml.driver import CODES, Handle, Library, Props, Tensor, find_library, loaded

HOST: Final = 0
_MEMORY_NBYTES: Final = 1 << 30
_VIEWS: Final = {b"NONE", b"RESHAPE", b"VIEW", b"PERMUTE", b"TRANSPOSE"}
_GPU: Final = 1

BUFFER_TYPE: Final = (
    "get_name:pp alloc_buffer:ppz get_alignment:zp get_max_size:zp get_alloc_size:zpp is_host:bp"
)
BUFFER: Final = (
    "free_buffer:vp get_base:pp init_tensor:ipp memset_tensor:vppizz set_tensor:vpppzz"
    " get_tensor:vpppzz set_tensor_2d:v get_tensor_2d:v cpy_tensor:bppp clear:vpi reset:vp"
)
BACKEND: Final = (
    "get_name:pp free:vp set_tensor_async:vpppzz get_tensor_async:vpppzz set_tensor_2d_async:v"
    " get_tensor_2d_async:v cpy_tensor_async:bpppp synchronize:vp graph_plan_create:p"
    " graph_plan_free:v graph_plan_update:v graph_plan_compute:i graph_compute:ipp"
    " event_record:vpp event_wait:vpp graph_optimize:v"
)
DEVICE: Final = (
    "get_name:pp get_description:pp get_memory:vppp get_type:ip get_props:vpp init_backend:pps"
    " get_buffer_type:pp get_host_buffer_type:pp buffer_from_host_ptr:p supports_op:bpp"
    " supports_buft:bpp offload_op:bpp event_new:pp event_free:vpp event_synchronize:vpp"
)
REGISTRY: Final = "get_name:pp get_device_count:zp get_device:ppz get_proc_address:pps"
"""Interfaces of ``ggml-backend-impl.h`` (API version 2): names and types, see ``driver.CODES``."""

MORE: Final = {
    "ggml_graph_n_nodes": "ip", "ggml_graph_node": "ppi", "ggml_op_desc": "sp",
    "ggml_backend_cpu_init": "p", "ggml_backend_dev_by_type": "pi",
    "ggml_backend_graph_compute": "ipp", "ggml_backend_cpu_set_n_threads": "vpi",
}  # fmt: skip


class Placement(NamedTuple):
    """Where a model's layers are: number of devices, ``-ngl``, and whether devices have events."""

    name: str
    devices: int
    layers: int
    events: bool = True


PLACEMENTS: Final = (
    Placement("one GPU and the CPU (-ngl 2)", 1, 2),
    Placement("two GPUs, pipelined", 2, 99),
    Placement("two GPUs without events", 2, 99, events=False),
)


def judge(trace: Trace, first: int = 0) -> tuple[Report, list[int]]:
    """Return what the checker says, and numbers of records from one on.

    The numbers: splits; waits of the host, and how many of them are not needed; the same of waits
    of streams. They mean nothing where the order is wrong.
    """
    report = check_trace(trace, advice=True)
    needless = {f.command for f in report.advice}
    sums: Counter[str] = Counter()
    for i, entry in enumerate(trace.entries[first:], first):
        kind = type(entry).__name__
        sums.update({kind: 1, f"needless {kind}": i in needless})
        sums["splits"] += isinstance(entry, Work) and entry.label.startswith("split")
    return report, [sums[n] for n in ("splits", "Sync", "needless Sync", "Wait", "needless Wait")]


def mended(trace: Trace) -> Trace:
    """Return a trace in which the stream that copies into an input waits for the one that reads it.

    llama.cpp lets the stream that reads wait for itself.
    """
    entries = list(trace.entries)
    for i, (entry, after) in enumerate(pairwise(entries)):
        if isinstance(entry, Wait) and isinstance(after, Work) and after.is_copy:
            entries[i] = msgspec.structs.replace(entry, actor=after.actor)
    return msgspec.structs.replace(trace, entries=tuple(entries))


class Recorder:
    """Devices whose calls are recorded.

    Args:
        library: The library that the scheduler is of.
        symbols: It as such, for functions that the plug-in does not use.

    Attributes:
        entries: What was recorded.
        devices: Their handles.
    """

    def __init__(self, library: Library, symbols: Any, placement: Placement) -> None:
        self._library, self._symbols = library, symbols
        self._kept: list[Any] = []
        for name, signature in MORE.items():
            library.take(symbols, name, signature)
        self._events = placement.events
        self.actors = [Actor(HOST, "host", "host")]
        self.entries: list[Entry] = [
            Alloc(HOST, 0, "host memory", 1 << 62, is_defined=True, is_unsafe=False)
        ]
        self._buffers: dict[Handle, tuple[int, int, Any]] = {}
        self._streams: dict[Handle, int] = {}
        self._numbers: dict[Handle, int] = {}
        self._made = 0
        self._cpu = library.ggml_backend_cpu_init()
        library.ggml_backend_cpu_set_n_threads(self._cpu, 1)
        self._host = library.ggml_backend_dev_by_type(0)
        self.devices = [self._device(f"REC{i}") for i in range(placement.devices)]

    # --- what is recorded ---

    def add(self, entry: Entry) -> None:
        """Record a call."""
        self.entries.append(entry)

    def access(self, address: int, nbytes: int) -> Access:
        """Return bytes by their place in a buffer of a device, or else in host memory."""
        for base, (memory, size, _) in self._buffers.items():
            if base <= address < base + size:
                return Access(memory, address - base, address - base + nbytes)
        return Access(0, address, address + nbytes)

    def tensor(self, handle: Handle) -> Access:
        """Return the bytes of a tensor."""
        return self.access(Tensor.from_address(handle).data or 0, self._library.ggml_nbytes(handle))

    def _move(self, actor: int, label: str, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)
        reads, writes = (self.access(source, nbytes),), (self.access(target, nbytes),)
        is_copy = actor != HOST
        self.add(Work(actor, label, HOST, reads=reads, writes=writes, is_copy=is_copy))

    def _compute(self, actor: int, graph: Handle) -> int:
        """Compute a split, which is one piece of work."""
        library, reads, writes, names = self._library, [], [], []
        for i in range(library.ggml_graph_n_nodes(graph)):
            node = library.ggml_graph_node(graph, i)
            if library.ggml_op_desc(node) in _VIEWS:
                continue
            tensor = Tensor.from_address(node)
            names.append(tensor.name.decode())
            reads += [self.tensor(source) for source in tensor.src if source]
            writes.append(self.tensor(node))
        if names:
            label = f"split {names[0]} to {names[-1]}"
            self.add(Work(actor, label, HOST, tuple(set(reads)), tuple(set(writes))))
        status: int = library.ggml_backend_graph_compute(self._cpu, graph)
        return status

    # --- interfaces ---

    def _interface(self, names: str, /, **functions: Callable[..., Any]) -> Any:
        """Return a structure of callbacks, and of null pointers where there is none."""
        kinds = {
            name: ctypes.CFUNCTYPE(*(CODES[code] for code in codes))
            for name, _, codes in (text.partition(":") for text in names.split())
        }
        before: dict[str, tuple[str, Any]] = {
            BACKEND: ("guid", ctypes.c_void_p),
            REGISTRY: ("version", ctypes.c_int32),
        }
        after = [] if names == BUFFER else [(n, ctypes.c_void_p) for n in ("device", "context")]
        first = [before[names]] if names in before else []
        fields = [*first, *kinds.items(), *after]
        callbacks = {name: kinds[name](function) for name, function in functions.items()}
        made = type("Interface", (ctypes.Structure,), {"_fields_": fields})(**callbacks)
        self._kept.append(made)
        return made

    def _text(self, text: str) -> Callable[..., int]:
        kept = ctypes.create_string_buffer(text.encode())
        self._kept.append(kept)
        return lambda *_: ctypes.addressof(kept)

    def _device(self, name: str) -> Handle:
        library = self._library
        named = self._text(name)

        def set_memory(_: Handle, free: Handle, total: Handle) -> None:
            for address in (free, total):
                ctypes.c_size_t.from_address(address).value = _MEMORY_NBYTES

        def set_props(_: Handle, address: Handle) -> None:
            made = Props(
                ctypes.string_at(named()), b"records", _MEMORY_NBYTES, _MEMORY_NBYTES, _GPU,
                is_async=True, events=self._events,
            )  # fmt: skip
            ctypes.memmove(address, ctypes.addressof(made), Props.later.offset + 1)

        device = self._interface(
            DEVICE,
            get_name=named,
            get_description=named,
            get_memory=set_memory,
            get_type=lambda _: _GPU,
            get_props=set_props,
            init_backend=lambda *_: self._backend(named, ctypes.addressof(device)),
            get_buffer_type=lambda _: ctypes.addressof(kind),
            supports_op=lambda _, node: library.ggml_backend_dev_supports_op(self._host, node),
            supports_buft=lambda _, other: other == ctypes.addressof(kind),
            event_new=lambda handle: self._event(handle),
            event_free=lambda *_: None,
            event_synchronize=lambda _, e: self.add(Sync(HOST, event=self._numbers[e])),
        )
        kind = self._interface(
            BUFFER_TYPE,
            get_name=named,
            alloc_buffer=lambda this, size: self._buffer(named, this, size),
            get_alignment=lambda _: 64,
            is_host=lambda _: False,
        )
        kind.device = ctypes.addressof(device)
        registry = self._interface(
            REGISTRY,
            get_name=named,
            get_device_count=lambda _: 1,
            get_device=lambda *_: ctypes.addressof(device),
            get_proc_address=lambda *_: None,
        )
        registry.version = 2
        device.device = ctypes.addressof(registry)  # the member is ``reg`` there
        return ctypes.addressof(device)

    def _event(self, device: Handle) -> Handle | None:
        if not self._events:
            return None
        made = (ctypes.c_void_p * 2)(device, 0)
        self._kept.append(made)
        self._numbers[ctypes.addressof(made)] = len(self._numbers)
        return ctypes.addressof(made)

    def _buffer(self, named: Callable[..., int], kind: Handle, size: int) -> Handle:
        size = max(size, 64)
        memory = (ctypes.c_char * (size + 64))()
        base = -(-ctypes.addressof(memory) // 64) * 64
        self._made += 1
        number = self._made
        self._buffers[base] = number, size, memory
        name = f"{ctypes.string_at(named()).decode()} buffer {number}"
        self.add(Alloc(HOST, number, name, size, is_defined=True, is_unsafe=False))

        def at(tensor: Handle, offset: int) -> int:
            return int(Tensor.from_address(tensor).data) + offset

        def copy(_: Handle, source: Handle, target: Handle) -> bool:
            start = at(source, 0)
            if not self.access(start, 1).memory:
                return False
            nbytes = self._library.ggml_nbytes(source)
            self._move(HOST, "copy", at(target, 0), start, nbytes)
            return True

        def fill(start: int, value: int, nbytes: int) -> None:
            ctypes.memset(start, value, nbytes)
            self.add(Work(HOST, "fill", writes=(self.access(start, nbytes),)))

        def free(_: Handle) -> None:
            self.add(Free(HOST, number))
            del self._buffers[base]

        made = self._interface(
            BUFFER,
            free_buffer=free,
            get_base=lambda _: base,
            memset_tensor=lambda _, t, value, offset, n: fill(at(t, offset), value, n),
            set_tensor=lambda _, t, data, o, n: self._move(HOST, "set", at(t, o), data, n),
            get_tensor=lambda _, t, data, o, n: self._move(HOST, "get", data, at(t, o), n),
            cpy_tensor=copy,
            clear=lambda _, value: fill(base, value, size),
        )
        init = self._symbols.ggml_backend_buffer_init
        init.restype = ctypes.c_void_p
        init.argtypes = [ctypes.c_void_p, type(made), ctypes.c_void_p, ctypes.c_size_t]
        return int(init(kind, made, None, size))

    def _backend(self, named: Callable[..., int], device: Handle) -> Handle:
        library, at = self._library, ctypes.addressof
        actor = len(self.actors)
        self.actors.append(Actor(actor, ctypes.string_at(named()).decode(), "stream", str(actor)))
        copied = len(self._numbers)
        self._numbers[-actor] = copied

        def data(tensor: Handle) -> int:
            return int(Tensor.from_address(tensor).data)

        def copy(source: Handle, target: Handle, src: Handle, dst: Handle) -> bool:
            if source not in self._streams or target not in self._streams:
                return False
            here, there = self._streams[source], self._streams[target]
            self._move(here, "copy", data(dst), data(src), library.ggml_nbytes(src))
            if here != there:
                self.add(Record(here, self._numbers[-here], HOST))
                self.add(Wait(there, self._numbers[-here], HOST))
            return True

        made = self._interface(
            BACKEND,
            get_name=named,
            free=lambda _: None,
            set_tensor_async=lambda _, t, d, o, n: self._move(actor, "set", data(t) + o, d, n),
            get_tensor_async=lambda _, t, d, o, n: self._move(actor, "get", d, data(t) + o, n),
            cpy_tensor_async=copy,
            synchronize=lambda _: self.add(Sync(HOST, stream=actor)),
            graph_compute=lambda _, graph: self._compute(actor, graph),
            event_record=lambda _, e: self.add(Record(actor, self._numbers[e], HOST)),
            event_wait=lambda _, e: self.add(Wait(actor, self._numbers[e], HOST)),
        )
        guid = ctypes.create_string_buffer(named.__name__.encode(), 16)
        self._kept.append(guid)
        made.guid, made.device = at(guid), device
        self._streams[at(made)] = actor
        return at(made)

    @contextmanager
    def cpu_recorded(self) -> Iterator[None]:
        """Let backends of the CPU that are made meanwhile record what they compute."""
        device = _Device.from_address(self._host)
        original = device.init_backend
        make = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
        compute = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        recorded = compute(lambda _, graph: self._compute(HOST, graph))

        def init(handle: Handle, text: bytes | None) -> Handle:
            made = make(original)(handle, text)
            _Backend.from_address(made).graph_compute = ctypes.cast(recorded, ctypes.c_void_p).value
            return int(made)

        patched = make(init)
        self._kept += [recorded, patched]
        device.init_backend = ctypes.cast(patched, ctypes.c_void_p).value
        try:
            yield
        finally:
            device.init_backend = original


def _plain(names: str, *before: str) -> type[ctypes.Structure]:
    members = (*before, *(text.partition(":")[0] for text in names.split()))
    fields = [(name, ctypes.c_void_p) for name in members]
    return type("Plain", (ctypes.Structure,), {"_fields_": fields})


_Device: Final[Any] = _plain(DEVICE)
_Backend: Final[Any] = _plain(BACKEND, "guid")


def record(path: Path, placement: Placement, ubatch: int = 256) -> tuple[Trace, int]:
    """Return what llama.cpp enqueues for six micro-batches and four tokens, and its first record.

    Each micro-batch sees more tokens than the one before, so no graph is used again: llama.cpp
    would wait for all devices first.
    """
    llama: Any = importlib.import_module("llama_cpp")
    recorder = Recorder(loaded(), ctypes.CDLL(str(find_library())), placement)
    log = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(log, None)
    devices = (ctypes.c_void_p * (len(recorder.devices) + 1))(*recorder.devices)
    options = llama.llama_model_default_params()
    options.devices = ctypes.addressof(devices)
    options.n_gpu_layers, options.use_extra_bufts = placement.layers, False
    sizes = llama.llama_context_default_params()
    sizes.n_ctx, sizes.n_ubatch = 8 * ubatch, ubatch
    sizes.n_threads = sizes.n_threads_batch = 1
    with recorder.cpu_recorded():
        model = llama.llama_model_load_from_file(str(path).encode(), options)
        context = llama.llama_init_from_model(model, sizes)
    first, tokens = len(recorder.entries), [i % 97 for i in range(6 * ubatch)]
    for _ in range(5):
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if llama.llama_decode(context, llama.llama_batch_get_one(array, len(tokens))):
            raise SystemExit(f"{path}: llama_decode fails")
        logits = llama.llama_get_logits_ith(context, -1)
        count = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        seen = recorder.access(ctypes.addressof(logits.contents), 4 * count)
        recorder.add(Work(HOST, "logits", reads=(seen,)))
        tokens = [max(range(count), key=logits.__getitem__)]
    entries = tuple(recorder.entries)
    llama.llama_free(context)
    llama.llama_model_free(model)
    name = f"{path.stem}, {placement.name}"
    return Trace(name, tuple(recorder.actors), entries, events="latest"), first


def main() -> None:
    """Print a row for each model and placement, and what is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--traces", type=Path, help="folder for the traces")
    options = parser.parse_args()
    for path, placement in product(options.models, PLACEMENTS):
        trace, first = record(path, placement)
        report, numbers = judge(trace, first)
        if not report.is_clean:
            sys.stdout.write(report.to_text() + "\nwith the waits of copies on their streams:\n")
            report, numbers = judge(mended(trace), first)
        row = (trace.name, *numbers, f"{len(report.findings)} findings")
        sys.stdout.write(" | ".join(map(str, row)) + "\n")
        if options.traces:
            write_trace(trace, options.traces / f"{trace.name}.jsonl")


if __name__ == "__main__":
    main()
