"""INT: what buffers and streams offer to other libraries, where they offer it."""

import numpy as np

from ggsched.errors import UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext

CPU = 1
"""DLPack's number for host memory."""


@case("INT-1", "A buffer exports its own bytes by DLPack, without a copy.", "dlpack")
def int1_own_bytes(w: TestContext) -> None:
    q, x, data = w.stream(), w.buffer(), w.bytes()
    w.put(q, x, data)
    kind, number = x.__dlpack_device__()  # type: ignore[attr-defined]
    w.require(int(number) >= 0, f"device number {number}")
    if int(kind) != CPU:
        w.require(x.__dlpack__() is not None, "no capsule")  # type: ignore[attr-defined]
        return
    array: Bytes = np.from_dlpack(x)  # type: ignore[arg-type, assignment]
    w.require(array.dtype == np.uint8 and array.shape == (NBYTES,), f"{array.dtype}{array.shape}")
    w.equal(array, data, "the array made of the buffer")
    more = w.bytes()
    w.put(q, x, more)
    w.equal(array, more, "the array made before an upload")


@case("INT-1", "DLPack of a closed buffer is refused.", "dlpack")
def int1_closed(w: TestContext) -> None:
    x = w.buffer()
    w.close(x)
    w.refused(UsageError, lambda: x.__dlpack__())  # type: ignore[attr-defined]


@case("INT-2", "__cuda_array_interface__ names bytes, their number and their address.",
      "cuda array")  # fmt: skip
def int2_description(w: TestContext) -> None:
    for nbytes in (16, NBYTES):
        x = w.buffer(nbytes)
        given = x.__cuda_array_interface__  # type: ignore[attr-defined]
        w.require(tuple(given["shape"]) == (nbytes,), f"shape {given['shape']}")
        w.require(given["typestr"] in ("|u1", "<u1"), f"type {given['typestr']}")
        w.require(int(given["version"]) >= 2, f"version {given['version']}")
        address, readonly = given["data"]
        w.require(int(address) > 0 and readonly is False, f"data {given['data']}")
        w.require(given.get("strides") in (None, (1,)), f"strides {given.get('strides')}")


@case("INT-2", "__cuda_array_interface__ of a closed buffer is refused.", "cuda array")
def int2_closed(w: TestContext) -> None:
    x = w.buffer()
    w.close(x)
    w.refused(UsageError, lambda: x.__cuda_array_interface__)  # type: ignore[attr-defined]


@case("INT-3", "__cuda_stream__ gives version 0 and a handle, another one for each stream.",
      "cuda stream", "two streams")  # fmt: skip
def int3_handle(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    handles = []
    for q in (a, b):
        version, handle = q.__cuda_stream__()  # type: ignore[attr-defined]
        w.require(version == 0, f"version {version}")
        w.require(isinstance(handle, int), f"handle {handle!r}")
        handles.append(handle)
    w.require(handles[0] != handles[1], "two streams have one handle")


@case("INT-3", "__cuda_stream__ of a closed stream is refused.", "cuda stream")
def int3_closed(w: TestContext) -> None:
    q = w.stream()
    w.close(q)
    w.refused(UsageError, lambda: q.__cuda_stream__())  # type: ignore[attr-defined]
