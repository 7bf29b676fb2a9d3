"""Machine code of kernels: compiled by NVRTC once, kept on disk by hash and architecture."""

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from ggsched.errors import UsageError
from ggsched_cuda import driver
from ggsched_cuda.compiler.driver import compile_text, compiler_version
from ggsched_cuda.driver import CudaError
from ggsched_cuda_kernels.programmatic_launch import Mode, starts_early
from ggsched_cuda_kernels.sources import Defines, architecture_of, options_for, text_of
from ggsched_kernels.calls import Launch

_LOG: Final = logging.getLogger("ggsched.cuda")


def cache_folder() -> Path:
    """Return where machine code is kept: in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache"
    return Path(base) / "ggsched" / "cuda"


def cache_file(
    name: str, defines: Defines, arch: int, mode: Mode = "off", launch: Launch = Launch.IN_TURN
) -> Path:
    """Return where the machine code of a source is kept."""
    parts = (text_of(name, mode, launch), *options_for(arch, defines), str(compiler_version()))
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"{name}-{architecture_of(arch)}-{key}.cubin"


def machine_code(
    name: str, defines: Defines, arch: int, mode: Mode = "off", launch: Launch = Launch.IN_TURN
) -> bytes:
    """Return the machine code of a source, from the cache if it was compiled before.

    The key is a hash of the whole text, the options and the compiler's version; an entry that
    cannot be written is compiled again the next time.

    Raises:
        UsageError: the compiler refused it.
    """
    text, options = text_of(name, mode, launch), options_for(arch, defines)
    file = cache_file(name, defines, arch, mode, launch)
    try:
        code = file.read_bytes()
    except OSError:
        code = b""
    if not code:
        code = compile_text(text, options)
        _keep(file, code)
    return code


def loaded(
    name: str, defines: Defines, arch: int, mode: Mode = "off", launch: Launch = Launch.IN_TURN
) -> Any:
    """Return a module of machine code; what the driver refuses is compiled again once.

    Raises:
        CudaError: the driver refuses fresh code, too.
        UsageError: the compiler refused the source.
    """
    try:
        return driver.load_module(machine_code(name, defines, arch, mode, launch))
    except CudaError as error:
        file = cache_file(name, defines, arch, mode, launch)
        if not file.exists():
            raise
        with contextlib.suppress(OSError):
            file.unlink()
        _LOG.warning("machine code in %s is damaged (%s): it is compiled again", file, error)
    return driver.load_module(machine_code(name, defines, arch, mode, launch))


def _keep(file: Path, code: bytes) -> None:
    """Write a file in one step, so that another process sees all of it or nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(code)
        os.replace(part.name, file)
    except OSError:
        return  # a cache that cannot be written is not used; no error


class ProgramCache:
    """Kernels of one GPU, loaded when they are first asked for; safe from several threads.

    Args:
        arch: Compute capability of the GPU, e.g. 90.
    """

    def __init__(self, arch: int) -> None:
        self._arch = arch
        self._modules: dict[tuple[str, Defines, Mode, Launch], Any] = {}
        self._functions: dict[tuple[str, Defines, Mode, Launch, str], tuple[int, int]] = {}
        self._lock = threading.RLock()

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
        if not starts_early(launch, self._arch, mode):
            mode, launch = "off", Launch.IN_TURN
        module = (name, defines, mode, launch)
        key = (*module, kernel)
        with self._lock:
            found, most = self._functions.get(key, (0, -1))
            if shared_nbytes <= most:
                return found
            if module not in self._modules:
                self._modules[module] = loaded(name, defines, self._arch, mode, launch)
            try:
                found = driver.function_of(self._modules[module], kernel, shared_nbytes)
            except CudaError as error:
                raise UsageError(f"no kernel {kernel!r}", where=name, why=str(error)) from error
            self._functions[key] = (found, shared_nbytes)
            return found
