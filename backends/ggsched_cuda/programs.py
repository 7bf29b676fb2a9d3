"""Machine code of kernels: compiled by NVRTC once, kept on disk by hash and architecture."""

import hashlib
import os
import tempfile
import threading
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ggsched.errors import UsageError
from ggsched_cuda import driver
from ggsched_cuda.compiler.driver import compile_text, compiler_version
from ggsched_cuda.driver import CudaError
from ggsched_cuda.programmatic_launch import FIRST_ARCH, Mode, with_early_start
from ggsched_kernels import SOURCES, common_text, source

OPTIONS: Final = ("-std=c++17",)
OWN: Final = "helpers"
"""Source of this plug-in's own kernels."""

BEHIND: Final = {"rms_mul": "norm", "rope_heads": "rope", "route": "sort"}
"""Own sources that stand behind the text of a shared one."""

_FED: Final = ("weights.h", "pieces.h", "warps.h", "blocks.h")
_OWN_FED: Final = ("fed_cut.h", "fed_row.h", "fed_pieces.h", "fed_tiles.h", "fed_jobs.h")
WITH_HEADERS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "attention": (("warps.h",), ("attention.h",)),
    "heads_attention": (("warps.h", "rope.cl"), ("attention.h",)),
    "sum_add": ((), ()),
    "to_bf16": (("weights.h",), ()),
    "to_f16": (("weights.h",), ()),
    "unscale": ((), ()),
    "to_halves": ((), ()),
    "tile_product": (("weights.h",), ()),
    "fed_rows": (_FED, _OWN_FED),
    "fed_experts": ((*_FED, "sort_key.h"), _OWN_FED),
}
"""Own sources for warps: headers of the shared ones, and own ones, that they stand behind."""

Defines = tuple[tuple[str, str], ...]


def architecture_of(arch: int) -> str:
    """Return what the compiler calls an architecture; those with own instructions get them."""
    return f"sm_{arch}a" if arch in (90, 100, 120) else f"sm_{arch}"


def text_of(name: str, mode: Mode = "off") -> str:
    """Return the text of a source, shared or own; enrolled kernels may begin early.

    Raises:
        UsageError: there is none of that name.
    """
    if name in SOURCES:
        return with_early_start(source(name, "cuda"), mode)
    if name != OWN and name not in BEHIND and name not in WITH_HEADERS:
        known = ", ".join([*SOURCES, *BEHIND, *WITH_HEADERS, OWN])
        raise UsageError(f"no kernel source {name!r}", hint=f"sources: {known}")
    text = _own(f"{name}.cu")
    if name in BEHIND:
        return with_early_start(source(BEHIND[name], "cuda") + "\n" + text, mode)
    if name in WITH_HEADERS:
        shared, own = WITH_HEADERS[name]
        headers = common_text("cuda", *shared, has_warps=True)
        return with_early_start("\n".join([headers, *map(_own, own), text]), mode)
    return text


def _own(file: str) -> str:
    return resources.files("ggsched_cuda").joinpath("kernels", file).read_text("utf-8")


def options_for(arch: int, defines: Defines) -> tuple[str, ...]:
    """Return the options of the compiler."""
    return (
        f"--gpu-architecture={architecture_of(arch)}",
        *OPTIONS,
        *(f"-D{name}={value}" for name, value in defines),
    )


def cache_folder() -> Path:
    """Return where machine code is kept: in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache"
    return Path(base) / "ggsched" / "cuda"


def machine_code(name: str, defines: Defines, arch: int, mode: Mode = "off") -> bytes:
    """Return the machine code of a source, from the cache if it was compiled before.

    The key is a hash of the whole text, the options and the compiler's version; an entry that
    cannot be written is compiled again the next time.

    Raises:
        UsageError: the compiler refused it.
    """
    text, options = text_of(name, mode), options_for(arch, defines)
    parts = (text, *options, str(compiler_version()))
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    file = cache_folder() / f"{name}-{architecture_of(arch)}-{key}.cubin"
    try:
        code = file.read_bytes()
    except OSError:
        code = b""
    if not code:
        code = compile_text(text, options)
        _keep(file, code)
    return code


def _keep(file: Path, code: bytes) -> None:
    """Write a file in one step, so that another process sees all of it or nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(code)
        os.replace(part.name, file)
    except OSError:
        return  # a cache that cannot be written is no cache, and no error


class ProgramCache:
    """Kernels of one GPU, loaded when they are first asked for; safe from several threads.

    Args:
        arch: Compute capability of the GPU, e.g. 90.
    """

    def __init__(self, arch: int) -> None:
        self._arch = arch
        self._modules: dict[tuple[str, Defines, Mode], Any] = {}
        self._functions: dict[tuple[str, Defines, Mode, str], tuple[int, int]] = {}
        self._lock = threading.RLock()

    def function(
        self,
        name: str,
        defines: Defines,
        kernel: str,
        shared_nbytes: int = 0,
        mode: Mode = "off",
    ) -> int:
        """Return a kernel; the GPU's context is current.

        Raises:
            UsageError: the compiler refused it, or there is no such kernel.
        """
        mode = mode if self._arch >= FIRST_ARCH else "off"
        module, key = (name, defines, mode), (name, defines, mode, kernel)
        with self._lock:
            found, most = self._functions.get(key, (0, -1))
            if shared_nbytes <= most:
                return found
            if module not in self._modules:
                code = machine_code(name, defines, self._arch, mode)
                self._modules[module] = driver.load_module(code)
            try:
                found = driver.function_of(self._modules[module], kernel, shared_nbytes)
            except CudaError as error:
                raise UsageError(f"no kernel {kernel!r}", where=name, why=str(error)) from error
            self._functions[key] = (found, shared_nbytes)
            return found
