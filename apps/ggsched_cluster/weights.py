"""Weights of a machine: read from a file of its own, kept from an earlier session, or sent.

The driver says what bytes it has: their length, their checksums and, where they lie in a file that
is mapped, its path, its length and where they begin. A worker looks for these bytes before it lets
them be sent: in the file of that name in its folder for models (``GGSCHED_MODELS``), in the file of
that path, and among what it keeps (``GGSCHED_WEIGHT_CACHE``). Bytes with another checksum are not
used, wherever they come from.
"""

import hashlib
import logging
import os
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from ggsched.errors import UsageError
from ggsched.files.mapping import file_behind, map_file
from ggsched.files.own import is_own
from ggsched.whole_file import write_whole

_LOG: Final = logging.getLogger("ggsched")
_DIGEST_NBYTES: Final = 16
_IS_DIGEST: Final = re.compile(rf"[0-9a-f]{{{2 * _DIGEST_NBYTES}}}").fullmatch

MIN_RANGE_NBYTES: Final = 64
"""Fewer bytes of a file are sent and not compared: the answer to a checksum of a few bytes would
say what they are."""


class Offer(msgspec.Struct, frozen=True, gc=False):
    """Bytes that a driver has.

    Attributes:
        dtype: Element type, as numpy writes it.
        shape: Of the array.
        checksum: CRC-32.
        digest: BLAKE2b (16 bytes), where a worker that keeps weights requests it; else "".
        path: The mapped file that they lie in; "" for none.
        offset: Where they begin there.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    checksum: int
    digest: str = ""
    path: str = ""
    file_nbytes: int = 0
    offset: int = 0

    def array(self, data: Any) -> np.ndarray:
        """Return bytes as the array."""
        return np.frombuffer(data, self.dtype).reshape(self.shape)


def offer_of(array: np.ndarray, *, with_digest: bool) -> tuple[Offer, memoryview]:
    """Return what is to be said of a weight, and its bytes."""
    array = np.ascontiguousarray(array)
    data = array.reshape(-1).view(np.uint8)
    behind = file_behind(data) if data.nbytes >= MIN_RANGE_NBYTES else None
    digest = _digest_of(data) if with_digest else ""
    place: tuple[str, int, int] = ("", 0, 0)
    if behind is not None:
        place = (os.path.abspath(behind[0].path), behind[0].nbytes, behind[1])
    said = (array.dtype.str, array.shape, array.nbytes, zlib.crc32(data.data), digest)
    return Offer(*said, *place), data.data


def _digest_of(data: Any) -> str:
    return hashlib.blake2b(memoryview(data), digest_size=_DIGEST_NBYTES).hexdigest()


def _require_digest(offer: Offer) -> str:
    """Return the digest of an offer.

    Raises:
        UsageError: it is not one; the driver's text must not become a path.
    """
    if not _IS_DIGEST(offer.digest):
        why = f"it has to be {2 * _DIGEST_NBYTES} hexadecimal digits"
        hint = "install the same version of ggsched on all machines"
        raise UsageError(f"{offer.digest!r} is not a digest", where="a weight", why=why, hint=hint)
    return offer.digest


class Sources:
    """Where a worker finds weights without their being sent.

    Args:
        models: Folder in which files of models are looked for by their names; "" for none.
        cache: Folder that keeps weights which were sent; "" for none.

    Attributes:
        nbytes: Bytes that came from its own files, from what it keeps, and that were sent.
    """

    def __init__(self, models: str = "", cache: str = "") -> None:
        self._models = models
        self._cache = Path(cache) if cache else None
        self._mapped: dict[Path, np.ndarray | None] = {}
        self.nbytes: Counter[str] = Counter()

    @property
    def keeps(self) -> bool:
        """Whether weights that are sent are kept."""
        return self._cache is not None

    def find(self, name: str, offer: Offer) -> np.ndarray | None:
        """Return the weight from here, or None if it has to be sent."""
        found = self._of_file(name, offer)
        if found is None:
            found = self._of_cache(offer)
        return found

    def sent(self, offer: Offer, data: Any) -> None:
        """Note bytes that were sent, and keep them where that is wanted and they are the digest's.

        Raises:
            UsageError: the digest, which names a file, is none.
        """
        self.nbytes["sent"] += offer.nbytes
        if self._cache is None or not offer.digest:
            return
        if _require_digest(offer) != _digest_of(data):
            _LOG.warning("%s: a weight is not kept: its bytes are others", offer.digest)
            return
        target = self._cache / offer.digest
        try:
            write_whole(target, data)
        except OSError as error:
            _LOG.warning("%s: a weight is not kept: %s", target, error.strerror or error)

    def _of_file(self, name: str, offer: Offer) -> np.ndarray | None:
        if not offer.path or offer.nbytes < MIN_RANGE_NBYTES or offer.offset < 0:
            return None
        path = Path(offer.path)
        for candidate in ([Path(self._models) / path.name] if self._models else []) + [path]:
            data = self._map(candidate)
            if data is None or len(data) != offer.file_nbytes:
                continue
            part = data[offer.offset : offer.offset + offer.nbytes]
            if zlib.crc32(part.data) == offer.checksum:
                self.nbytes["own file"] += offer.nbytes
                return offer.array(part)
            _LOG.warning("%s: %s has another checksum than the driver's: sent", candidate, name)
        return None

    def _of_cache(self, offer: Offer) -> np.ndarray | None:
        if self._cache is None or not offer.digest or not offer.nbytes:
            return None
        path = self._cache / _require_digest(offer)
        data = self._map(path) if is_own(path) else None
        if data is None or len(data) != offer.nbytes:
            return None
        if _digest_of(data) != offer.digest:
            _LOG.warning("%s: damaged: the weight is sent again", path)
            return None
        self.nbytes["kept"] += offer.nbytes
        return offer.array(data)

    def _map(self, path: Path) -> np.ndarray | None:
        """Map a file once; None if there is none that can be read."""
        if self._mapped.get(path) is None:
            try:
                self._mapped[path] = map_file(str(path))
            except OSError:
                self._mapped[path] = None
        return self._mapped[path]
