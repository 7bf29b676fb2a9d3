"""Locks, queues and threads that hand over: without PyTorch."""

import copy
import io
import os
import pickle
import queue
import threading
from contextlib import contextmanager
from random import Random

import pytest

from ggsched.files.reading import open_regular
from ggsched_race.host_threads import HostThreads
from ggsched_race.live import LiveCheck
from ggsched_race.patches import Patches
from ggsched_race.recording import HOST, Recording, trace_of_journal
from ggsched_race.report import check_program

native, native_recursive = threading.Lock, threading.RLock


class Written:
    """A recording of threads that write to one memory object."""

    def __init__(self, out=None):
        self.out = out or io.BytesIO()
        self.recording = Recording(self.out, "threads")
        self.memory = self.recording.memory(64, "(64,) uint8", -1)

    @contextmanager
    def threads(self):
        threads = HostThreads(self.recording)
        with Patches() as patches:
            threads.patch(patches)
            yield threads
        threads.stop()

    def write(self, start=0, end=64):
        with self.recording.lock:
            self.recording.work(HOST, "write", (), [(self.memory, start, end)], -1)

    @property
    def is_clean(self):
        return check_program(trace_of_journal(self.out.getvalue())).is_clean


def test_locks_are_what_they_are_without_a_recorder():
    with Written().threads():
        for made, is_recursive in ((threading.Lock(), False), (threading.RLock(), True)):
            assert isinstance(made, type((native_recursive if is_recursive else native)()))
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot pickle"):
                    copied(made)
            with pytest.raises(RuntimeError):
                made.release()
            with made:
                assert made.acquire(blocking=False) == is_recursive


def test_memory_for_hand_overs_is_bounded_by_the_locks_in_use(tmp_path):
    path = tmp_path / "journal"
    with path.open("wb", buffering=0) as out, open_regular(path) as file:
        written = Written(out)
        with written.threads() as threads:
            first, second = threading.Lock(), threading.RLock()
            turns = [native(), native()]
            turns[1].acquire()

            def work(mine):
                for _ in range(100):
                    turns[mine].acquire()
                    with first, second:
                        written.write()
                    turns[1 - mine].release()

            pair = [threading.Thread(target=work, args=(k,)) for k in range(2)]
            for thread in pair:
                thread.start()
            for thread in pair:
                thread.join()
            known = [len(state.known) for state in threads._threads.values()]
        written.write()
        check = LiveCheck(file)
        check.read()
    assert check.finding is None, check.finding
    assert check.races.records > 400
    assert max(known) <= 2
    assert check.races.events < 12


@pytest.mark.parametrize("joins", [False, True])
def test_thread_is_ordered_by_its_start_and_its_end(joins):
    written = Written()
    with written.threads():
        written.write()
        ended = native()
        ended.acquire()
        thread = threading.Thread(target=lambda: (written.write(), ended.release()))
        thread.start()
        ended.acquire()
        if joins:
            thread.join()
        written.write()
        thread.join()
    assert written.is_clean == joins


def test_locks_in_a_forked_process_are_not_recorded(monkeypatch):
    out = io.BytesIO()
    threads = HostThreads(Recording(out, "forked"))
    event = threads.release()
    assert event is not None
    before = out.getvalue()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert threads.release() is None
    threads.acquire(event)
    assert out.getvalue() == before


# --- random threads -------------------------------------------------------------------------------

THREADS, REGIONS, QUEUES = 3, 2, 2


def drawn(seed):
    """Return steps: (thread, "write", region), (thread, "put", queue), (thread, "get", queue)."""
    random, waiting, steps = Random(seed), [0] * QUEUES, []
    for _ in range(random.randint(2, 9)):
        thread, which = random.randrange(THREADS), random.randrange(2)
        what = random.choice(("write", "put", "get") if waiting[which] else ("write", "put"))
        waiting[which] += {"write": 0, "put": 1, "get": -1}[what]
        steps.append((thread, what, which))
    return steps


def races(steps):
    """Whether two writes to a region are in no order of threads and items of queues."""
    before = [set() for _ in range(THREADS)]  # steps that a thread comes after
    items, writes, racing = [[] for _ in range(QUEUES)], [[] for _ in range(REGIONS)], False
    for number, (thread, what, which) in enumerate(steps):
        known = before[thread]
        if what == "get":
            known |= items[which].pop(0)
        if what == "put":
            items[which].append(set(known))
        if what == "write":
            racing |= any(other not in known for other in writes[which])
            writes[which].append(number)
            known.add(number)
    return racing


def performed(written, steps):
    """Let threads take the steps in turn; what keeps their turns is unknown to the recorder."""
    queues = [queue.SimpleQueue() for _ in range(QUEUES)]
    turns, ended = [native() for _ in range(THREADS)], native()
    for lock in (*turns, ended):
        lock.acquire()
    step = []

    def work(mine):
        while True:
            turns[mine].acquire()
            if not step:
                return
            _, what, which = step[0]
            if what == "write":
                written.write(which * 8, which * 8 + 8)
            elif what == "put":
                queues[which].put(None)
            else:
                queues[which].get()
            ended.release()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for taken in steps:
        step[:] = [taken]
        turns[taken[0]].release()
        ended.acquire()
    step.clear()
    for turn, thread in zip(turns, threads, strict=True):
        turn.release()
        thread.join()


@pytest.mark.parametrize("block", range(4))
def test_verdict_on_random_threads_is_that_of_their_hand_overs(block):
    verdicts = []
    for seed in range(block * 15, block * 15 + 15):
        steps, written = drawn(seed), Written()
        with written.threads():
            performed(written, steps)
        assert written.is_clean != races(steps), steps
        verdicts.append(written.is_clean)
    assert {True, False} == set(verdicts)
