import threading

import numpy as np

from ggsched.sanitize import check_trace
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Barrier, Sync, Work


def view(count=64):
    return memoryview(np.zeros(count, np.uint8))


def test_it_keeps_the_beginning():
    recorder = Recorder(limit=4)  # one is for host memory
    q = recorder.stream("q0", "cpu:0", "stream")
    recorder.add(Barrier(q))
    recorder.add_all([Barrier(q), Sync(0), Sync(0)])
    recorder.add(Barrier(q))
    trace = recorder.trace("t")
    assert [type(e).__name__ for e in trace.entries] == ["Alloc", "Barrier", "Barrier", "Sync"]
    assert trace.dropped == 2


def test_once_something_is_dropped_nothing_is_added():
    recorder = Recorder(limit=3)
    q = recorder.stream("q0", "cpu:0", "stream")
    recorder.add_all([Barrier(q)] * 3)
    recorder.add_all([])
    recorder.add(Sync(0))
    assert len(recorder.trace("t").entries) == 3
    assert recorder.trace("t").dropped == 2


def test_take_back():
    recorder = Recorder()
    refused, kept = Sync(0), Sync(0)
    recorder.add(refused)
    recorder.add(kept)
    recorder.take_back(refused)
    assert recorder.trace("t").entries[1:] == (kept,)


def test_each_thread_is_an_actor():
    recorder = Recorder()
    seen = []

    def body():
        for _ in range(100):
            recorder.add(Work(recorder.thread, "x"))
        seen.append(recorder.thread)

    threads = [threading.Thread(target=body, name=f"loader {i}") for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    trace = recorder.trace("t")
    assert len(set(seen)) == 4
    assert sorted(a.name for a in trace.actors) == ["host", *(f"loader {i}" for i in range(4))]
    assert len(trace.entries) == 401
    assert check_trace(trace).is_clean


def test_host_memory_by_name_and_the_rest():
    recorder = Recorder()
    named, other = view(), view()
    number = recorder.host_memory("pinned", named)
    assert recorder.host_range(named[16:32]) == ((number, 16, 32, ""),)
    ((rest, start, end, _),) = recorder.host_range(other[16:32])
    assert rest != number
    assert end - start == 16
    assert recorder.host_range(named[:0]) == ()
    assert recorder.host_range(memoryview(b"")) == ()


def test_an_address_that_is_used_again_gets_a_new_number():
    recorder = Recorder()
    memory = view()
    first = recorder.host_memory("first", memory)
    second = recorder.host_memory("second", memory[:32])
    assert first != second
    assert recorder.host_range(memory[:8]) == ((second, 0, 8, ""),)
    assert recorder.host_range(memory[40:])[0].memory not in (first, second)


def test_accesses_of_two_names_of_the_same_bytes_meet():
    recorder = Recorder()
    memory = view()
    recorder.host_memory("first", memory)
    q = recorder.stream("q0", "cpu:0", "stream")
    host = recorder.thread
    recorder.add(Work(q, "download", host, writes=recorder.host_range(memory)))
    recorder.host_memory("second", memory)
    recorder.add(recorder.host_work("read", [memory]))
    (finding,) = check_trace(recorder.trace("t")).findings
    assert (finding.kind, finding.hazard) == ("race", "RAW")
