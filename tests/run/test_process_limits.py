"""What a process may not do: use devices after a fork, start more threads than it is given."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.backend.queued.backlog import Backlog
from ggsched.backend.queued.error_state import ErrorState
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, UsageError
from ggsched.run.call_guard import CallGuard
from ggsched.scheduler import Scheduler
from tests.backends.device_settings import Latch

X = np.ones((2, 4), np.float32)


def plain():
    g = GraphBuilder("plain")
    return g.build(g.silu(g.input("x", (2, 4))))


def test_a_forked_process_is_reported(monkeypatch):
    graph = plain()
    with Scheduler(["cpu:0"], settings=Settings()) as scheduler:
        scheduler.run(graph, {"x": X})
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(UsageError, match=r"Scheduler\.run: called in a forked process"):
                scheduler.run(graph, {"x": X})
            scheduler.close()  # nothing of the other process is released
        scheduler.run(graph, {"x": X})
    guard = CallGuard()
    assert guard.process == os.getpid()


FORK = """
import os, sys, numpy as np
from ggsched import GraphBuilder, Scheduler
g = GraphBuilder("x")
graph = g.build(g.silu(g.input("x", (4, 4))))
x = {"x": np.zeros((4, 4), np.float32)}
with Scheduler(["cpu:0"]) as scheduler:
    scheduler.run(graph, x)
    child = os.fork()
    if child == 0:
        try:
            with scheduler:
                scheduler.run(graph, x)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    scheduler.run(graph, x)
print("the parent goes on")
"""


def test_a_real_fork_neither_hangs_nor_harms_the_parent():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    assert child.startswith("UsageError Scheduler.run: called in a forked process: devices, their")
    assert parent == "the parent goes on"


@pytest.fixture
def no_threads(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    def forbid():
        monkeypatch.setattr(threading.Thread, "start", start)

    yield forbid
    monkeypatch.undo()


def test_a_limit_of_threads_is_child_and_changes_nothing(no_threads, monkeypatch):
    with Scheduler(["cpu:0"], settings=Settings()) as scheduler:
        no_threads()
        with pytest.raises(BackendUnavailable, match=r"cpu:0 stream 0: no thread can be started"):
            scheduler.run(plain(), {"x": X})
        monkeypatch.undo()
        scheduler.run(plain(), {"x": X})


def test_a_backlog_without_a_thread_takes_nothing(no_threads):
    backlog = Backlog("q:0 stream 0", ErrorState())
    no_threads()
    with pytest.raises(BackendUnavailable, match="q:0 stream 0: no thread"):
        backlog.wait(Latch(), 1.0)
    assert not backlog.is_pending


@pytest.mark.parametrize("device", ["cpu:0", "opencl:0"])
def test_a_process_may_end_while_devices_work(device):
    """It neither aborts nor waits for ever."""
    code = (
        "import sys, threading\n"
        "import numpy as np\n"
        "from ggsched import GraphBuilder, Scheduler\n"
        "g = GraphBuilder('x'); y = x = g.input('x', (256, 256))\n"
        "for _ in range(200): y = g.mul_mat(y, y)\n"
        "graph = g.build(y)\n"
        f"s = Scheduler([{device!r}]); s.prepare(graph)\n"
        "given = {'x': np.zeros((256, 256), np.float32)}\n"
        "t = threading.Thread(target=lambda: s.run(graph, given), daemon=True); t.start()\n"
        "while not s._store.streams or all(q.is_done for q in s._store.streams):\n"
        "    if not t.is_alive(): break\n"
        "sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr


@pytest.mark.opencl
@pytest.mark.parametrize("what", ["upload", "download", "kernel", "build"])
def test_a_process_may_end_while_threads_are_in_opencl(what):
    """They come back to an interpreter that is going, and must not take the process with them."""
    code = (
        "import sys, threading, time\n"
        "from ggsched_opencl import driver\n"
        "context = driver.make_context(driver.find_devices().devices[0].handle)\n"
        "queue = driver.make_queue(context)\n"
        "memory = driver.make_buffer(context, queue, 1 << 16)\n"
        "host = memoryview(bytearray(1 << 16))\n"
        "text = '__kernel void f(__global int *a) {a[0] = 1;}'\n"
        "program = driver.build_program(context, text, ())\n"
        "calls = {\n"
        "    'upload': lambda: driver.enqueue_upload(queue, host, memory, 0),\n"
        "    'download': lambda: driver.enqueue_download(queue, memory, 0, host),\n"
        "    'kernel': lambda: driver.make_kernel(program, 'f'),\n"
        "    'build': lambda: driver.build_program(context, text, ()),\n"
        "}\n"
        "done = threading.Event()\n"
        "def work():\n"
        "    while True:\n"
        "        calls[sys.argv[1]]()\n"
        "        done.set()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "done.wait()\n"
        "sys.exit(7)\n"
    )
    command = [sys.executable, "-c", code, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7, done.stderr
