"""``python -m ggsched_opencl.is_refused``: whether another OpenCL is needed for this processor.

Exit codes: ``REFUSED`` where the platforms' compilers do not support an x86-64 processor, so that
Intel's runtime is worth its download; 0 otherwise, also where pyopencl is not installed.
"""

import sys
from typing import Final

from ggsched.errors import BackendUnavailable

REFUSED: Final = 4


def main() -> int:
    """Return the exit code."""
    try:
        from ggsched_opencl import driver
    except BackendUnavailable:
        return 0
    try:
        driver.find_devices()
    except BackendUnavailable as error:
        return REFUSED if error.hint == driver.INTEL_HINT else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
