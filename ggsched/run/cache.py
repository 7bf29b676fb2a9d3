"""A small cache that forgets what was used least recently."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentCache(Generic[K, V]):
    """Keeps the ``limit`` entries used last; ``evict`` is called with each that is dropped."""

    def __init__(self, limit: int, evict: Callable[[V], None] | None = None) -> None:
        self._limit = limit
        self._evict = evict
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the entry, made on first use."""
        entry = self._entries.get(key)
        if entry is not None:
            self.hits += 1
            self._entries.move_to_end(key)
            return entry
        self.misses += 1
        while len(self._entries) >= self._limit:
            _, old = self._entries.popitem(last=False)
            if self._evict is not None:
                self._evict(old)
        entry = self._entries[key] = make()
        return entry

    def clear(self) -> None:
        """Drop everything."""
        while self._entries:
            _, old = self._entries.popitem(last=False)
            if self._evict is not None:
                self._evict(old)
