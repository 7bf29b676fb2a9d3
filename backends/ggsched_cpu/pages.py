"""Pages of memory that is used bit by bit.

numpy requests huge pages, 2 MB each, where an array has 4 MB or more. Of a KV cache of which thirty
rows are used that is 4 MB for each block of a model. Larger caches keep huge pages, since reading
from small ones is 6 to 11 % slower.
"""

import ctypes
import mmap
import sys
from functools import cache
from typing import Any, Final

SMALL_PAGES_NBYTES: Final = 32 << 20
"""Shorter states take small pages; behind 4,096 others a token takes about a percent more time."""

_NO_HUGE_PAGES: Final = 15
"""``MADV_NOHUGEPAGE`` of Linux."""


def take_small_pages(memory: Any) -> None:
    """Use small pages for those that lie in an array, where the system has such a call."""
    if not sys.platform.startswith("linux"):
        return
    page = mmap.PAGESIZE
    start = -(-memory.ctypes.data // page) * page
    end = (memory.ctypes.data + memory.nbytes) // page * page
    if end > start:  # a refusal is no harm
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _NO_HUGE_PAGES)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
