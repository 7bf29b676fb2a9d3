"""Which peers are there, in which version, and why one is not."""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

PEERS: Final = {
    "dask": "dask",
    "torch": "torch",
    "llama_cpp": "llama-cpp-python",
    "networkx": "networkx",
    "onnxruntime": "onnxruntime",
}
"""Distribution by the name of the module."""


def reason_missing(module: str) -> str:
    """Return why a module cannot be imported, or "" if it can."""
    try:
        import_module(module)
    except ImportError as error:
        return str(error) or type(error).__name__
    except (OSError, RuntimeError) as error:  # a shared library that does not load
        return f"{type(error).__name__}: {error}"
    return ""


def known_peers(modules: Iterable[str] = PEERS) -> dict[str, str]:
    """Return for each peer its version, or ``not measured: <reason>``."""
    found = {}
    for module in modules:
        name = PEERS.get(module, module)
        reason = reason_missing(module)
        found[name] = f"not measured: {reason}" if reason else _version(name)
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of unknown version"
