"""Which memory is whose: blocks of a caching allocator that are given out again and again.

The allocator hands a block that was freed on its stream to the next tensor of that stream at once:
the order of one stream makes that safe, and only for it. A use on another stream is safe if the
allocator knows of it (``record_stream``) or if the first use of the next tensor comes after it.
So whoever first touches a tensor also takes the freed blocks that its bytes may be:

* where addresses are the same, all that was done with the freed block;
* where the allocator could have given the block, because it is of the same stream and pool and
  large enough, what other streams did with it. What it gives in one run is luck.

Each memory object has bytes of its own in the trace. What a stream other than the allocating one
does is recorded a second time, on a shadow of the object, so that uses which ``record_stream``
covers can be left out.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ggsched_race.recording import Bytes

SMALL_NBYTES: Final = 1 << 20
"""Up to here the caching allocator of PyTorch serves from the pool of small blocks."""
_MAX_CANDIDATES: Final = 256


class Block:
    """Memory from when it is given to a tensor until the tensor lets it go.

    Attributes:
        address: First byte, as the allocator has it.
        stream: The actor that it was allocated for; None where that was not seen.
        pool: What it was allocated from: blocks of different pools never meet.
        site: Where it was allocated.
        memory: Number in the trace; below zero until it is touched.
        whole: All of it, as bytes of the trace.
        recorded: Streams of which the allocator was told.
        shadows: The shadow for each other stream that has used it.
        serial: Counts allocations and frees: that of its allocation, then that of its free.
        is_fresh: Whether nobody has touched it.
        is_candidate: Whether it is freed, and a block elsewhere may be cut from it.
        parts: Of a freed block, the number of parts that have not been given out again.
    """

    __slots__ = (
        "address", "is_candidate", "is_fresh", "memory", "nbytes", "parts", "pool", "recorded",
        "serial", "shadows", "site", "stream", "uses", "whole",
    )  # fmt: skip

    def __init__(
        self, address: int, stream: int | None, pool: object, site: int, serial: int
    ) -> None:
        self.address, self.nbytes, self.stream, self.pool = address, 0, stream, pool
        self.site, self.serial = site, serial
        self.memory, self.whole = -1, (-1, 0, 0)
        self.recorded: set[int] = set()
        self.uses: set[int] = set()
        self.shadows: dict[int, int] = {}
        self.is_fresh, self.is_candidate, self.parts = True, False, 0

    @property
    def pool_key(self) -> tuple[object, ...]:
        """What the allocator chooses a list of free blocks by."""
        return self.stream, self.pool, self.nbytes <= SMALL_NBYTES

    def hazards(self) -> list[int]:
        """Return the shadows of streams that the allocator does not know of."""
        return [shadow for s, shadow in self.shadows.items() if s not in self.recorded]


class _FreedPart(NamedTuple):
    """A part of a freed block that has not been given out again."""

    start: int
    end: int
    serial: int
    block: Block


class Blocks:
    """Blocks in use, and freed ones of which uses may still be under way.

    Attributes:
        are_shared: Whether another library uses parts of them, or gives parts of its own.

    Args:
        add_memory: Called with a block, the tensor that shows it, and whether it is for a shadow;
            returns the number of a new memory object.
    """

    def __init__(self, add_memory: Callable[[Block, Any, bool], int]) -> None:
        self._add_memory = add_memory
        self._live: dict[int, Block] = {}
        self._used: dict[int, dict[int, Block]] = {}
        self._freed_parts: list[_FreedPart] = []
        self._candidates: dict[object, list[Block]] = {}  # by pool
        self._serial = 0
        self._gone: list[Block] = []
        self.are_shared = False

    @property
    def has_gone(self) -> bool:
        """Whether there are memories that no later access meets."""
        return bool(self._gone)

    def gone(self) -> list[int]:
        """Return memories that no later access meets, each once; after the work that took them."""
        found, self._gone = self._gone, []
        return [m for b in found for m in (b.memory, *b.shadows.values()) if m >= 0]

    def _note_gone(self, block: Block) -> None:
        if not block.parts and not block.is_candidate:
            self._gone.append(block)

    def allocated(
        self, address: int, stream: int | None, pool: object = None, site: int = -1
    ) -> Block:
        """Note that an address was given out; its length is known at the first access."""
        self._serial += 1
        old = self._live.get(address)
        if old is not None:
            self._not_used(old)
        block = self._live[address] = Block(address, stream, pool, site, self._serial)
        return block

    def _not_used(self, block: Block) -> None:
        for stream in block.uses if block.stream is None else block.uses & {block.stream}:
            del self._used[stream][block.address]

    def at(self, address: int, nbytes: int, tensor: Any = None) -> Block:
        """Return the block that memory is, or is a part of; one that was not seen is new."""
        block = self._live.get(address)
        if block is None and self.are_shared:
            block = self._around(address, nbytes)
        if block is None:
            block = self.allocated(address, None)
        if address + nbytes > block.address + block.nbytes:
            block.nbytes = nbytes
            block.whole = (block.memory, 0, nbytes)
        if block.memory < 0:
            block.memory = self._add_memory(block, tensor, False)
            block.whole = (block.memory, 0, block.nbytes)
        return block

    def fresh(self, address: int) -> Block | None:
        """Return the block at an address, if nobody has touched it."""
        block = self._live.get(address)
        return block if block is not None and block.is_fresh and block.memory < 0 else None

    def used_by(self, stream: int) -> Mapping[int, Block]:
        """Return by address the blocks that a stream has used, and of which no other is known.

        Another use of these changes nothing.
        """
        return self._used.get(stream, {})

    def _around(self, address: int, nbytes: int) -> Block | None:
        """Return the block that another library has handed over a part of."""
        end = address + nbytes
        around = (b for b in self._live.values() if b.address <= address < b.address + b.nbytes)
        return next((b for b in around if end <= b.address + b.nbytes), None)

    def freed(self, address: int) -> Block | None:
        """Note that the program has let go of an address."""
        block = self._live.pop(address, None)
        if block is None or block.memory < 0:
            return None
        if block.uses:
            self._not_used(block)
            self._serial += 1
            block.serial = self._serial
            part = _FreedPart(address, address + block.nbytes, self._serial, block)
            insort(self._freed_parts, part)
            block.parts = 1
            if block.shadows and block.hazards() and block.stream is not None:
                block.is_candidate = True
                candidates = self._candidates.setdefault(block.pool_key, [])
                candidates.append(block)
                if len(candidates) > _MAX_CANDIDATES:
                    self._note_gone(self._dropped(candidates[0]))
        else:
            self._gone.append(block)
        return block

    def _dropped(self, block: Block) -> Block:
        self._candidates[block.pool_key].remove(block)
        block.is_candidate = False
        return block

    def touch(
        self, block: Block, stream: int, tensor: Any = None
    ) -> tuple[int | None, list[Bytes]]:
        """Note an access; return the shadow to record it on too, and what the tensor takes.

        What it takes is not empty for the first access only.
        """
        takes: list[Bytes] = []
        if block.is_fresh:
            block.is_fresh = False
            if not self._takes_one_of(block, stream):
                takes = list(self._taken(block, stream))
        block.uses.add(stream)
        if block.stream is None or stream == block.stream:
            self._used.setdefault(stream, {})[block.address] = block
            return None, takes
        if stream not in block.shadows:
            block.shadows[stream] = self._add_memory(block, tensor, True)
        return block.shadows[stream], takes

    def _takes_one_of(self, block: Block, stream: int) -> bool:
        """Take a block that is the same memory, as mostly, if only this stream has used it."""
        parts = self._freed_parts
        if self._candidates and self._candidates.get(block.pool_key):
            return False
        if not parts:
            return True
        start, end = block.address, block.address + block.nbytes
        k = bisect_left(parts, (start,))
        if k and parts[k - 1].end > start:
            return False
        if k == len(parts) or parts[k].start >= end:
            return True
        part = parts[k]
        old = part.block
        is_whole = part.start == start and part.end == end
        if not is_whole or old.recorded or old.is_candidate or old.uses != {stream}:
            return False
        del parts[k]
        old.parts -= 1
        self._note_gone(old)
        return True

    def _taken(self, block: Block, stream: int) -> Iterator[Bytes]:
        start, end = block.address, block.address + block.nbytes
        k = bisect_left(self._freed_parts, (start,))
        while k and self._freed_parts[k - 1].end > start:
            k -= 1
        same: set[Block] = set()
        while k < len(self._freed_parts) and self._freed_parts[k].start < end:
            part = self._freed_parts.pop(k)
            old = part.block
            if part.start < start or part.end > end:
                parts = [(part.start, min(part.end, start)), (max(part.start, end), part.end)]
                kept = [part._replace(start=a, end=b) for a, b in parts if a < b]
                self._freed_parts[k:k] = kept
                k += len(kept)
                old.parts += len(kept)
            old.parts -= 1
            same.add(old)
            first = max(part.start, start) - old.address
            last = min(part.end, end) - old.address
            yield from ((m, first, last) for m in self._conflicts(old, stream))
        yield from self._possibly_taken(block, same)
        for old in same:
            self._note_gone(old)

    def _conflicts(self, old: Block, stream: int) -> Sequence[int]:
        """Return the memories whose accesses a new tensor at the same address has to follow."""
        if old.recorded:
            return old.hazards()
        return () if old.uses == {stream} else (old.memory,)

    def _possibly_taken(self, block: Block, same: set[Block]) -> Iterator[Bytes]:
        """Yield bytes of blocks elsewhere that the allocator could have given."""
        for old in same:
            if old.is_candidate:
                self._dropped(old)
        for old in list(self._candidates.get(block.pool_key, ())):
            if block.nbytes <= old.nbytes and old.serial < block.serial:
                self._dropped(old)
                yield from ((shadow, 0, block.nbytes) for shadow in old.hazards())
                self._note_gone(old)


class CachingAllocator:
    """Addresses as PyTorch's allocator for CUDA would give them, in the same process and order.

    Blocks are of one stream and of the pool of small or of large blocks, multiples of 512 bytes,
    cut from segments of 2 or 20 MiB; the smallest one that fits is given, and neighbours are joined
    when they are free. A block of which another stream was recorded is free at once as well: here
    all work is done when it is called.
    """

    def __init__(self) -> None:
        self._free: dict[object, list[tuple[int, int]]] = {}
        self._used: dict[int, tuple[int, object]] = {}
        self._next = 1 << 40

    def allocate(self, nbytes: int, stream: int, pool: object = None) -> int:
        """Return the address of a block."""
        size = max(512, -(-nbytes // 512) * 512)
        is_small = size <= SMALL_NBYTES
        key = (stream, pool, is_small)
        free = self._free.setdefault(key, [])
        fitting = [(length, address) for address, length in free if length >= size]
        if not fitting:
            segment = (2 << 20) if is_small else max(20 << 20, -(-size // (2 << 20)) * (2 << 20))
            fitting = [(segment, self._next)]
            free.append((self._next, segment))
            self._next += segment + (2 << 20)
        length, address = min(fitting)
        free.remove((address, length))
        is_cut = length - size >= (512 if is_small else SMALL_NBYTES + 1)
        if is_cut:
            free.append((address + size, length - size))
        self._used[address] = (size if is_cut else length, key)
        return address

    def free(self, address: int) -> None:
        """Return a block to its pool."""
        size, key = self._used.pop(address)
        free = self._free[key]
        for other, length in list(free):
            if other + length == address or other == address + size:
                free.remove((other, length))
                address, size = min(address, other), size + length
        free.append((address, size))
