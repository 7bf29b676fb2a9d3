"""Calls of the CUDA driver as NVIDIA's CUPTI reports them, by its shared library alone.

The library's callbacks come from inside each call, on the thread that makes it, whichever library
does so. No compiler and no package is needed, and PyTorch neither.
"""

import ctypes
import glob
import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from ggsched.errors import BackendUnavailable
from ggsched_race.driver_calls import FREES, NOT_FOLLOWED, SIGNATURES, DriverCalls, plain_name
from ggsched_race.recording import Recording

_DRIVER: Final = 1
_ENTER: Final = 0
_MAX_CALLS: Final = 2000
"""More than the callback numbers of any driver so far; CUPTI has no call for their count."""
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2
"""``CU_LAUNCH_PARAM_BUFFER_POINTER`` and ``_SIZE``: keys of a launch's ``extra`` parameters."""
_STREAM_IN_CONFIG: Final = 32
"""Offset of the stream in ``CUlaunchConfig``, in bytes."""
_INVALID_VALUE: Final = 1
"""``CUDA_ERROR_INVALID_VALUE``, which the driver returns for an index past the last argument."""


class _CallbackData(ctypes.Structure):
    """``CUpti_CallbackData``: one entry or exit of a driver call."""

    _fields_ = [
        ("site", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("returned", ctypes.POINTER(ctypes.c_int)),
        ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
    ]


_Callback: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_CallbackData)
)


@cache
def parameters_of(name: str) -> type[ctypes.Structure]:
    """Return the structure of the parameters of a call, by ``SIGNATURES``."""
    fields: list[tuple[str, Any]] = []
    for number, word in enumerate(SIGNATURES[name].split()):
        kind: Any = ctypes.c_uint64
        if word.startswith("."):
            bits, _, times = word.removeprefix(".u").partition("*")
            bits, word = bits[:2].rstrip("f"), bits.lstrip("0123456789") or f"_{number}"
            kind = {"8": ctypes.c_uint8, "16": ctypes.c_uint16, "32": ctypes.c_uint32}[bits]
            kind = kind * int(times) if times else kind
        fields.append((word, kind))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


class Cupti:
    """CUPTI's shared library, and the driver, which knows the arguments of kernels.

    Raises:
        BackendUnavailable: it, or the driver, is missing.
    """

    def __init__(self) -> None:
        self._cupti = _load(_library_paths(), "CUPTI")
        self._cuda = _load(["libcuda.so.1"], "driver")
        self._sizes: dict[int, list[int] | None] = {}

    def names(self) -> dict[str, int]:
        """Return the callback number of each driver call that is recorded or reported."""
        found, name = {}, ctypes.c_char_p()
        for number in range(1, _MAX_CALLS):
            if self._cupti.cuptiGetCallbackName(_DRIVER, number, ctypes.byref(name)) == 0:
                text = (name.value or b"").decode()
                plain, _ = plain_name(text)
                if plain in SIGNATURES or plain in NOT_FOLLOWED:
                    found[text] = number
        return found

    @contextmanager
    def subscribed(self, calls: DriverCalls, failed: Callable[[Exception], None]) -> Iterator[None]:
        """Record the driver calls of all threads of this process.

        Args:
            failed: Called with an error of the recorder. An exception cannot leave a callback, and
                the program is to go on.
        """

        def called(_user: Any, _domain: int, _number: int, data: Any) -> None:
            try:
                self._forward(data.contents, calls)
            except Exception as error:
                failed(error)

        callback, subscriber = _Callback(called), ctypes.c_void_p()
        cupti = self._cupti
        _check(cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None), "cuptiSubscribe")
        try:
            for number in self.names().values():
                _check(cupti.cuptiEnableCallback(1, subscriber, _DRIVER, number), "a callback")
            yield
        finally:
            cupti.cuptiUnsubscribe(subscriber)

    def _forward(self, data: _CallbackData, calls: DriverCalls) -> None:
        name = (data.name or b"").decode()
        plain, _ = plain_name(name)
        # A call is recorded at its exit, when its result is known. One that releases a handle or an
        # address is recorded at its entry: at its exit another thread may have got the same one.
        if (data.site == _ENTER) != (plain in FREES or plain == "cuEventDestroy_v2"):
            return
        if data.site != _ENTER and data.returned[0] != 0:
            return
        if plain in NOT_FOLLOWED:
            calls.record(name, {})
            return
        params = self._parameters(plain, data)
        pointers: list[int] = []
        if plain.startswith("cuLaunch"):
            pointers = self._pointers(params, calls)
            if "config" in params:
                params["stream"] = _word(params["config"] + _STREAM_IN_CONFIG)
        calls.record(name, params, pointers, (data.symbol or b"").decode())

    def _parameters(self, name: str, data: _CallbackData) -> dict[str, int]:
        kind = parameters_of(name)
        if data.parameters is None:
            return {}
        found = kind.from_address(data.parameters)
        words = [(field[0], getattr(found, field[0])) for field in kind._fields_]
        return {
            word.removeprefix("*"): _word(value) if word.startswith("*") else value
            for word, value in words
            if not word.startswith("_")
        }

    def _pointers(self, params: dict[str, int], calls: DriverCalls) -> list[int]:
        """Return all 64-bit words of a launch's arguments: each may be an address."""
        if params.get("extra"):
            return self._words_of_extra(params["extra"])
        sizes = self._sizes_of(params["function"])
        if sizes is None:
            calls.note_unknown_arguments()
            return []
        found: list[int] = []
        for k, nbytes in enumerate(sizes):
            start = _word(params["arguments"] + 8 * k)
            found += [_word(start + i) for i in range(0, nbytes - 7, 8)]
        return found

    def _words_of_extra(self, extra: int) -> list[int]:
        facts = {}
        while kind := _word(extra):
            facts[kind] = _word(extra + 8)
            extra += 16
        start, nbytes = facts.get(_BUFFER_POINTER, 0), _word(facts[_BUFFER_SIZE])
        return [_word(start + i) for i in range(0, nbytes - 7, 8)]

    def _sizes_of(self, function: int) -> list[int] | None:
        """Return the size of each argument of a kernel in bytes; None if the driver is too old."""
        if function not in self._sizes:
            self._sizes[function] = self._query_sizes(function)
        return self._sizes[function]

    def _query_sizes(self, function: int) -> list[int] | None:
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        for name in ("cuFuncGetParamInfo", "cuKernelGetParamInfo"):
            ask = getattr(self._cuda, name, None)
            sizes: list[int] = []
            while ask is not None:
                handle, number = ctypes.c_void_p(function), ctypes.c_size_t(len(sizes))
                code = ask(handle, number, ctypes.byref(offset), ctypes.byref(size))
                if code != 0:
                    break
                sizes.append(size.value)
            if sizes or (ask is not None and code == _INVALID_VALUE):
                return sizes
        return None


@contextmanager
def recorded_calls(recording: Recording) -> Iterator[None]:
    """Record the calls of the driver that this process makes.

    Raises:
        BackendUnavailable: CUPTI or the driver is missing, or another profiler is at work.
    """
    calls = DriverCalls(recording)
    cupti = Cupti()

    def failed(error: Exception) -> None:
        recording.notice(f"a call is not recorded: {type(error).__name__}: {error}")

    with cupti.subscribed(calls, failed):
        yield


def _word(address: int) -> int:
    """Return the 64-bit word at an address of this process; 0 at the null pointer."""
    return ctypes.c_uint64.from_address(address).value if address else 0


def _library_paths() -> list[str]:
    """Return candidates in order: PyTorch's packages, toolkits, the loader's search path."""
    packages = sysconfig.get_path("purelib")
    homes = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *glob.glob("/usr/local/cuda-*")]
    found = glob.glob(f"{packages}/nvidia/*/lib/libcupti.so.*")
    for home in homes:
        found += glob.glob(f"{home}/extras/CUPTI/lib64/libcupti.so.*")
        found += glob.glob(f"{home}/lib64/libcupti.so.*")
    return [*found, "libcupti.so.13", "libcupti.so.12", "libcupti.so"]


def _load(names: list[str], what: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    hint = "install CUDA's driver" if what == "driver" else "pip install nvidia-cuda-cupti"
    raise BackendUnavailable(f"NVIDIA's {what} is missing", hint=hint)


def _check(code: int, what: str) -> None:
    if code != 0:
        hint = "end other profilers of the program"
        raise BackendUnavailable(f"CUPTI refuses {what}", why=f"code {code}", hint=hint)
