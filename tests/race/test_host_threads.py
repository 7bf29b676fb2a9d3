"""Threads of the host as actors: what hands over, what does not, and what stays clean."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from benchmarks.gpu import race_programs  # noqa: E402
from ggsched_race.watch import watch  # noqa: E402
from tests.race import programs, test_ordinary_programs  # noqa: E402

native = threading.Lock


def pinned(nbytes=64):
    """Return pinned memory that a device has used, as an array of numpy."""
    host = torch.zeros(nbytes, dtype=torch.uint8).pin_memory()
    host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return host.numpy()


def rewritten_behind_a_wait(hand_over):
    """A thread waits for an upload; another one rewrites its source, told of it or by luck."""
    host, upload = torch.zeros(64).pin_memory(), torch.cuda.Stream()
    with torch.cuda.stream(upload):
        torch.zeros(64, device="cuda").copy_(host, non_blocking=True)
    hand_over(upload.synchronize)
    host.add_(1)


def by_queue(work):
    done = queue.Queue()
    thread = threading.Thread(target=lambda: (work(), done.put(None)))
    thread.start()
    done.get()


def by_simple_queue(work):
    done = queue.SimpleQueue()
    threading.Thread(target=lambda: (work(), done.put(None))).start()
    done.get()


def by_event(work):
    done = threading.Event()
    threading.Thread(target=lambda: (work(), done.set())).start()
    done.wait()


def by_barrier(work):
    done = threading.Barrier(2)
    threading.Thread(target=lambda: (work(), done.wait())).start()
    done.wait()


def by_join(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def by_future(work):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def by_lock_of_both(work):
    """The lock of a condition that its holder may acquire again."""
    condition, done = threading.Condition(), []

    def wait_and_tell():
        work()
        with condition:
            done.append(None)
            condition.notify()

    threading.Thread(target=wait_and_tell).start()
    with condition:
        condition.wait_for(lambda: done)


def by_luck(work):
    """Through a lock that the recorder does not know, as code in C would."""
    done = native()
    done.acquire()
    threading.Thread(target=lambda: (work(), done.release())).start()
    done.acquire()


WAYS = [
    by_queue, by_simple_queue, by_event, by_barrier, by_join, by_future, by_lock_of_both, by_luck,
]  # fmt: skip


def report_of(program, *args, **options):
    with watch("threads", simulate=True, raises=False, **options) as watched:
        program(*args)
    return watched.report


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_thread_comes_after_what_was_handed_over(way):
    report = report_of(rewritten_behind_a_wait, way, threads=True)
    assert report.is_clean == (way is not by_luck), report.to_text()
    assert report_of(rewritten_behind_a_wait, way).is_clean


def test_writes_of_two_threads_that_nothing_orders_name_both():
    def program():
        array = pinned()
        first = threading.Thread(target=lambda: array.fill(1), name="first")
        first.start()
        array.fill(2)
        first.join()

    (finding,) = report_of(program, threads=True).findings
    assert {side.stream for side in finding.sides} == {"thread first", "host"}
    assert "hand over from" in finding.mend


def test_threads_are_as_before_after_a_recording():
    before = vars(threading).copy(), vars(threading.Thread).copy(), queue.SimpleQueue
    assert report_of(rewritten_behind_a_wait, by_queue, threads=True).is_clean
    assert (vars(threading), vars(threading.Thread), queue.SimpleQueue) == before


@pytest.mark.parametrize(
    "program",
    [
        race_programs.prefetch, race_programs.eager, race_programs.decode,
        test_ordinary_programs.several_threads, test_ordinary_programs.backward_of_several_streams,
    ],
    ids=lambda p: p.__name__,
)  # fmt: skip
def test_ordinary_program_is_clean_with_threads_apart(program):
    steps = (3,) if program.__module__ == race_programs.__name__ else ()
    report = report_of(program, *steps, threads=True)
    assert report.is_clean, report.to_text()


@pytest.mark.parametrize("program", programs.RACING[::4], ids=lambda p: p.__name__)
@pytest.mark.parametrize("mended", [False, True], ids=["broken", "mended"])
def test_verdict_on_published_race_is_the_same(program, mended):
    assert report_of(program, mended, threads=True).is_clean == mended
