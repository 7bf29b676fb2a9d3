"""Machine code of kernels: compiled by NVRTC once, kept on disk by hash and architecture.

The machine code of a module is that of one kernel: other kernels of its source would take most of
the compiler's time (1.4 s for the one that lists rows of experts, and 0.15 s alone). What a program
needs and is not on disk is compiled by several threads; NVRTC lets go of the interpreter's lock.
"""

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final, NamedTuple

from ggsched.backend.processors import usable_processors
from ggsched.backend.stages import report_stage
from ggsched.errors import UsageError
from ggsched.files.own import cache_home, own_contents
from ggsched.whole_file import write_whole
from ggsched_cuda import driver
from ggsched_cuda.compiler.driver import compile_text, compiler_version
from ggsched_cuda.driver import CudaError
from ggsched_cuda_kernels.programmatic_launch import Mode, starts_early
from ggsched_cuda_kernels.sources import Defines, architecture_of, options_for, text_of
from ggsched_kernels.calls import KernelCall, Launch

_LOG: Final = logging.getLogger("ggsched.cuda")


class KernelCode(NamedTuple):
    """What machine code depends on, but for the architecture.

    Attributes:
        source: Name of the source.
        defines: Preprocessor definitions.
        mode: How kernels that are launched with PDL begin.
        launch: When it may be launched.
    """

    source: str
    defines: Defines
    kernel: str
    mode: Mode = "off"
    launch: Launch = Launch.IN_TURN

    @property
    def text(self) -> str:
        """The text that is compiled."""
        return text_of(self.source, self.mode, self.launch, self.kernel)


def cache_folder() -> Path:
    """Return where machine code is kept: in the user's cache."""
    return (cache_home() or Path(os.devnull)) / "ggsched" / "cuda"


def cache_file(code: KernelCode, arch: int) -> Path:
    """Return where the machine code of a kernel is kept."""
    return _file(code, code.text, arch)


def machine_code(code: KernelCode, arch: int) -> bytes:
    """Return the machine code of a kernel, from the cache if it was compiled before.

    The key is a hash of the whole text, the options and the compiler's version; an entry that
    cannot be written is compiled again the next time.

    Raises:
        UsageError: the compiler refused it.
    """
    text = code.text
    file = _file(code, text, arch)
    return _kept(file) or _compiled(code, text, file, arch)


def machine_codes(codes: Iterable[KernelCode], arch: int) -> dict[KernelCode, bytes]:
    """Return the machine code of kernels; what is not in the cache is compiled side by side.

    Raises:
        UsageError: the compiler refused one.
    """
    found: dict[KernelCode, bytes] = {}
    missing: list[tuple[KernelCode, str, Path]] = []
    for code in codes:
        text = code.text
        file = _file(code, text, arch)
        found[code] = _kept(file)
        if not found[code]:
            missing.append((code, text, file))
    if not missing:
        return found
    with ThreadPoolExecutor(min(len(missing), len(usable_processors())), "ggsched nvrtc") as pool:
        works = {pool.submit(_compiled, *each, arch): each[0] for each in missing}
        try:
            for done, work in enumerate(as_completed(works), 1):
                found[works[work]] = work.result()
                report_stage(f"compiling kernels: {done} of {len(missing)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def loaded(code: KernelCode, arch: int, machine: bytes = b"") -> Any:
    """Return a module of machine code; what the driver refuses is compiled again once.

    Args:
        arch: The GPU's.
        machine: Its machine code, if that is at hand.

    Raises:
        CudaError: the driver refuses fresh code, too.
        UsageError: the compiler refused the source.
    """
    try:
        return driver.load_module(machine or machine_code(code, arch))
    except CudaError as error:
        file = cache_file(code, arch)
        if not file.exists():
            raise
        with contextlib.suppress(OSError):
            file.unlink()
        _LOG.warning("machine code in %s is damaged (%s): it is compiled again", file, error)
    return driver.load_module(machine_code(code, arch))


def _file(code: KernelCode, text: str, arch: int) -> Path:
    parts = (text, *options_for(arch, code.defines), str(compiler_version()))
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"{code.kernel}-{architecture_of(arch)}-{key}.cubin"


def _kept(file: Path) -> bytes:
    """Return what a file of the cache holds; nothing if there is none that is the user's alone."""
    try:
        return own_contents(file)
    except OSError:
        return b""


def _compiled(code: KernelCode, text: str, file: Path, arch: int) -> bytes:
    machine = compile_text(text, options_for(arch, code.defines))
    _keep(file, machine)
    return machine


def _keep(file: Path, code: bytes) -> None:
    try:
        write_whole(file, code)
    except OSError:
        return  # a cache that cannot be written is not used; no error


class ProgramCache:
    """Kernels of one GPU, loaded when they are first requested; safe from several threads.

    Args:
        arch: Compute capability of the GPU, e.g. 90.
    """

    def __init__(self, arch: int) -> None:
        self._arch = arch
        self._codes: dict[KernelCode, bytes] = {}  # ready to be loaded
        self._modules: dict[KernelCode, Any] = {}
        self._functions: dict[KernelCode, tuple[int, int]] = {}
        self._lock = threading.RLock()

    def prepare(self, calls: Iterable[KernelCall], mode: Mode = "off") -> None:
        """Have the machine code of calls ready, all that is not there compiled at the same time.

        Raises:
            UsageError: the compiler refused a kernel.
        """
        wanted = dict.fromkeys(
            self._code(c.source, c.defines, c.kernel, mode, c.launch) for c in calls
        )
        with self._lock:
            new = [code for code in wanted if code not in self._modules | self._codes]
        found = machine_codes(new, self._arch)
        with self._lock:
            self._codes |= found

    def function(
        self,
        name: str,
        defines: Defines,
        kernel: str,
        shared_nbytes: int = 0,
        mode: Mode = "off",
        launch: Launch = Launch.IN_TURN,
    ) -> int:
        """Return a kernel; the GPU's context is current.

        Raises:
            UsageError: the compiler refused it, or there is no such kernel.
        """
        code = self._code(name, defines, kernel, mode, launch)
        with self._lock:
            found, most = self._functions.get(code, (0, -1))
            if shared_nbytes <= most:
                return found
            if code not in self._modules:
                self._modules[code] = loaded(code, self._arch, self._codes.pop(code, b""))
            try:
                found = driver.function_of(self._modules[code], kernel, shared_nbytes)
            except CudaError as error:
                raise UsageError(f"no kernel {kernel!r}", where=name, why=str(error)) from error
            self._functions[code] = (found, shared_nbytes)
            return found

    def _code(
        self, name: str, defines: Defines, kernel: str, mode: Mode, launch: Launch
    ) -> KernelCode:
        if starts_early(launch, self._arch, mode):
            return KernelCode(name, defines, kernel, mode, launch)
        return KernelCode(name, defines, kernel)
