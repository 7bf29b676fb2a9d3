"""Typed, range-checked access to the metadata of a model."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from ggsched.errors import ModelError
from ggsched_llm.gguf_file import GgufFile
from ggsched_llm.gguf_header import MetaValue, quoted, shown
from ggsched_llm.ignored_keys import Ignored

# Positions are i32.
MAX_CONTEXT: Final = 2**31 - 1


class NotedKeys(dict[str, Any]):
    """Values by key, with a record of the keys that were read.

    Attributes:
        read: Keys that ``get`` was called with.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, and record its key."""
        self.read.add(key)
        return super().get(key, default)

    def unread(self, prefix: str, ignored: Mapping[str, Ignored]) -> list[str]:
        """Return the keys with a prefix that were not read and must not be ignored.

        Args:
            prefix: What these keys begin with.
            ignored: By key, without the prefix.
        """
        found = [key for key in self if key.startswith(prefix) and key not in self.read]
        rules = [(key, ignored.get(key.removeprefix(prefix))) for key in found]
        return [key for key, rule in rules if rule is None or not rule.accepts(self[key])]


def not_understood(where: str, keys: list[str], values: Mapping[str, Any]) -> ModelError:
    """Return the error of keys that nothing reads; it names the first one."""
    key = keys[0]
    value = values[key]
    text = shown(value) if isinstance(value, str | int | float | tuple) else quoted(str(value))
    more = f" and {len(keys) - 1} others" if len(keys) > 1 else ""
    return ModelError(
        f"key {quoted(key)[1:-1]} is {text}{more}",
        where=where,
        why="ggsched does not know it, and results may depend on it",
        hint="convert the model again, or report the key",
    )


class Keys:
    """The metadata of one architecture; what is wrong raises ``ModelError``."""

    def __init__(self, file: GgufFile, arch: str) -> None:
        """Read the keys that begin with an architecture."""
        self._file = file
        self._arch = arch
        known = file.metadata
        self._metadata = known if isinstance(known, NotedKeys) else NotedKeys(known)

    @property
    def arch(self) -> str:
        """The architecture, first part of all keys."""
        return self._arch

    @property
    def folder_pairing(self) -> Literal["adjacent", "halves"] | None:
        """What rotation pairs in a folder of Hugging Face, whose weights are in their order."""
        match self._file.metadata.get("rope.pairing"):
            case "adjacent" | "halves" as pairing:
                return pairing
        return None

    def fail(self, key: str, what: str, why: str = "") -> ModelError:
        """Return the error of a key."""
        where = f"{self._file.path}: key {self._arch}.{key}"
        return ModelError(what, where=where, why=why, hint="convert the model again")

    def get(self, key: str) -> MetaValue | None:
        """Return the value of a key, None if it is missing."""
        value: MetaValue | None = self._metadata.get(f"{self._arch}.{key}")
        return value

    def refuse_unread(self, ignored: Mapping[str, Ignored]) -> None:
        """Refuse keys of the architecture that nothing has read.

        Raises:
            ModelError: there is one that must not be ignored.
        """
        left = self._metadata.unread(f"{self._arch}.", ignored)
        if left:
            raise not_understood(self._file.path, left, self._metadata)

    def count(self, key: str, most: int, default: int | None = None, least: int = 1) -> int:
        """Return an integer from ``least`` to ``most``."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.fail(key, "is missing")
        if isinstance(value, tuple):
            raise self.fail(key, "is an array", "a value per layer is not supported")
        if type(value) is not int:
            raise self.fail(key, f"is {shown(value)}", "it must be an integer")
        if not least <= value <= most:
            raise self.fail(key, f"is {value}", f"it must be from {least} to {most}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Return a floating-point number from ``low`` to ``high``."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.fail(key, "is missing")
        if not isinstance(value, float):
            raise self.fail(key, f"is {shown(value)}", "it must be a floating-point number")
        # NaN fails every comparison.
        if not low <= value <= high:
            raise self.fail(key, f"is {value}", f"it must be from {low:g} to {high:g}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, f"is {shown(value)}", "it must be a truth value")
        return value

    def windowed(self, n_layer: int, period: int) -> tuple[bool, ...]:
        """Return which layers are windowed: all but the last of each period, or as the file says.

        Args:
            period: Of the architecture, if the file says nothing.
        """
        key = "attention.sliding_window_pattern"
        value = self.get(key)
        if isinstance(value, tuple):
            if len(value) != n_layer or not all(isinstance(v, bool | int) for v in value):
                raise self.fail(key, f"has {len(value)} elements", f"there are {n_layer} layers")
            return tuple(bool(v) for v in value)
        period = self.count(key, 1 << 16, default=period)
        return tuple(layer % period < period - 1 for layer in range(n_layer))
