"""Handles of cuBLAS: the first one of a context is made by a thread, beside what is uploaded.

Loading the library and making a handle take some tenths of a second, most of them without the
interpreter's lock; the first product is compiled later than that.
"""

from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from ggsched.backend.timeouts import start_thread
from ggsched_cuda import driver
from ggsched_cuda_kernels.blas import driver as blas


class BlasHandles:
    """Handles of one context; safe from several threads.

    Args:
        context: The context.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._lock = Lock()
        self._first: list[int] = []
        self._maker: Thread | None = None

    def begin(self) -> None:
        """Begin to make the first handle, in a thread; nothing but for the first call."""
        with self._lock:
            if self._maker is None:
                maker = Thread(target=self._make, name="ggsched cublas handle", daemon=True)
                with suppress(Exception):  # then ``take`` makes it
                    start_thread(maker, "cuda")
                    self._maker = maker

    def take(self) -> int:
        """Return a handle, which no one else has; its context is current on this thread.

        Raises:
            BackendUnavailable: cuBLAS cannot be loaded.
        """
        self.join()
        try:
            return self._first.pop()
        except IndexError:
            return blas.make_handle()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is being made, at most so long."""
        if self._maker is not None:
            self._maker.join(timeout_s)

    def _make(self) -> None:
        with suppress(Exception):  # found again by who needs a handle
            driver.enter(self._context)
            self._first.append(blas.make_handle())
