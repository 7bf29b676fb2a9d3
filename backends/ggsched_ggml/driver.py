"""The library of ggml by its C interface: found, loaded, and compared with what is known of it.

Nothing else of the plug-in names a symbol of the library. Handles are integers. Functions are those
of ``FUNCTIONS`` and ``OPS``, as attributes of a ``Library``.
"""

import ctypes
import importlib.util
import logging
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ggsched.errors import BackendUnavailable
from ggsched.ir.dtype import GGUF_DTYPES

FOLDER: Final = "GGSCHED_GGML"
SERVERS: Final = "GGSCHED_GGML_RPC"
OLDEST, NEWEST = (0, 15), (0, 25)
"""Versions of the library that the tests have run with, both included."""

HINT: Final = (
    f"make ggml builds one; {FOLDER}=DIR names its folder; llama-cpp-python brings one as well"
)
_LOG: Final = logging.getLogger("ggsched.ggml")
_NAME: Final = {"darwin": "libggml.dylib", "win32": "ggml.dll"}.get(sys.platform, "libggml.so")

Handle = int


class InitParams(ctypes.Structure):
    """``struct ggml_init_params``."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


CODES: Final[Mapping[str, Any]] = {
    "v": None, "p": ctypes.c_void_p, "z": ctypes.c_size_t, "q": ctypes.c_int64,
    "i": ctypes.c_int32, "f": ctypes.c_float, "b": ctypes.c_bool, "s": ctypes.c_char_p,
    "I": InitParams,
}  # fmt: skip
"""Types of C by letter: nothing, pointer, size_t, int64_t, int or enum, float, bool, text."""

FUNCTIONS: Final[Mapping[str, str]] = {
    "ggml_version": "s", "ggml_log_set": "vpp", "ggml_init": "pI", "ggml_free": "vp",
    "ggml_tensor_overhead": "z", "ggml_graph_overhead_custom": "zzb",
    "ggml_new_graph_custom": "ppzb", "ggml_build_forward_expand": "vpp",
    "ggml_new_tensor_4d": "ppiqqqq", "ggml_view_tensor": "ppp", "ggml_set_output": "vp",
    "ggml_nbytes": "zp", "ggml_get_data": "pp", "ggml_set_name": "pps", "ggml_type_size": "zi",
    "ggml_blck_size": "qi",
    "ggml_backend_load_all_from_path": "vs", "ggml_backend_register": "vp",
    "ggml_backend_dev_count": "z", "ggml_backend_dev_get": "pz", "ggml_backend_dev_name": "sp",
    "ggml_backend_dev_get_props": "vpp", "ggml_backend_dev_backend_reg": "pp",
    "ggml_backend_dev_init": "pps", "ggml_backend_dev_buffer_type": "pp",
    "ggml_backend_dev_host_buffer_type": "pp", "ggml_backend_dev_supports_op": "bpp",
    "ggml_backend_dev_buffer_from_host_ptr": "pppzz",
    "ggml_backend_reg_by_name": "ps", "ggml_backend_reg_get_proc_address": "pps",
    "ggml_backend_buft_alloc_buffer": "ppz", "ggml_backend_buft_get_alignment": "zp",
    "ggml_backend_buft_get_max_size": "zp", "ggml_backend_buft_get_alloc_size": "zpp",
    "ggml_backend_buft_is_host": "bp",
    "ggml_backend_buffer_free": "vp", "ggml_backend_buffer_get_base": "pp",
    "ggml_backend_buffer_set_usage": "vpi",
    "ggml_backend_tensor_alloc": "ippp", "ggml_backend_view_init": "ip",
    "ggml_backend_tensor_set_async": "vpppzz", "ggml_backend_tensor_get_async": "vpppzz",
    "ggml_backend_tensor_copy_async": "vpppp",
    "ggml_backend_synchronize": "vp", "ggml_backend_free": "vp",
    "ggml_backend_graph_compute_async": "ipp", "ggml_backend_graph_plan_create": "ppp",
    "ggml_backend_graph_plan_compute": "ipp", "ggml_backend_graph_plan_free": "vpp",
    "ggml_backend_event_new": "pp", "ggml_backend_event_free": "vp",
    "ggml_backend_event_record": "vpp", "ggml_backend_event_wait": "vpp",
}  # fmt: skip
"""Result and arguments of each function that is used, in ``CODES``."""

OPS: Final[Mapping[str, str]] = {
    "ggml_add": "pppp", "ggml_sub": "pppp", "ggml_mul": "pppp", "ggml_div": "pppp",
    "ggml_add_id": "ppppp", "ggml_cont": "ppp", "ggml_cast": "pppi", "ggml_cpy": "pppp",
    "ggml_concat": "ppppi", "ggml_flash_attn_ext": "ppppppfff",
    "ggml_flash_attn_ext_add_sinks": "vpp", "ggml_get_rows": "pppp", "ggml_mul_mat": "pppp",
    "ggml_mul_mat_id": "ppppp", "ggml_mul_mat_set_prec": "vpi", "ggml_norm": "pppf",
    "ggml_flash_attn_ext_set_prec": "vpi",
    "ggml_repeat_4d": "pppqqqq", "ggml_rms_norm": "pppf", "ggml_rope_ext": "pppppiiiffffff",
    "ggml_scale_bias": "pppff", "ggml_set_rows": "ppppp", "ggml_sigmoid": "ppp",
    "ggml_silu": "ppp", "ggml_soft_max_add_sinks": "vpp", "ggml_soft_max_ext": "ppppff",
    "ggml_softplus": "ppp", "ggml_sum_rows": "ppp", "ggml_swiglu_oai": "ppppff",
    "ggml_swiglu_split": "pppp", "ggml_tanh": "ppp",
}  # fmt: skip
"""Functions that add a node to a graph, or change one; one that is missing only costs its op."""

TYPES: Final[Mapping[str, int]] = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 10,
    "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14, "iq4_nl": 20, "iq4_xs": 23, "i8": 24, "i32": 26,
    "bf16": 30, "mxfp4": 39,
}  # fmt: skip
"""ggml's number of each element type; the bytes of a block are the same as ours."""


class Tensor(ctypes.Structure):
    """``struct ggml_tensor``."""

    _fields_ = (
        ("type", ctypes.c_int32), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4), ("op", ctypes.c_int32), ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32), ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p), ("padding", ctypes.c_char * 8),
    )  # fmt: skip


OBJECT_NBYTES: Final = 32  # what a context keeps beside each tensor


class Props(ctypes.Structure):
    """``struct ggml_backend_dev_props``; later versions append to what is here."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t), ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int32), ("device_id", ctypes.c_char_p),
        ("is_async", ctypes.c_bool), ("host_buffer", ctypes.c_bool),
        ("buffer_from_host_ptr", ctypes.c_bool), ("events", ctypes.c_bool),
        ("later", ctypes.c_char * 60),
    )  # fmt: skip


def unusable(what: str, where: str = "", why: str = "", hint: str = HINT) -> BackendUnavailable:
    """Return the error for a library that cannot be used."""
    return BackendUnavailable(what, where=where, why=why, hint=hint)


LogFunction: Final = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)


class Library:
    """The functions of a loaded library, and its version.

    Args:
        found: Has the symbols, as ``ctypes.CDLL``; its functions are given types.
        where: For messages, the file.

    Raises:
        BackendUnavailable: a symbol is missing, or version or layout are others than those known.
    """

    version = ""

    def __init__(self, found: Any, where: str) -> None:
        self.where = where
        for name, signature in FUNCTIONS.items():  # the first one is that of the version
            if not self.take(found, name, signature):
                raise unusable(f"the library lacks the function {name}", where)
            if not self.version:
                self.version = self._checked_version()
        for name, signature in OPS.items():
            self.take(found, name, signature)
        self._check_layout()
        self._log = LogFunction(_log)
        self.ggml_log_set(ctypes.cast(self._log, ctypes.c_void_p), None)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the library of ggml has no {name}")

    def take(self, found: Any, name: str, signature: str) -> bool:
        """Add a function, with types by ``CODES``; return whether the library has it."""
        function = getattr(found, name, None)
        if function is None:
            return False
        function.restype = CODES[signature[0]]
        function.argtypes = [CODES[code] for code in signature[1:]]
        setattr(self, name, function)
        return True

    def context(self, nbytes: int) -> Handle:
        """Return a context of ggml without memory for the elements of tensors."""
        made: Handle = self.ggml_init(InitParams(nbytes, None, True))
        return made

    def set_strides(self, tensor: Handle, strides: tuple[int, ...]) -> None:
        """Set ``nb`` of a tensor."""
        Tensor.from_address(tensor).nb[:] = strides

    def _checked_version(self) -> str:
        text = str(self.ggml_version().decode())
        match = re.match(r"(\d+)\.(\d+)", text)
        pair = (int(match[1]), int(match[2])) if match else (0, 0)
        if not OLDEST <= pair <= NEWEST:
            first, last = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
            why = f"only {first} to {last} are"
            what = f"ggml {text} is not supported"
            raise unusable(what, self.where, why)
        return text

    def _check_layout(self) -> None:
        """Compare the layout of tensors, and the element types, with what the library says."""
        context = self.context(8 * self.ggml_tensor_overhead())
        try:
            wrong = next(self._wrong_layout(context), "") or next(self._wrong_types(), "")
        finally:
            self.ggml_free(context)
        if wrong:
            raise unusable(f"ggml {self.version} lays {wrong} out in another way", self.where)

    def _wrong_layout(self, context: Handle) -> Iterator[str]:
        if self.ggml_tensor_overhead() != ctypes.sizeof(Tensor) + OBJECT_NBYTES:
            yield "struct ggml_tensor"
            return
        handle = self.ggml_new_tensor_4d(context, TYPES["f16"], 3, 5, 7, 2)
        tensor = Tensor.from_address(handle)
        self.ggml_set_name(handle, b"probe")
        seen = tensor.type, tuple(tensor.ne), tuple(tensor.nb), tensor.name, tensor.data
        if seen != (TYPES["f16"], (3, 5, 7, 2), (2, 6, 30, 210), b"probe", None):
            yield "type, ne, nb, name or data"
        self.set_strides(handle, (4, 16, 100, 1000))
        if self.ggml_nbytes(handle) != 2 * 4 + 4 * 16 + 6 * 100 + 1000 + 2:
            yield "nb"
        tensor.data = 4096
        if self.ggml_get_data(handle) != 4096:
            yield "data"
        view = Tensor.from_address(self.ggml_view_tensor(context, handle))
        if view.view_src != handle or view.view_offs or view.buffer is not None:
            yield "view_src, view_offs or buffer"

    def _wrong_types(self) -> Iterator[str]:
        for dtype in GGUF_DTYPES:
            kind = TYPES[dtype.name]
            size, block = self.ggml_type_size(kind), self.ggml_blck_size(kind)
            if (size, block) != (dtype.block_nbytes, dtype.block):
                yield f"blocks of {dtype.name}"


def _log(level: int, text: bytes | None, _: int | None) -> None:
    _LOG.debug("%s", (text or b"").decode(errors="replace").rstrip())


def find_library(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of the library: of ``GGSCHED_GGML``, of an installed package, of the system.

    Raises:
        BackendUnavailable: there is none.
    """
    named = environ.get(FOLDER, "").strip()
    if named:
        found = _library_in(Path(named))
        if found is None:
            raise unusable(f"no {_NAME} is in {named}", FOLDER, hint="name the library's folder")
        return found
    for found in filter(None, map(_library_in, _places(environ))):
        return found
    raise unusable("no library of ggml is installed")


def _library_in(folder: Path) -> Path | None:
    some = (folder / part / _NAME for part in (".", "lib", "src", "bin"))
    return next((path.resolve() for path in some if path.is_file()), None)


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    for package in ("llama_cpp", "ggml"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(folder)
    for text in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if text:
            yield Path(text)
    multiarch = sysconfig.get_config_var("MULTIARCH") or "."
    yield from (Path(root, multiarch) for root in ("/usr/local/lib", "/usr/lib"))
    yield from map(Path, ("/usr/local/lib", "/usr/lib", "/opt/homebrew/lib"))


@lru_cache(maxsize=1)
def load(path: Path, servers: str = "") -> Library:
    """Load the library of a file, once for the process, and let it find its backends.

    Args:
        servers: Addresses of RPC servers, with commas between them.

    Raises:
        BackendUnavailable: it cannot be used, or a server is not there.
    """
    library = Library(_opened(path), str(path))
    library.ggml_backend_load_all_from_path(os.fsencode(path.parent))
    for server in filter(None, map(str.strip, servers.split(","))):
        _add_server(library, server)
    return library


def loaded() -> Library:
    """Return the library that devices of this process use."""
    return load(find_library(), os.environ.get(SERVERS, "").strip())


def _opened(path: Path) -> ctypes.CDLL:
    """Open a library; what it needs and the system does not find is looked for beside it."""
    while True:
        try:
            return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            needed, why = path.parent / str(error).partition(":")[0], str(error)
        if needed == path or not needed.is_file():
            raise unusable("the library cannot be loaded", str(path), why)
        _opened(needed)


def _add_server(library: Library, server: str) -> None:
    registry = library.ggml_backend_reg_by_name(b"RPC")
    name = b"ggml_backend_rpc_add_server"
    address = library.ggml_backend_reg_get_proc_address(registry, name) if registry else None
    if not address:
        raise unusable("the library has no RPC", SERVERS)
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    found = add(server.encode())
    if not found:
        raise unusable(f"no server answers at {server}", SERVERS, hint="start rpc-server there")
    library.ggml_backend_register(found)


def device_handles(library: Library) -> dict[str, Handle]:
    """Return the devices of all backends by name, in ggml's order."""
    handles = map(library.ggml_backend_dev_get, range(library.ggml_backend_dev_count()))
    return {library.ggml_backend_dev_name(h).decode(): h for h in handles}


def properties(library: Library, device: Handle) -> Props:
    """Return what a backend says of a device."""
    props = Props()
    library.ggml_backend_dev_get_props(device, ctypes.addressof(props))
    return props


def own_function(library: Library, device: Handle, name: str, *args: Any) -> Callable[..., Any]:
    """Return a function of a device's own backend; it does nothing where there is none."""
    registry = library.ggml_backend_dev_backend_reg(device)
    address = library.ggml_backend_reg_get_proc_address(registry, name.encode())
    return ctypes.CFUNCTYPE(None, *args)(address) if address else lambda *_: None
