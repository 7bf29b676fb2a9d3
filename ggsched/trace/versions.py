"""Versions of the bytes of each storage, as the program would see them node by node."""

from ggsched.plan.memory import Region
from ggsched.plan.splits import Value
from ggsched.trace.schema import Access

_NEVER = 0


class Versions:
    """Which write of the program last reached each byte of each storage."""

    def __init__(self) -> None:
        self._count = 0
        self._pieces: dict[int, list[tuple[int, int, int]]] = {}

    def write(self, value: Value, home: Region, region: Region) -> tuple[Access, ...]:
        """Note a write of a region of a value whose bytes begin at ``home``; return it tagged."""
        if not region.nbytes:
            return ()
        self._count += 1
        start = value.start + region.offset - home.offset
        end = start + region.nbytes
        kept = []
        for first, last, version in self._pieces.get(value.storage, ()):
            kept += [(first, min(last, start), version)] if first < start else []
            kept += [(max(first, end), last, version)] if last > end else []
        self._pieces[value.storage] = sorted([*kept, (start, end, self._count)])
        tag = _tag(value.storage, self._count)
        return (Access(region.arena, region.offset, region.end, tag),)

    def read(
        self, value: Value, home: Region, region: Region, *, partly: bool = False
    ) -> tuple[Access, ...]:
        """Return a read of a region of a value, with the tags that it needs.

        Bytes that no node has written have no tag; with ``partly`` they are left out.
        """
        return tuple(
            Access(region.arena, first, last, _tag(value.storage, version))
            for first, last, version in self._versions(value, home, region)
            if version != _NEVER or not partly
        )

    def copy(self, value: Value, home: Region, region: Region) -> tuple[Access, ...]:
        """Return a write of a region of a value that brings it up to date."""
        return self.read(value, home, region)

    def _versions(self, value: Value, home: Region, region: Region) -> list[tuple[int, int, int]]:
        """Return the region's bytes as (first, one past the last, version), in the arena."""
        shift = home.offset - value.start
        start, end = region.offset - shift, region.end - shift
        found: list[tuple[int, int, int]] = []
        at = start
        for first, last, version in self._pieces.get(value.storage, ()):
            if last <= start or end <= first:
                continue
            if first > at:
                found.append((at, first, _NEVER))
            found.append((max(first, start), min(last, end), version))
            at = min(last, end)
        if at < end:
            found.append((at, end, _NEVER))
        return [(first + shift, last + shift, version) for first, last, version in found]


def _tag(storage: int, version: int) -> str:
    return f"t{storage}.{version}" if version else ""
