"""A small cache that forgets what was used least recently."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from ggsched.errors import UsageError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentCache(Generic[K, V]):
    """Keeps the ``limit`` entries used last; ``evict`` is called with each that is dropped.

    An entry whose eviction fails stays, so nothing is forgotten that was not released.
    """

    def __init__(self, limit: int, evict: Callable[[V], None] | None = None) -> None:
        if limit < 1:
            raise UsageError(f"a cache of {limit} entries", why="it keeps at least one")
        self._limit = limit
        self._evict = evict
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the entry, made on first use; None is an entry like others."""
        if key in self._entries:
            self.hits += 1
            self._entries.move_to_end(key)
            return self._entries[key]
        self.misses += 1
        while len(self._entries) >= self._limit:
            oldest = next(iter(self._entries))
            if self._evict is not None:
                self._evict(self._entries[oldest])
            del self._entries[oldest]
        entry = self._entries[key] = make()
        return entry

    def keep(self, limit: int) -> None:
        """Keep that many entries from now on, those used last."""
        if limit < 1:
            raise UsageError(f"a cache of {limit} entries", why="it keeps at least one")
        self._limit = limit
        for key in list(self._entries)[: max(0, len(self._entries) - limit)]:
            self.drop(key)

    def drop(self, key: K) -> V | None:
        """Evict the entry, if there is one, and return it."""
        if key not in self._entries:
            return None
        if self._evict is not None:
            self._evict(self._entries[key])
        return self._entries.pop(key)

    def __iter__(self) -> Iterator[K]:
        """Yield the present keys, those used last at the end; entries may be dropped meanwhile."""
        return iter(list(self._entries))

    def values(self) -> list[V]:
        """Return all entries, those used last at the end."""
        return list(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def take_all(self) -> list[V]:
        """Return all entries and forget them, without calling ``evict``."""
        entries = list(self._entries.values())
        self._entries.clear()
        return entries
