"""The recorder of a PyTorch program: what each op touches, on which stream.

A dispatch mode sees every op below autograd, also in the threads of backward passes. Hooks (see
``pytorch_hooks``) report events, waits and allocations; those that come from inside an op, such as
the wait of a blocking copy, are recorded after the op.
"""

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from itertools import chain
from time import perf_counter
from types import FrameType
from typing import Any, Final, Protocol, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ggsched_race.blocks import Block, Blocks
from ggsched_race.byte_runs import Run, Runs, strided_runs
from ggsched_race.collectives import group_of
from ggsched_race.foreign_array import ForeignArray, shared_array
from ggsched_race.host_memory import HostMemory, TracedArray, array_runs
from ggsched_race.host_threads import HostThreads
from ggsched_race.ops import (
    Chosen,
    Op,
    StoredView,
    Table,
    dense,
    op_of,
    stored,
    table_of,
    tensors_in,
)
from ggsched_race.recording import (
    HOST,
    LEGACY_HANDLES,
    Bytes,
    Recording,
    RowChooser,
    StreamKey,
)

_runs: Final = lru_cache(1 << 14)(strided_runs)


class Platform(Protocol):
    """CUDA, or what stands for it."""

    def device_of(self, tensor: Any) -> int | None:
        """Return the device of a tensor; None for the host."""

    def address(self, storage: Any) -> int:
        """Return the address of device memory."""

    def is_pinned(self, tensor: Any) -> bool:
        """Whether a device can access a tensor of the host."""

    def stream(self, device: int | None) -> StreamKey:
        """Return the key of the calling thread's stream; None is for its device."""

    def key_of(self, stream: Any) -> StreamKey:
        """Return the key of a stream object."""

    def is_blocking(self, stream: Any) -> bool:
        """Whether a stream follows the legacy default stream, as none of PyTorch's own does."""

    def before_op(self) -> None:
        """Let the stream wait as the engine of a backward pass does."""

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an op."""

    def launch(self, native: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what launches a kernel that is no op."""

    def wait_for_all(self) -> None:
        """Let the host wait for the devices, so that ids can be read."""


class _Local(threading.local):
    """State of a thread.

    Attributes:
        deferred: Records from inside a call, which follow the record of the call; each with the
            actor that waits by it, or None.
        is_reading: Whether the recorder itself uses PyTorch.
        is_in_op: Whether an op is under way.
        site: Number of the stack of the op that is recorded; below zero until it is looked for,
            None where there is no op.
        frame: Where the program called that op, or within this package.
        pool: Of which pool of memory blocks are; None is the usual one.
    """

    deferred: list[tuple[Callable[[float | None], None], int | None]] | None = None
    is_reading: bool = False
    is_in_op: bool = False
    site: int | None = None
    frame: FrameType | None = None
    pool: object = None


class Recorder:
    """Records ops.

    Args:
        recording: Where records go.
        platform: CUDA, or what stands for it.
        rows: Whether to read ids, so that the rows that they choose are known.
        threads: How threads of the host hand over; None where they are one actor.

    Attributes:
        is_enabled: Whether calls are recorded; those of a forked process are not.
        blocks: Blocks of the allocator.
        host: Pinned memory.
        pointer: Returns the address of a tensor's first element.
    """

    def __init__(
        self,
        recording: Recording,
        platform: Platform,
        rows: bool = True,
        threads: HostThreads | None = None,
    ) -> None:
        self.recording, self.threads = recording, threads
        self.platform = platform
        self.is_enabled = True
        os.register_at_fork(after_in_child=partial(_stop, weakref.ref(self)))
        self._rows, self.pointer = rows, torch.Tensor.data_ptr
        self.blocks = Blocks(self._add_block)
        self.host = HostMemory()
        self._local = _Local()
        self._ops: dict[int, tuple[Any, Op]] = {}
        self._pinned: dict[int, int] = {}
        self._views: list[Any] = []
        self._given: deque[int | tuple[int, StreamKey, object, int]] = deque()
        """Addresses that were freed; and of those given out also stream, pool and thread."""
        self._unfollowed: deque[int] = deque()

    @property
    def is_inside(self) -> bool:
        """Whether what is called now is a part of an op, or is not recorded at all."""
        return not self.is_enabled or self._local.is_reading or self._local.is_in_op

    def end(self) -> None:
        """Record what has changed sources of queued copies, and nothing more."""
        if self.is_enabled:
            with self.recording.lock:
                self._notice_changes(self.recording.sites.here())
        self.is_enabled = False
        if self.threads is not None:
            self.threads.stop()

    # --- ops --------------------------------------------------------------------------------------

    def op(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an op and record it."""
        known, local, run = self._ops.get(id(func)), self._local, self.platform.run
        if known is None:  # the hash of an overload is a call of Python
            known = self._ops[id(func)] = func, op_of(func)
        op = known[1]
        if op.kind == "view" or local.is_reading or not self.is_enabled:
            return run(func, args, kwargs)
        self.platform.before_op()
        outer = None
        if local.deferred is None:
            local.deferred, outer = [], perf_counter()
        local.site, local.frame = -1, sys._getframe(1)
        try:
            local.is_in_op = True
            try:
                result = run(func, args, kwargs)
            finally:
                local.is_in_op = False
            self._called(op, args, kwargs, result, outer)
            return result
        finally:
            local.site = local.frame = None
            if outer is not None:
                self._end_deferring(outer)

    def _called(
        self,
        op: Op,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        start_s: float | None,
    ) -> None:
        """Record an op that was called.

        Args:
            start_s: When; None within another call.
        """
        try:
            if op.pins or (kwargs and kwargs.get("pin_memory")):
                self._pinned[result.untyped_storage().data_ptr()] = self._site()
            if op.kind != "none" or self._given:
                with self.recording.lock:
                    if self._given or self._unfollowed or self.blocks.has_gone:
                        self.take_back()
                    if op.waits_first and start_s is not None:
                        self._record_deferred(start_s)
                    if op.kind == "plain":
                        self._plain(op, args, kwargs, result)
                    elif op.kind != "none":
                        self._record(op, args, kwargs, result)
        except Exception:  # sparse tensors are recorded as those that they consist of
            with self.attempting(op.label), self.recording.lock:
                given = [dense(tensors_in(value)) for value in args]
                named = {name: dense(tensors_in(value)) for name, value in kwargs.items()}
                self._plain(op, given, named, dense(tensors_in(result)))

    def _site(self) -> int:
        """Return the number of the calling stack; within an op it is found once."""
        local = self._local
        if local.site is None:
            return self.recording.sites.here()
        if local.site < 0:
            local.site = self.recording.sites.here(local.frame)
        return local.site

    def _end_deferring(self, start_s: float) -> None:
        if self._local.deferred:
            with self.recording.lock:
                self._record_deferred(start_s)
        self._local.deferred = None

    def _record_deferred(self, start_s: float) -> None:
        deferred, self._local.deferred = self._local.deferred, []
        for record, _ in deferred or ():
            record(start_s)

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Let records that are made inside follow what is recorded inside, with the time taken."""
        if self._local.deferred is not None:  # within another call
            yield
            return
        self._local.deferred, start_s = [], perf_counter()
        try:
            yield
        finally:
            self._end_deferring(start_s)

    @contextmanager
    def attempting(self, label: str) -> Iterator[None]:
        """Record what is no op; the program goes on, whatever its arguments are."""
        try:
            yield
        except Exception as error:
            self.recording.notice(f"{label} is not recorded: {first_line(error)}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Use PyTorch without a record of it."""
        local, before = self._local, self._local.is_reading
        local.is_reading = True
        try:
            yield
        finally:
            local.is_reading = before

    def after(self, record: Callable[[float | None], None], waiting: int | None = None) -> None:
        """Make a record now, or after the call that is under way; nothing while reading.

        Args:
            waiting: The stream that waits by it.
        """
        local = self._local
        if not self.is_enabled or local.is_reading:
            return
        if local.deferred is not None:
            local.deferred.append((record, waiting))
        else:
            with self.recording.lock:
                record(None)

    def stream(self, device: int | None = None) -> int:
        """Return the actor of the calling thread's stream, on its device if none is given."""
        return self.recording.stream(self.platform.stream(device))

    def actor_of(self, stream: Any) -> int:
        """Return the actor of a stream: of PyTorch, with ``__cuda_stream__``, or a handle."""
        if hasattr(stream, "cuda_stream"):
            return self.recording.stream(self.platform.key_of(stream))
        handle = stream if isinstance(stream, int) else stream.__cuda_stream__()[1]
        device = self.platform.stream(None)[0]
        return self.recording.stream((device, 0 if handle in LEGACY_HANDLES else handle))

    def _record(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        if op.kind == "record_stream":
            self.record_stream(args[0], args[1])
            return
        at = self._site() if op.kind in ("copy", "to_copy") else -1
        if op.kind == "copy":
            for dst, src in zip(tensors_in(args[0]), tensors_in(args[1]), strict=True):
                self._copy(op, dst, src, at)
        elif op.kind == "to_copy":
            self._copy(op, result, args[0], at)
        else:
            self._collective(op, args, kwargs, result)

    def _collective(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Record a collective: on the stream that the library lets wait inside, if it does."""
        deferred = self._local.deferred or []
        self._note_collective(op, args, kwargs)
        here = self.stream()
        waiting = [k for k, (_, actor) in enumerate(deferred) if actor not in (None, here)]
        if not waiting:
            self._plain(op, args, kwargs, result)
            return
        if op.kind == "copied_collective":
            self._plain(op, args, kwargs, result)
        actor = deferred[waiting[0]][1]
        for record, _ in deferred[: waiting[0] + 1]:
            record(None)
        del deferred[: waiting[0] + 1]
        if op.kind == "collective":
            self._plain(op, args, kwargs, result, actor)
        elif actor is not None:
            work = _Work(self, actor, self.recording.sites.here())
            for tensor in tensors_in(result):
                work.touch(tensor, None, True, True)
            work.emit(op.label)

    def _note_collective(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Let the next record say which collective it is, so that ranks can be compared."""
        group = group_of((*args, *kwargs.values()))
        name = op.label.partition(".")[2]
        if group is not None and not name.startswith(("send", "recv")):
            found = op.arguments(args, kwargs)
            self.recording.collective(*group, name, sum(t.nbytes for _, ts, _ in found for t in ts))

    def _plain(
        self,
        op: Op,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        stream: int | None = None,
    ) -> None:
        """Record an op that is no copy: it runs on the device of its tensors, or on the host.

        Args:
            stream: Where it runs, if not on the calling thread's stream.
        """
        found = op.arguments(args, kwargs)
        outputs = (result,) if isinstance(result, torch.Tensor) else tensors_in(result)
        if found and outputs and op.is_aliasing:
            inputs = {id(t) for _, tensors, _ in found for t in tensors}
            outputs = [t for t in outputs if id(t) not in inputs]
        device, device_of = None, self.platform.device_of
        for tensor in chain.from_iterable((*(tensors for _, tensors, _ in found), outputs)):
            device = device_of(tensor)
            if device is not None:
                break
        if device is None and self.host.is_empty:
            return
        actor = HOST if device is None else self.stream(device) if stream is None else stream
        chosen, chooser = self._chosen(op, args, actor) if op.chosen is not None else (None, None)
        at = self._local.site
        at = self._site() if at is None or at < 0 else at
        work = _Work(self, actor, at, reads_host=not op.is_native)
        work.touch_arguments(found, op, chosen)
        touched: set[int] | None = None
        for tensor in outputs:
            if device is not None and work.write_fresh(tensor):
                continue
            if touched is None:
                touched = {m for m, _, _ in chain(work.reads, work.writes)}
            work.write(tensor, touched)
        work.emit(op.label, is_partial=chosen is not None and not chosen.is_exact, chooser=chooser)

    # --- copies -----------------------------------------------------------------------------------

    def _copy(self, op: Op, dst: Any, src: Any, at: int) -> None:
        """Record a copy; from or to memory that is not pinned the host takes part in it itself."""
        to, origin = self.platform.device_of(dst), self.platform.device_of(src)
        device = origin if origin is not None else to
        if device is None:
            _Work(self, HOST, at).read(src).write(dst).emit(op.label, is_copy=True)
            return
        actor = self.stream(device)
        host = src if origin is None else dst if to is None else None
        is_direct = host is None or self._is_direct(dst, src, host)
        if is_direct and host is not None:
            self._follow(host, at)
        peer = self.stream(to) if to is not None and origin not in (None, to) else None
        if peer is not None:
            self._order(peer, actor, at)
        if host is src and not is_direct:  # staged: the host reads the source in the call
            _Work(self, HOST, at).read(src).emit(op.label)
        work = _Work(self, actor, at, reads_host=True)
        if host is not src or is_direct:
            work.read(src)
        if host is not dst or is_direct:
            work.write(dst)
        if host is src and is_direct:
            self._notice_changes(at, {m for m, _, _ in work.reads})  # order of others is open
            if not self.recording.is_capturing(actor):
                self.host.queued(work.reads, actor)
        work.emit(op.label, is_copy=True)
        if peer is not None:
            self._order(actor, peer, at)
        if host is dst and not is_direct:  # the driver returns when it is done
            self.recording.sync(at, streams=[actor], is_inherent=True)
            _Work(self, HOST, at).write(dst).emit(op.label)

    def _is_direct(self, dst: Any, src: Any, host: Any) -> bool:
        """Whether a device itself accesses the host's side of a copy, when its turn comes.

        Elsewhere the runtime goes through memory of its own: where the memory is not pinned, or
        the host first has to convert elements or to bring them together.
        """
        if host is src and (src.dtype != dst.dtype or src.shape != dst.shape):
            return False
        is_one = len(_runs(host.shape, host.stride(), 0, 1).runs) <= 1
        is_alike = host.is_contiguous() or (is_one and src.stride() == dst.stride())
        return is_alike and self.platform.is_pinned(host)

    def _order(self, first: int, second: int, at: int) -> None:
        event = object()
        self.recording.record(event, first, at)
        self.recording.wait(event, second, at)
        self.recording.event_deleted(event)

    # --- memory -----------------------------------------------------------------------------------

    def bytes_of(
        self, tensor: Any, actor: int, runs: Runs | None = None
    ) -> tuple[Sequence[Bytes], Sequence[Bytes]]:
        """Return the bytes of a tensor in memory that is followed, and freed bytes that it takes.

        Uses of other streams than the allocating one are bytes of the shadow as well.
        """
        if isinstance(tensor, ForeignArray):
            self.share_blocks()
            block = self.blocks.at(tensor.base, tensor.nbytes, tensor)
            start = tensor.address - block.address
            return self._spans(
                block, actor, tensor, [(a + start, b + start) for a, b in tensor.runs.runs]
            )
        if self.platform.device_of(tensor) is None:
            return self._host_bytes(tensor, runs), ()
        storage = tensor.untyped_storage()
        nbytes, address = storage.nbytes(), self.platform.address(storage)
        if runs is None and tensor.nbytes == nbytes and tensor.is_contiguous():
            if not nbytes:
                return (), ()
            block = self.blocks.at(address, nbytes, tensor)
            if address == block.address and nbytes == block.nbytes:
                return self._spans(block, actor, tensor, ((0, nbytes),))
        elif not tensor.numel():
            return (), ()
        block = self.blocks.at(address, nbytes, tensor)
        strides, offset = tensor.stride(), tensor.storage_offset()
        spans = (runs or _runs(tensor.shape, strides, offset, tensor.element_size())).runs
        shift = address - block.address
        if shift:  # memory of another library, of which the tensor is a part
            spans = [(start + shift, end + shift) for start, end in spans]
        if len(spans) != 1 or spans[0] != (0, block.nbytes):
            self._views.append((block.memory, _text(tensor), strides, offset))
        return self._spans(block, actor, tensor, spans)

    def _host_bytes(self, tensor: Any, runs: Runs | None) -> Sequence[Bytes]:
        if self.host.is_empty or not tensor.numel():
            return ()
        offset, size = tensor.storage_offset(), tensor.element_size()
        found = runs or _runs(tensor.shape, tensor.stride(), offset, size)
        moved = [(a - offset * size, b - offset * size) for a, b in found.runs]
        return self.host.bytes_at(tensor.data_ptr(), moved)

    def _spans(
        self, block: Block, actor: int, tensor: Any, runs: Sequence[Run]
    ) -> tuple[Sequence[Bytes], Sequence[Bytes]]:
        shadow, takes = self.blocks.touch(block, actor, tensor)
        spans = [(block.memory, a, b) for a, b in runs]
        if shadow is not None:
            spans += [(shadow, a, b) for a, b in runs]
        return spans, takes

    def share_blocks(self) -> None:
        """Let addresses that no allocator has given be parts of blocks: of another library."""
        self.blocks.are_shared = True

    def views(self) -> Sequence[Any]:
        """Return the views since the last call: memory, shape and type, strides, offset."""
        if not self._views:
            return ()
        found, self._views = self._views, []
        return found

    def _add_block(self, block: Block, tensor: Any, is_shadow: bool) -> int:
        if block.site < 0:
            block.site = self._site()
        place = "graph" if block.pool is not None else "shadow" if is_shadow else "cuda"
        return self.recording.memory(block.nbytes, _text(tensor), block.site, place=place)

    def _follow(self, tensor: Any, at: int) -> None:
        """Follow pinned memory, from its first access by a device on."""
        if self.host.find(tensor.data_ptr()) is not None:
            return
        storage = tensor.untyped_storage()
        start, nbytes = storage.data_ptr(), storage.nbytes()
        made = self._pinned.get(start, at)
        memory = self.recording.memory(nbytes, _text(tensor), made, place="pinned")
        self.host.add(start, nbytes, memory)
        weakref.finalize(storage, self._unfollow, memory, start).atexit = False

    def _unfollow(self, memory: int, start: int) -> None:
        self._pinned.pop(start, None)
        self.host.remove(memory)
        self.recording.memory_died(memory)
        self._unfollowed.append(memory)

    def allocated(self, address: int, stream: int | None = None, nbytes: int = 0) -> None:
        """Note that an allocator has given an address.

        Args:
            stream: For which; that of the calling thread if none is given. An allocator with
                streams of its own has a pool of its own.
            nbytes: The length; 0 if it is not known yet.
        """
        local = self._local
        if local.is_reading or not self.is_enabled:
            return
        if local.is_in_op and stream is None:  # the op takes it over behind the call
            key = self.platform.stream(None)
            self._given.append((address, key, local.pool, threading.get_ident()))
            return
        with self.recording.lock:
            self.take_back()
            pool = "another library" if stream is not None else local.pool
            stream = self.stream() if stream is None else stream
            self._allocated(address, stream, pool, self._site()).nbytes = nbytes

    def _allocated(self, address: int, stream: int, pool: object, site: int) -> Block:
        pool = "graph" if self.recording.is_capturing(stream) else pool
        return self.blocks.allocated(address, stream, pool, site)

    @contextmanager
    def allocating_from(self, pool: object) -> Iterator[None]:
        """Note that the calling thread allocates from a pool of the program's."""
        before, self._local.pool = self._local.pool, pool
        try:
            yield
        finally:
            self._local.pool = before

    def freed(self, address: int) -> None:
        """Note that the caching allocator has got an address back; at any point of a record."""
        if self.is_enabled:  # the hook of another thread may stay
            self._given.append(address)

    def take_back(self) -> None:
        """Take over what was given out and freed since the last record; name what is out of use."""
        while self._given:
            given = self._given.popleft()
            if isinstance(given, tuple):
                address, key, pool, thread = given
                site = self._site() if thread == threading.get_ident() else -1
                self._allocated(address, self.recording.stream(key), pool, site)
                continue
            block = self.blocks.freed(given)
            if block is not None:
                self.recording.memory_died(block.memory)
        while self._unfollowed:
            self.recording.memory_gone(self._unfollowed.popleft())
        if self.blocks.has_gone:
            for memory in self.blocks.gone():
                self.recording.memory_gone(memory)

    def record_stream(self, tensor: Any, stream: Any) -> None:
        """Note that the allocator knows of a stream's use of a tensor."""
        if self.platform.device_of(tensor) is None or not self.is_enabled:
            return
        with self.recording.lock:
            self.take_back()
            storage = tensor.untyped_storage()
            block = self.blocks.at(self.platform.address(storage), storage.nbytes(), tensor)
            block.recorded.add(self.recording.stream(self.platform.key_of(stream)))

    def launched(
        self,
        label: str,
        reads: Sequence[Any],
        writes: Sequence[Any],
        *,
        stream: int | None = None,
        engine: str = "",
        is_possible: bool = False,
    ) -> None:
        """Record a kernel that is no op of the dispatcher, on the calling thread's stream.

        Args:
            reads: Tensors, arrays of other libraries, or objects with their interface.
            stream: The actor, if it is another one.
            engine: Name of what does it beside all streams; "" for the stream.
            is_possible: Whether it may touch only some bytes of its tensors.
        """
        if not self.is_enabled:
            return
        with self.recording.lock:
            self.take_back()
            at = self.recording.sites.here()
            actor = self.recording.engine(engine) if engine else stream
            actor = self.stream() if actor is None else actor
            work = _Work(self, actor, at, reads_host=True)
            for tensors, is_written in ((reads, False), (writes, True)):
                for given in tensors:
                    is_known = isinstance(given, torch.Tensor | ForeignArray)
                    tensor = given if is_known else shared_array(given)
                    is_foreign = isinstance(tensor, ForeignArray)
                    if not is_foreign and self.platform.device_of(tensor) is None:
                        self._follow(tensor, at)
                    work.touch(tensor, None, not is_written, is_written)
            work.emit(label, is_partial=is_possible, is_possible=is_possible)

    def engine_done(self, engine: str) -> None:
        """Record that the host has seen an engine end what it has been given."""
        self.sync(streams=[self.recording.engine(engine)])

    # --- rows -------------------------------------------------------------------------------------

    def _chosen(
        self, op: Op, args: Sequence[Any], actor: int
    ) -> tuple[Runs | None, RowChooser | None]:
        """Return the rows that ids choose now, or what chooses them for each replay of a graph."""
        chosen = op.chosen
        if chosen is None or not self._rows or len(args) < 2:
            return None, None
        table = table_of(args[chosen.table])
        if self.recording.is_capturing(actor):
            return None, self._chooser(chosen, args, table, actor)
        with self.reading():
            return table.rows(chosen.ids(args, _as_array), chosen.is_gather), None

    def _chooser(
        self, chosen: Chosen, args: Sequence[Any], table: Table, actor: int
    ) -> RowChooser | None:
        """Return what chooses rows by the ids that are there when a graph is replayed."""
        ids = chosen.tensors(args)
        if any(self.platform.device_of(i) is None for i in ids):
            return None
        memories = [
            {m for m, _, _ in self.bytes_of(t, actor)[0]} for t in (*ids, args[chosen.table])
        ]
        kept = stored(args)

        def choose() -> list[Run] | None:
            with self.reading():
                self.platform.wait_for_all()
                try:
                    return table.rows(chosen.ids(kept, _present_ids), chosen.is_gather).runs
                except LookupError:
                    return None

        return RowChooser(frozenset().union(*memories[:-1]), frozenset(memories[-1]), choose)

    # --- the host ---------------------------------------------------------------------------------

    def host_access(self, name: str, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Record what numpy does with arrays on pinned memory."""
        if not self.is_enabled or self.host.is_empty:
            return
        with self.recording.lock:
            read, written = (
                [s for a in arrays for s in self.host.bytes_at(*array_runs(a))]
                for arrays in (reads, writes)
            )
            self.host.written(written)
            if read or written:
                self.recording.work(HOST, name, read, written, self.recording.sites.here())

    def host_read(self, name: str, tensor: Any) -> None:
        """Record that the host reads a tensor outside the dispatcher."""
        if self.is_enabled and self.platform.device_of(tensor) is None:
            with self.recording.lock:
                _Work(self, HOST, self.recording.sites.here()).read(tensor).emit(name)

    def traced_array(self, tensor: Any, array: Any) -> Any:
        """Return an array of a pinned tensor as one whose accesses are recorded."""
        is_host = self.platform.device_of(tensor) is None
        if not self.is_enabled or not is_host or not self.platform.is_pinned(tensor):
            return array
        traced = array.view(TracedArray)
        traced.accessed = self.host_access
        return traced

    def adopted(self, array: Any) -> Any:
        """Return an array that does not own its memory as a traced one, if that is followed."""
        is_owner = self.host.is_empty or getattr(array, "base", None) is None
        if is_owner or self.host.find(array.__array_interface__["data"][0]) is None:
            return array
        traced = array.view(TracedArray)
        traced.accessed = self.host_access
        return traced

    def _notice_changes(self, at: int, memories: Collection[int] | None = None) -> None:
        """Record that other code has written sources of queued copies.

        Args:
            memories: Of which; all if not given.
        """
        for memory, start, end in self.host.changed(memories):
            what = "code outside PyTorch and numpy"
            self.recording.work(HOST, what, (), [(memory, start, end)], at)

    def sync(
        self,
        *,
        event: object = None,
        streams: Sequence[int] | None = None,
        device: int | None = None,
    ) -> None:
        """Record a wait of the host: for an event, for streams, or for a device."""
        at, is_inherent = self.recording.sites.here(), self._local.is_in_op

        def record(start_s: float | None) -> None:
            self._notice_changes(at)
            every = self.recording.streams_of(device) if device is not None else ()
            waited = every if streams is None else streams
            self.host.waited(waited)
            self.recording.sync(
                at, event=event, streams=waited, start_s=start_s, is_inherent=is_inherent
            )

        self.after(record)


class _Work:
    """The accesses of one op."""

    __slots__ = (
        "_actor",
        "_at",
        "_host_reads",
        "_is_early",
        "_recorder",
        "_takes",
        "reads",
        "writes",
    )

    def __init__(
        self, recorder: Recorder, actor: int, at: int, *, reads_host: bool = False
    ) -> None:
        self._recorder = recorder
        self._actor, self._at = actor, at
        self._is_early = actor != HOST and not reads_host
        self.reads: list[Bytes] = []
        self.writes: list[Bytes] = []
        self._takes: list[Bytes] = []
        self._host_reads: list[Bytes] = []

    def touch(self, tensor: Any, runs: Runs | None, is_read: bool, is_written: bool) -> None:
        """Add accesses; host memory is read in the call, unless a device reads it in place."""
        spans, takes = self._recorder.bytes_of(tensor, self._actor, runs)
        if takes:
            self._takes += takes
        if is_written:
            self.writes += spans
        if is_read:
            recorder = self._recorder
            has_host = self._is_early and not recorder.host.is_empty
            is_early = has_host and recorder.platform.device_of(tensor) is None
            (self._host_reads if is_early else self.reads).extend(spans)

    def touch_arguments(
        self, found: Sequence[tuple[int, Sequence[Any], bool]], op: Op, chosen: Runs | None
    ) -> None:
        """Add the accesses of an op to its arguments, to a table only the rows that are chosen."""
        pointer, block_at = self._recorder.pointer, self._recorder.blocks.used_by(self._actor).get
        reads, writes, overwrites = self.reads.append, self.writes.append, op.overwrites
        table = -1 if chosen is None or op.chosen is None else op.chosen.table
        for i, tensors, is_written in found:
            is_read = not is_written or not overwrites
            for tensor in tensors:
                block = None if i == table else block_at(pointer(tensor))
                # Mostly it is all of a block that its stream has used; nothing else is to be noted.
                if block is None or block.nbytes != tensor.nbytes or not tensor.is_contiguous():
                    self.touch(tensor, chosen if i == table else None, is_read, is_written)
                    continue
                if is_written:
                    writes(block.whole)
                if is_read:
                    reads(block.whole)

    def read(self, tensor: Any) -> Self:
        """Add a read."""
        self.touch(tensor, None, True, False)
        return self

    def write(self, tensor: Any, unless: set[int] | None = None) -> Self:
        """Add a write, unless the memory is touched already: then the result is a view."""
        spans, takes = self._recorder.bytes_of(tensor, self._actor)
        self.writes += [s for s in spans if s[0] not in unless] if unless else spans
        self._takes += takes
        return self

    def write_fresh(self, tensor: Any) -> bool:
        """Add a write to a block that this op has allocated; return whether it is that."""
        blocks = self._recorder.blocks
        block = blocks.fresh(tensor.data_ptr())
        if block is None or block.stream != self._actor or not tensor.is_contiguous():
            return False
        nbytes = tensor.untyped_storage().nbytes()
        if nbytes != tensor.nbytes:
            return False
        blocks.at(block.address, nbytes, tensor)
        self._takes += blocks.touch(block, self._actor, tensor)[1]
        self.writes.append(block.whole)
        return True

    def emit(
        self,
        label: str,
        *,
        is_copy: bool = False,
        is_partial: bool = False,
        is_possible: bool = False,
        chooser: RowChooser | None = None,
    ) -> None:
        """Record the op."""
        recording = self._recorder.recording
        if self._host_reads:
            recording.work(HOST, label, self._host_reads, (), self._at)
        if not (self.reads or self.writes or self._takes):
            return
        if self.writes and self._recorder.host.has_sources:
            self._recorder.host.written(self.writes)
        recording.work(
            self._actor, label, self.reads, self.writes, self._at,
            is_copy=is_copy, is_partial=is_partial, chooser=chooser, takes=self._takes,
            views=self._recorder.views(), is_possible=is_possible,
        )  # fmt: skip


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Hands each op of its thread to ``Recorder.op``, or to ``Platform.run`` without a record."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: the compiler is not loaded, and not asked at each op."""
        return False

    def __init__(self, call: Callable[[Any, Sequence[Any], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._call = call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an op; an op of a wrapper is left to the ops that it consists of."""
        if types and any(_is_wrapper(t) for t in types):
            return NotImplemented
        return self._call(func, args, kwargs or {})


def _stop(of: "weakref.ref[Recorder]") -> None:
    """Record nothing in a forked process; what is called there stays, and holds no recorder."""
    recorder = of()
    if recorder is not None:
        recorder.is_enabled = False


def first_line(error: Exception) -> str:
    """Return the class of an error and the first line of its text."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


@cache
def _is_wrapper(kind: type) -> bool:
    """Whether tensors of a class consist of others, as distributed and nested ones do."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def _text(tensor: Any) -> str:
    """Return shape and type, e.g. ``(8, 4) int64``."""
    return _shape_text(tensor.shape, tensor.dtype)


@lru_cache(1 << 12)
def _shape_text(shape: Sequence[int], dtype: Any) -> str:
    return f"{tuple(shape)} {dtype}".replace("torch.", "")


def _present_ids(ids: StoredView) -> Any:
    return _as_array(ids.tensor())


def _as_array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()
