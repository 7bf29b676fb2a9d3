"""Calls of the CUDA driver, as CUPTI reports them: given as data, so that no GPU is needed."""

import ctypes
import io
from contextlib import suppress

import numpy as np
import pytest

from ggsched.cli.main import main
from ggsched_race import cupti
from ggsched_race.driver_calls import SIGNATURES, DriverCalls
from ggsched_race.recording import Recording, trace_of_journal
from ggsched_race.report import check_program

X, Y, N = 1 << 40, (1 << 40) + 4096, 1024
A, B, NON_BLOCKING = 0x10, 0x20, 1


def report_of(*calls, host=None):
    """Return what is found in calls: (name, parameters by name)."""
    out = io.BytesIO()
    recorded = DriverCalls(Recording(out, "calls"))
    made = [("cuMemAlloc_v2", {"address": a, "nbytes": N}) for a in (X, Y)]
    made += [("cuStreamCreate", {"stream": s, "flags": NON_BLOCKING}) for s in (A, B)]
    for call in (*made, *calls):
        if callable(call):
            call()
            continue
        name, given = call
        recorded.record(name, given, given.get("pointers", ()), given.get("label", ""))
    return check_program(trace_of_journal(out.getvalue()))


def launch(stream, *pointers):
    given = {"stream": stream, "pointers": [7, *pointers], "label": "kernel"}
    return "cuLaunchKernel", given


def event(name, event, stream):
    return name, {"event": event, "stream": stream}


DOWNLOAD = {"dst": 9, "src": X, "nbytes": 8}
WAIT = event("cuEventRecord", 1, A), event("cuStreamWaitEvent", 1, B)


@pytest.mark.parametrize(
    ("calls", "mend", "is_possible"),
    [
        ((launch(A, X), launch(B, X + 64)), WAIT, True),
        ((launch(A, X), ("cuMemsetD32Async", {"dst": X, "count": 4, "stream": B})), WAIT, True),
        (
            (
                ("cuMemcpyDtoDAsync_v2", {"dst": X, "src": Y, "nbytes": N, "stream": A}),
                ("cuMemsetD8Async", {"dst": Y, "count": 4, "stream": B}),
            ),
            WAIT,
            False,
        ),
        (
            (launch(A, X), ("cuMemFreeAsync", {"address": X, "stream": B})),
            (("cuStreamSynchronize", {"stream": A}),),
            True,
        ),
        (
            (
                launch(A, X),
                ("cuMemcpyDtoHAsync_v2", {"dst": 9, "src": X, "nbytes": 8, "stream": B}),
            ),
            (("cuCtxSynchronize", {}),),
            True,
        ),
    ],
)
def test_two_streams_race_unless_something_orders_them(calls, mend, is_possible):
    first, second = calls
    (finding,) = report_of(first, second).findings
    assert finding.is_possible == is_possible
    assert report_of(first, *mend, second).is_clean


@pytest.mark.parametrize(
    "second", [launch(B, Y), launch(A, X), ("cuMemsetD8_v2", {"dst": X + 512, "count": 64})]
)
def test_other_memory_other_bytes_and_the_same_stream_do_not_race(second):
    first = ("cuMemsetD8Async", {"dst": X, "count": 512, "stream": A})
    assert report_of(first, second).is_clean


def test_streams_follow_the_default_stream_unless_they_are_made_not_to():
    def program(flags):
        made = ("cuStreamCreate", {"stream": 0x30, "flags": flags})
        return report_of(made, launch(0, X), launch(0x30, X))

    assert program(0).is_clean
    assert not program(NON_BLOCKING).is_clean
    per_thread = report_of(("cuLaunchKernel_ptsz", launch(0, X)[1]), launch(0, X))
    assert per_thread.is_clean


@pytest.mark.parametrize("waits", [False, True])
def test_captured_graph_is_recorded_at_each_launch(waits):
    calls = [
        ("cuStreamBeginCapture_v2", {"stream": A}), launch(A, X),
        ("cuStreamEndCapture", {"stream": A, "graph": 5}),
        ("cuGraphInstantiateWithFlags", {"instance": 6, "graph": 5}),
        launch(B, X), *([event("cuEventRecord", 1, B), event("cuStreamWaitEvent", 1, A)] * waits),
        ("cuGraphLaunch", {"instance": 6, "stream": A}),
    ]  # fmt: skip
    assert report_of(*calls).is_clean == waits


@pytest.mark.parametrize("waits", [False, True])
def test_host_that_rewrites_pinned_memory_is_seen_by_its_content(waits):
    host = np.zeros(N, np.uint8)
    address = host.ctypes.data
    done = ("cuStreamSynchronize", {"stream": A})
    report = report_of(
        ("cuMemHostAlloc", {"address": address, "nbytes": N}),
        ("cuMemcpyHtoDAsync_v2", {"dst": X, "src": address, "nbytes": N, "stream": A}),
        *([done] if waits else []),
        lambda: host.fill(1),
        done,
    )
    assert report.is_clean == waits


def test_memory_is_staged_and_waited_for_where_it_is_not_pinned():
    upload = ("cuMemcpyHtoDAsync_v2", {"dst": X, "src": 99, "nbytes": N, "stream": A})
    download = ("cuMemcpyDtoHAsync_v2", {"dst": 99, "src": X, "nbytes": N, "stream": A})
    assert not report_of(upload, launch(B, X)).is_clean
    assert report_of(upload, download, launch(B, X)).is_clean


def test_calls_that_are_not_followed_are_named():
    report = report_of(
        ("cuMemcpy2DAsync_v2", {}), ("cuGraphLaunch", {"instance": 3, "stream": A}), launch(A, X)
    )
    assert report.notices == (
        "cuMemcpy2DAsync_v2 is not followed",
        "graphs that are built of nodes are not followed",
    )


def test_parameters_are_where_the_driver_has_them():
    """As in the structures of NVIDIA's package cupti-python 13.4."""
    at = {name: getattr(cupti.parameters_of("cuLaunchKernel"), name).offset
          for name in ("function", "stream", "arguments", "extra")}  # fmt: skip
    assert at == {"function": 0, "stream": 40, "arguments": 48, "extra": 56}
    at = [getattr(cupti.parameters_of("cuMemsetD8Async"), n).offset for n in ("count", "stream")]
    assert at == [16, 24]
    assert cupti.parameters_of("cuStreamCreate").flags.offset == 8
    assert all(ctypes.sizeof(cupti.parameters_of(name)) % 4 == 0 for name in SIGNATURES)


def test_arguments_of_a_launch_are_read_by_the_sizes_that_the_driver_names(monkeypatch):
    """The library is stood in for: it calls back once."""
    out = io.BytesIO()
    words = (ctypes.c_uint64 * 3)(5, X, Y)
    arguments = (ctypes.c_uint64 * 2)(ctypes.addressof(words), ctypes.addressof(words) + 8)
    kind = cupti.parameters_of("cuLaunchKernel")
    given = kind(function=77, stream=A, arguments=ctypes.addressof(arguments))
    zero = ctypes.c_int(0)

    class Library:
        def cuptiGetCallbackName(self, domain, number, name):  # as in C
            name._obj.value = b"cuLaunchKernel"
            return number != 307

        def cuptiSubscribe(self, subscriber, callback, user):
            self.callback = callback
            return 0

        def cuptiEnableCallback(self, enable, subscriber, domain, number):
            assert number == 307
            return 0

        def cuptiUnsubscribe(self, subscriber):
            return 0

        def cuFuncGetParamInfo(self, function, number, offset, size):
            sizes = [8, 16]
            if number.value >= len(sizes):
                return 1
            size._obj.value = sizes[number.value]
            return 0

    library = Library()
    monkeypatch.setattr(cupti, "_load", lambda names, what: library)
    recording = Recording(out, "launch")
    with cupti.recorded_calls(recording):
        data = cupti._CallbackData(
            1, b"cuLaunchKernel", ctypes.addressof(given), ctypes.pointer(zero), b"f"
        )
        seen = []
        monkeypatch.setattr(DriverCalls, "record", lambda self, *call: seen.append(call))
        library.callback(None, 1, 307, ctypes.pointer(data))
    assert b"notice" not in out.getvalue()
    ((name, parameters, pointers, label),) = seen
    assert (name, parameters["stream"], label) == ("cuLaunchKernel", A, "f")
    assert pointers == [5, X, Y]


def test_a_program_that_cannot_be_recorded_is_not_judged(tmp_path, capfd):
    """Where there is no driver one line says so, and none speaks of a record."""
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver")
    script = tmp_path / "prog.py"
    script.write_text("print('runs')\n")
    assert main(["race", "--cupti", str(script)]) == 3
    out, err = capfd.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
