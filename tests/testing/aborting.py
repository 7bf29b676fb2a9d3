"""A backend that ends the process, for tests that run it in another one."""

import os
import sys

from ggsched.backend.base import BaseDevice, host_facts
from ggsched_testing.conformance import Harness
from ggsched_testing.conformance.isolated import KitRun


class Aborting(BaseDevice):
    """Ends the process at the first fill, as an assertion does."""

    def fill_memory(self, memory, offset, nbytes, pattern):
        sys.stderr.write("mine.c:12: ASSERT(nbytes == 0) failed\n")
        sys.stderr.flush()
        os.abort()


class AbortingRun(KitRun):
    """A run of the kit on it."""

    def harness(self):
        facts = host_facts("mine", (), is_host=False)
        return Harness("mine:0", open=lambda count, seed: [Aborting(facts, {})][:count])


class LostRun(KitRun):
    """A device that cannot be opened in the other process."""

    def harness(self):
        from ggsched.errors import BackendUnavailable

        raise BackendUnavailable("the device is gone", where="mine:0")
