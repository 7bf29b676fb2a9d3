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
from ggsched_race.driver_calls import FREES, SIGNATURES, UNSEEN, DriverCalls, plain_name
from ggsched_race.recording import Recording

_DRIVER: Final = 1
_ENTER: Final = 0
_MAX_CALLS: Final = 2000
"""Above the number of functions of any driver."""
_EXTRA_BUFFER, _EXTRA_SIZE = 1, 2
_STREAM_IN_CONFIG: Final = 32
"""Where ``CUlaunchConfig`` has its stream."""


class _Data(ctypes.Structure):
    """``CUpti_CallbackData``."""

    _fields_ = [
        ("site", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("returned", ctypes.POINTER(ctypes.c_int)),
        ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
    ]


_Callback: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Data)
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
    """The library.

    Raises:
        BackendUnavailable: it, or the driver, is missing.
    """

    def __init__(self) -> None:
        self._cupti, self._cuda = _loaded(_places(), "CUPTI"), _loaded(["libcuda.so.1"], "driver")
        self._sizes: dict[int, list[int] | None] = {}

    def names(self) -> dict[str, int]:
        """Return the numbers of the calls that are followed or named."""
        found, name = {}, ctypes.c_char_p()
        for number in range(1, _MAX_CALLS):
            if self._cupti.cuptiGetCallbackName(_DRIVER, number, ctypes.byref(name)) == 0:
                text = (name.value or b"").decode()
                plain, _ = plain_name(text)
                if plain in SIGNATURES or plain in UNSEEN:
                    found[text] = number
        return found

    @contextmanager
    def subscribed(self, calls: DriverCalls, failed: Callable[[Exception], None]) -> Iterator[None]:
        """Hand over the calls that this process makes.

        Args:
            failed: Called with an error of the recorder; the program goes on.
        """

        def called(_user: Any, _domain: int, _number: int, data: Any) -> None:
            try:
                self._called(data.contents, calls)
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

    def _called(self, data: _Data, calls: DriverCalls) -> None:
        name = (data.name or b"").decode()
        plain, _ = plain_name(name)
        if (data.site == _ENTER) != (plain in FREES or plain == "cuEventDestroy_v2"):
            return
        if data.site != _ENTER and data.returned[0] != 0:
            return
        if plain in UNSEEN:
            calls.called(name, {})
            return
        given = self._given(plain, data)
        pointers: list[int] = []
        if plain.startswith("cuLaunch"):
            pointers = self._pointers(given, calls)
            if "config" in given:
                given["stream"] = _word(given["config"] + _STREAM_IN_CONFIG)
        calls.called(name, given, pointers, (data.symbol or b"").decode())

    def _given(self, name: str, data: _Data) -> dict[str, int]:
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

    def _pointers(self, given: dict[str, int], calls: DriverCalls) -> list[int]:
        """Return all words in the arguments of a launch that may be addresses."""
        if given.get("extra"):
            return self._words_of_extra(given["extra"])
        sizes = self._sizes_of(given["function"])
        if sizes is None:
            calls.called_with_unknown_arguments()
            return []
        found: list[int] = []
        for k, nbytes in enumerate(sizes):
            start = _word(given["arguments"] + 8 * k)
            found += [_word(start + i) for i in range(0, nbytes - 7, 8)]
        return found

    def _words_of_extra(self, extra: int) -> list[int]:
        facts = {}
        while kind := _word(extra):
            facts[kind] = _word(extra + 8)
            extra += 16
        start, nbytes = facts.get(_EXTRA_BUFFER, 0), _word(facts[_EXTRA_SIZE])
        return [_word(start + i) for i in range(0, nbytes - 7, 8)]

    def _sizes_of(self, function: int) -> list[int] | None:
        """Return the bytes of each argument of a kernel; None if the driver cannot be asked."""
        if function not in self._sizes:
            self._sizes[function] = self._asked(function)
        return self._sizes[function]

    def _asked(self, function: int) -> list[int] | None:
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


_INVALID_VALUE: Final = 1
"""What the driver says of an argument behind the last one."""


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
    return ctypes.c_uint64.from_address(address).value if address else 0


def _places() -> list[str]:
    """Return where the library may be: with PyTorch's packages, the toolkit, or on the path."""
    packages = sysconfig.get_path("purelib")
    homes = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *glob.glob("/usr/local/cuda-*")]
    found = glob.glob(f"{packages}/nvidia/*/lib/libcupti.so.*")
    for home in homes:
        found += glob.glob(f"{home}/extras/CUPTI/lib64/libcupti.so.*")
        found += glob.glob(f"{home}/lib64/libcupti.so.*")
    return [*found, "libcupti.so.13", "libcupti.so.12", "libcupti.so"]


def _loaded(names: list[str], what: str) -> ctypes.CDLL:
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
