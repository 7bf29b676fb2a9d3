"""What CuPy does: its streams and events, functions and methods of arrays, and kernels.

A function reads the arrays that it is given and writes ``out`` and the new arrays that it returns;
what returns a view touches nothing. A raw kernel reads through pointers to ``const`` and reads and
writes through others, as its text says. Addresses are those that PyTorch has: an array that was
handed over by DLPack or by ``__cuda_array_interface__`` is the memory that the tensor is.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Final

from ggsched_race.foreign_array import ForeignArray, foreign_array
from ggsched_race.patches import Patches
from ggsched_race.pytorch import Recorder
from ggsched_race.recording import LEGACY_HANDLES
from ggsched_race.when_imported import Actions

_IN_PLACE: Final = re.compile(
    r"^(__i(add|sub|mul|matmul|mod|pow|[lr]shift|and|x?or|(floor|true)?div)__|__setitem__"
    r"|fill|put|set|sort|partition|scatter_\w+|copyto|place|putmask)$"
)
_UNTOUCHED: Final = frozenset(
    {
        *("empty", "empty_like", "from_dlpack", "fromDlpack", "shares_memory", "may_share_memory"),
        *("__new__", "__init__", "__len__", "__hash__", "__reduce__", "__dlpack__", "__iter__"),
        *("__dlpack_device__", "__class_getitem__", "__array_ufunc__", "__array_function__"),
        *("toDlpack", "get_array_module", "__array__", "__format__", "ndim", "shape", "size"),
        *("isscalar", "result_type", "can_cast", "iscomplexobj", "isrealobj", "min_scalar_type"),
    }
)
"""Functions and methods that read and write no elements."""
_OWNED: Final = ("PooledMemory", "Memory", "MemoryAsync", "ManagedMemory")
"""Classes of memory that CuPy has allocated itself, without what others have handed over."""


def cupy_actions(patches: Patches, recorder: Recorder) -> Actions:
    """Return what to do with CuPy when it is loaded."""
    return {"cupy": lambda cupy: _Cupy(recorder, cupy).patch(patches)}


class _Local(threading.local):
    is_inside: bool = False


class _Cupy:
    """Follows one module of CuPy."""

    def __init__(self, recorder: Recorder, cupy: Any) -> None:
        self._recorder, self._cupy = recorder, cupy
        self._local = _Local()

    def patch(self, patches: Patches) -> None:
        """Replace what is followed."""
        cupy = self._cupy
        self._streams(patches)
        base = cupy.ndarray.__mro__[1]
        for name, native in vars(base).items():
            is_special = name.startswith("__")
            if callable(native) and name not in _UNTOUCHED and (is_special or name[0] != "_"):
                patches.set(cupy.ndarray, name, self._followed(name, getattr(cupy.ndarray, name)))
        for module in (cupy, *(getattr(cupy, n, None) for n in ("linalg", "fft", "random"))):
            for name, native in list(vars(module).items()) if module is not None else ():
                is_public = name[0] != "_" and name not in _UNTOUCHED
                if is_public and callable(native) and not isinstance(native, type):
                    patches.set(module, name, _Function(native, self._followed(name, native)))
        made = {"RawKernel": self._raw_kernel, "RawModule": self._raw_module}
        for name in (*made, "ElementwiseKernel", "ReductionKernel"):
            patches.set(cupy, name, _standing_for(vars(cupy)[name], made.get(name, self._kernel)))
        self._memory(patches)

    # --- order ------------------------------------------------------------------------------------

    def _actor(self, stream: Any = None) -> int:
        stream = self._cupy.cuda.get_current_stream() if stream is None else stream
        device = getattr(stream, "device_id", -1)
        device = self._cupy.cuda.runtime.getDevice() if device in (None, -1) else device
        handle = 0 if stream.ptr in LEGACY_HANDLES else stream.ptr
        is_blocking = not getattr(stream, "is_non_blocking", True)
        return self._recorder.recording.stream((device, handle), is_blocking)

    def _streams(self, patches: Patches) -> None:
        recorder, cuda = self._recorder, self._cupy.cuda
        recording = recorder.recording
        streams, event = cuda.Stream.__mro__[1], cuda.Event
        record, wait, record_event = streams.record, streams.wait_event, event.record

        def recorded(made: Any, stream: Any) -> None:
            at, actor = recording.sites.here(), self._actor(stream)
            recorder.after(lambda _: recording.record(made.ptr, actor, at))

        def stream_record(stream: Any, event: Any = None) -> Any:
            made = record(stream, event)
            recorded(made, stream)
            return made

        def event_record(event: Any, stream: Any = None) -> None:
            record_event(event, stream)
            recorded(event, stream)

        def stream_wait(stream: Any, event: Any) -> None:
            wait(stream, event)
            at, actor = recording.sites.here(), self._actor(stream)
            recorder.after(lambda _: recording.wait(event.ptr, actor, at), actor)

        patches.set(streams, "record", stream_record)
        patches.set(streams, "wait_event", stream_wait)
        patches.set(event, "record", event_record)

        def stream_ended(stream: Any) -> None:
            recorder.sync(streams=[self._actor(stream)])

        def event_ended(event: Any) -> None:
            recorder.sync(event=event.ptr, streams=())

        for owner, ended in ((streams, stream_ended), (event, event_ended)):
            patches.set(owner, "synchronize", _then(owner.synchronize, ended))
            patches.set(owner, "done", property(_if_done(vars(owner)["done"], ended)))

        def device_ended(*device: Any) -> None:
            recorder.sync(device=int(device[0].id if device else cuda.runtime.getDevice()))

        runtime, wait_for_device = cuda.runtime, cuda.runtime.deviceSynchronize
        patches.set(runtime, "deviceSynchronize", _then(wait_for_device, device_ended))
        methods = {"synchronize": _then(cuda.Device.synchronize, device_ended)}
        patches.set(cuda, "Device", _standing_for(cuda.Device, **methods))

    # --- memory -----------------------------------------------------------------------------------

    def _memory(self, patches: Patches) -> None:
        recorder, owner = self._recorder, self

        class Hook(self._cupy.cuda.MemoryHook):  # type: ignore[misc,name-defined]
            """Notes what the pool gives and gets."""

            name = "ggsched race"

            def malloc_postprocess(self, **facts: Any) -> None:
                recorder.allocated(facts["mem_ptr"], owner._actor(), facts["mem_size"])

            def free_postprocess(self, **facts: Any) -> None:
                recorder.freed(facts["mem_ptr"])

            def __exit__(self, *error: object) -> None:
                with suppress(KeyError):  # of the thread that has imported CuPy, so not of this one
                    super().__exit__(*error)

        patches.enter(Hook())

    def _array(self, array: Any) -> ForeignArray | None:
        """Return where an array of CuPy is; None of anything else."""
        if not isinstance(array, self._cupy.ndarray):
            return None
        memory = array.data.mem
        return foreign_array(
            array.data.ptr,
            array.shape,
            array.strides,
            array.dtype,
            (memory.ptr, memory.size),
            type(memory).__name__ in _OWNED,
        )

    def _arrays(self, values: Sequence[Any]) -> Iterator[ForeignArray]:
        for value in values:
            if isinstance(value, list | tuple):
                yield from self._arrays(value)
            elif (found := self._array(value)) is not None:
                yield found

    # --- functions and methods --------------------------------------------------------------------

    def _inside(self, native: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, self._local.is_inside = self._local.is_inside, True
        try:
            return native(*args, **kwargs)
        finally:
            self._local.is_inside = before

    def _following(
        self, native: Callable[..., Any], done: Callable[..., None]
    ) -> Callable[..., Any]:
        """Return a function that calls another one, and then ``done`` with its result.

        What it calls is a part of it. Whatever its arguments are, the program goes on.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._local.is_inside or self._recorder.is_inside:
                return native(*args, **kwargs)
            result = self._inside(native, *args, **kwargs)
            with self._recorder.attempting(f"cupy {getattr(native, '__name__', 'kernel')}"):
                done(result, *args, **kwargs)
            return result

        return call

    def _followed(self, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
        def done(result: Any, *args: Any, **kwargs: Any) -> None:
            self._done(name, args, kwargs, result)

        return self._following(native, done)

    def _done(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        out = kwargs.get("out")
        reads = list(self._arrays([*args, *(v for k, v in kwargs.items() if k != "out")]))
        writes = list(self._arrays([out]))
        is_in_place = _IN_PLACE.match(name) is not None
        if name == "__setitem__":
            del reads[0]
            writes += self._arrays([self._part(args[0], args[1])])
        elif is_in_place and args:
            writes += self._arrays(args[:1])
        known = {a.address for a in (*reads, *writes)}
        bases = {a.base for a in (*reads, *writes)}
        results = list(self._arrays([result]))
        fresh = [a for a in results if a.base not in bases and a.is_owned]
        is_view = bool(results) and not fresh and not is_in_place and out is None
        if is_view and all(a.base in bases or a.address not in known for a in results):
            return
        self._recorder.launched(f"cupy {name}", reads, writes + fresh, stream=self._actor())
        is_value = not results and result is not None and kwargs.get("blocking", True)
        if is_value and (reads or writes):  # the host has it, so it has waited
            self._recorder.sync(streams=[self._actor()])

    def _part(self, array: Any, key: Any) -> Any:
        """Return what a key selects as a view where it can be one, else the whole."""
        keys = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(k, int | slice) or k is Ellipsis for k in keys):
            return array
        slices = tuple(slice(k, k + 1 or None) if isinstance(k, int) else k for k in keys)
        return self._inside(array.__getitem__, slices)

    # --- kernels ----------------------------------------------------------------------------------

    def _kernel(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Follow a kernel that declares what it reads in front of what it writes."""
        count = len(_split(kwargs.get("in_params", args[0] if args else "")))

        def done(result: Any, *args: Any, **kwargs: Any) -> None:
            reads = list(self._arrays(args[:count]))
            writes = list(self._arrays([*args[count:], kwargs.get("out"), result]))
            label = f"cupy {getattr(kernel, 'name', 'kernel')}"
            self._recorder.launched(label, reads, writes, stream=self._actor())

        return _Function(kernel, self._following(kernel, done))

    def _raw_kernel(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        code = kwargs.get("code", args[0] if args else "")
        return self._raw(kernel, kwargs.get("name", args[1] if len(args) > 1 else ""), code)

    def _raw_module(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        code = kwargs.get("code", args[0] if args else None) or ""

        class Module(_Function):
            """A module whose kernels are followed."""

            def get_function(own, name: str) -> Any:
                return self._raw(module.get_function(name), name, code)

        return Module(module, module)

    def _raw(self, kernel: Any, name: str, code: str) -> Any:
        constant = constant_parameters(code, name)

        def done(_: Any, grid: Any, block: Any, args: Sequence[Any], **kwargs: Any) -> None:
            arrays = [(i, a) for i, v in enumerate(args) for a in self._arrays([v])]
            reads = [a for _, a in arrays]
            writes = [a for i, a in arrays if i not in constant]
            stream = kwargs.get("stream")
            self._recorder.launched(
                f"cupy {name}", reads, writes, stream=self._actor(stream), is_possible=True
            )

        return _Function(kernel, self._following(kernel, done))


class _Function:
    """A function of a library that is called another way, and else is as it was."""

    def __init__(self, native: Any, call: Callable[..., Any]) -> None:
        self._native, self._called = native, call
        self.__doc__ = native.__doc__

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the function, for ``isinstance``."""
        return type(self._native)

    def __reduce__(self) -> Any:
        return copy, (self._native,)  # it is pickled as the function is

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def __repr__(self) -> str:
        return repr(self._native)


def _standing_for(native: Any, made: Callable[..., Any] | None = None, **methods: Any) -> Any:
    """Return a class that stands for another one, also for ``isinstance`` and subclasses.

    Args:
        made: Returns what the program gets for an instance that it makes.
        methods: Replaced ones.
    """

    class Standing(type(native)):  # type: ignore[misc]
        """The class of the class."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not standing or made is None:
                return super().__call__(*args, **kwargs)
            return made(native(*args, **kwargs), *args, **kwargs)

        def __instancecheck__(cls, value: Any) -> bool:
            return (
                isinstance(value, native) if cls is standing else super().__instancecheck__(value)
            )

    standing = Standing(native.__name__, (native,), methods)
    return standing


def _then(native: Callable[..., Any], ended: Callable[..., None]) -> Callable[..., Any]:
    """Return a function that blocks the host, and then says what has ended."""

    def wait(*args: Any) -> Any:
        result = native(*args)
        ended(*args)
        return result

    return wait


def _if_done(native: Any, ended: Callable[..., None]) -> Callable[..., bool]:
    """Return a question whose answer "yes" says that something has ended."""

    def is_done(owner: Any) -> bool:
        done = bool(native.__get__(owner))
        if done:
            ended(owner)
        return done

    return is_done


def _split(parameters: str) -> list[str]:
    return [p for p in parameters.split(",") if p.strip()]


def constant_parameters(code: str, name: str) -> set[int]:
    """Return the positions of a kernel's parameters that point to constants, by its text."""
    found = re.search(rf"\b{re.escape(name.partition('<')[0])}\s*\(([^)]*)\)\s*\{{", code)
    parameters = _split(found[1]) if found is not None else []
    return {i for i, p in enumerate(parameters) if re.search(r"\bconst\b[^*]*\*", p)}
