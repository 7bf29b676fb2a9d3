"""NVRTC of a folder, beside the one that ``cuda.bindings`` loads into the process."""

import ctypes
import os
from pathlib import Path


class SecondNvrtc:
    """Compiles as ``ggsched_cuda.compiler.driver.compile_both`` does, with the NVRTC of a folder.

    Attributes:
        version: Major and minor number.
    """

    def __init__(self, folder: Path) -> None:
        (builtins,) = folder.rglob("libnvrtc-builtins.so.*")
        (library,) = folder.rglob("libnvrtc.so.*")
        # NVRTC opens its builtins by name alone, which finds what is loaded.
        self._builtins = ctypes.CDLL(str(builtins))
        # Both libraries export the same names, and each has to find its own.
        mode = os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        self._library = ctypes.CDLL(str(library), mode)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def compile_both(self, text: str, options: list[str]) -> tuple[bytes, bytes]:
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
        )
        try:
            flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if self._library.nvrtcCompileProgram(program, len(options), flags):
                raise AssertionError(self._taken("ProgramLog", program).decode(errors="replace"))
            return self._taken("PTX", program), self._taken("CUBIN", program)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _taken(self, name: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{name}Size", program, ctypes.byref(size))
        made = ctypes.create_string_buffer(size.value)
        if size.value:
            self._call(f"nvrtcGet{name}", program, made)
        return made.raw

    def _call(self, name: str, *arguments: object) -> None:
        if result := getattr(self._library, name)(*arguments):
            raise AssertionError(f"{name} of the second NVRTC failed: {result}")
