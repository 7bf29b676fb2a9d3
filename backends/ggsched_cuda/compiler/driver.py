"""The only file that knows ``cuda.bindings.nvrtc``."""

from collections.abc import Sequence
from typing import Any, Final

from ggsched.errors import BackendUnavailable, UsageError

INSTALL_HINT: Final = 'pip install "ggsched[nvrtc]"; it needs no driver'


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            "cuda.bindings cannot be imported", where="cuda", why=str(error), hint=INSTALL_HINT
        ) from error
    return nvrtc


def _check(result: tuple[Any, ...]) -> Any:
    """Return what a call gave; that one fails without a log is a defect of the bindings."""
    if result[0]:
        raise BackendUnavailable("NVRTC failed", where="cuda", why=str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def compiler_version() -> tuple[int, int]:
    """Return the version of NVRTC.

    Raises:
        BackendUnavailable: it is not there.
    """
    try:
        _, major, minor = _nvrtc().nvrtcVersion()
    except Exception as error:
        raise BackendUnavailable(
            "NVRTC cannot be loaded", where="cuda", why=str(error), hint=INSTALL_HINT
        ) from error
    return int(major), int(minor)


def compile_text(text: str, options: Sequence[str]) -> bytes:
    """Compile CUDA C++ to machine code (a cubin); needs no driver.

    Raises:
        UsageError: the compiler refused it; a defect of the kernels.
    """
    return compile_both(text, options)[1]


def compile_both(text: str, options: Sequence[str]) -> tuple[bytes, bytes]:
    """Compile CUDA C++ to PTX and machine code; none of a virtual architecture (``compute_90``).

    Raises:
        UsageError: the compiler refused it; a defect of the kernels.
    """
    nvrtc = _nvrtc()
    program = _check(nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, None, None))
    try:
        flags = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        if result:
            log = b" " * _check(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise UsageError(
                "NVRTC refused a kernel",
                where=" ".join(options),
                why=log.decode(errors="replace").strip("\0 \n")[:2000],
                hint="report this with the version of NVRTC",
            )
        ptx = _taken(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        return ptx, _taken(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _taken(size: Any, get: Any, program: Any) -> bytes:
    code: bytes = b" " * _check(size(program))
    if code:
        _check(get(program, code))
    return code
