"""What a case may leave open, and how it is ended."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ggsched_testing.conformance.latch import Latch


@dataclass(slots=True)
class Hold:
    """A stream that is held.

    Attributes:
        is_real: Whether the device can be held at all; where not, a case is decided by its bytes.
    """

    is_real: bool
    _latch: Latch | None
    _log: Callable[[str], None]

    def release(self) -> None:
        """Let the stream go on; legal twice."""
        if self._latch is not None:
            self._log("latch.release()")
            self._latch.release()
            self._latch = None


class Aborted:
    """A capture that the case may have left open."""

    def __init__(self, capture: Any) -> None:
        self.close = capture.abort
