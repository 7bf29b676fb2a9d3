"""Load one OpenCL driver and ask it for platforms and devices: in a process of its own.

    python -I -S vendor_probe.py LIBRARY

A driver may crash or hang in this. No loader takes part: platforms begin with the table of
functions that ``cl_khr_icd`` fixes. Imports nothing of ggsched, so that it takes milliseconds.
"""

import ctypes
import sys

CANNOT_LOAD = 3
_GET_DEVICES = 2
_ALL = 0xFFFFFFFF


def main(library: str) -> int:
    """Return ``CANNOT_LOAD`` with the reason on stderr, or 0; a driver without devices is fine."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return CANNOT_LOAD
    pointer, count = ctypes.c_void_p, ctypes.c_uint32()
    find = getattr(driver, "clGetExtensionFunctionAddress", None)
    if find is None:
        return 0
    find.restype = pointer
    address = find(b"clIcdGetPlatformIDsKHR")
    if not address:
        return 0
    ids = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint32, pointer, pointer)(address)
    if ids(0, None, ctypes.byref(count)) or not count.value:
        return 0
    platforms = (pointer * count.value)()
    if ids(count.value, platforms, None):
        return 0
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int32, pointer, ctypes.c_uint64, ctypes.c_uint32, pointer, pointer
    )
    for platform in platforms:
        table = ctypes.cast(platform or 0, ctypes.POINTER(ctypes.POINTER(pointer)))[0]
        kind(table[_GET_DEVICES])(platform, _ALL, 0, None, ctypes.byref(count))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
