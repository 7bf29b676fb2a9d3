"""A driver and a card in software, on which the backend ``cuda`` keeps the contract without a GPU.

What the plug-in asks of ``ggsched_cuda.driver`` and ``ggsched_cuda.capture.driver`` is done on the
host: a stream is a thread, device memory is host memory that holds rubbish before it is written and
after it is freed, graphs run their nodes in any order that their edges allow. Kernels are the real
ones, compiled for the host and run lane by lane (``tests.kernels.test_fibers``), but for the
plug-in's three helpers. There is no cuBLAS and no early launch.

The card is as nasty as CUDA may be: before each command a stream may dawdle, and copies are made
late.
"""

import ctypes
import random
import threading
import time
from collections import deque

import numpy as np

DAWDLE_S = 2e-4
LOOK_S = 5e-5
MEMORY_NBYTES = 3 << 30
ARCH = 80  # no kernel of this capability is fed, nor launched early


class Completion:
    """What stands for a command: done, once."""

    def __init__(self):
        self.event = threading.Event()
        self.at_s = 0.0

    def end(self):
        self.at_s = time.perf_counter()
        self.event.set()


DONE = Completion()
DONE.end()


class Node:
    """A command of a graph, and those that it stands behind."""

    def __init__(self, kind, work, behind):
        self.kind, self.work, self.behind = kind, work, tuple(behind)


class Recording:
    """A capture: nodes, and what the streams that take part have last."""

    def __init__(self, origin):
        self.nodes, self.last = [], {origin: ()}

    def add(self, stream, kind, work):
        node = Node(kind, work, self.last[stream])
        self.nodes.append(node)
        self.last[stream] = (node,)


class Stream:
    """An in-order queue with a thread of its own."""

    def __init__(self, name, seed):
        self.random = random.Random(seed)
        self.newest = DONE
        self.recording = None
        self._commands, self._more = deque(), threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work):
        with self._more:
            self.newest = Completion()
            self._commands.append((work, self.newest))
            self._more.notify()

    def close(self):
        with self._more:
            self._is_over = True
            self._more.notify()

    def _run(self):
        while True:
            with self._more:
                self._more.wait_for(lambda: self._commands or self._is_over)
                if not self._commands:
                    return
                work, completion = self._commands.popleft()
            if self.random.random() < 0.25:
                time.sleep(self.random.random() * DAWDLE_S)
            work()
            del work
            completion.end()


class SoftwareDriver:
    """What takes the place of the two files that know the driver.

    Args:
        kernels: Returns a call ``(parameters, grid, lanes, shared)`` for a kernel of a source.
        seed: Of what streams choose.
    """

    def __init__(self, kernels, seed=0):
        self._kernels, self._random = kernels, random.Random(seed)
        self._lock = threading.RLock()
        self._numbers = iter(range(1, 1 << 40))
        self._streams, self._events, self._graphs, self._functions = {}, {}, {}, {}
        self._memory, self._pinned, self._used = {}, [], 0

    # --- cards ---------------------------------------------------------------------------------

    def find_cards(self):
        from ggsched_cuda.driver import Found

        return (Found(0, "software", ARCH, MEMORY_NBYTES, 13000, 4, 166912, waits_for_values=True),)

    def context_of(self, ordinal):
        return "context"

    def enter(self, context):
        pass

    def can_reach(self, ordinal, other):
        return True

    # --- memory --------------------------------------------------------------------------------

    def make_pool(self, ordinal, peers):
        return "pool"

    def take_memory(self, pool, nbytes, stream):
        from ggsched.errors import OutOfDeviceMemory

        with self._lock:
            if self._used + nbytes > MEMORY_NBYTES or nbytes > 1 << 30:
                raise OutOfDeviceMemory(f"asked for {nbytes} bytes")
            room = np.full(nbytes + 256, self._random.randrange(256), np.uint8)
            address = -(-room.ctypes.data // 256) * 256
            self._memory[address] = room
            self._used += nbytes
            return address

    def give_memory(self, address, stream):
        def free():
            with self._lock:
                room = self._memory.pop(address)
                self._used -= room.nbytes - 256
                room[:] = 0xA5

        self._streams[stream].put(free)

    def take_pinned(self, nbytes):
        room = np.full(nbytes + 64, 0x5A, np.uint8)
        self._pinned.append(room)
        return -(-room.ctypes.data // 64) * 64

    # --- streams -------------------------------------------------------------------------------

    def make_stream(self):
        number = next(self._numbers)
        self._streams[number] = Stream(f"software stream {number}", self._random.random())
        return number

    def close_stream(self, stream):
        self._streams[stream].close()

    def query_stream(self, stream):
        from ggsched_cuda.driver import NOT_READY, READY

        return (READY if self._streams[stream].newest.event.is_set() else NOT_READY,)

    def _give(self, stream, kind, work):
        queue = self._streams[stream]
        if queue.recording is None:
            queue.put(work)
        else:
            queue.recording.add(queue, kind, work)

    def enqueue_upload(self, address, source, nbytes, stream):
        self._give(stream, "copy", lambda: ctypes.memmove(address, source, nbytes))

    def enqueue_download(self, target, address, nbytes, stream):
        self._give(stream, "copy", lambda: ctypes.memmove(target, address, nbytes))

    def enqueue_copy(self, to, address, nbytes, stream):
        self._give(stream, "copy", lambda: ctypes.memmove(to, address, nbytes))

    def enqueue_host_call(self, stream, function, argument):
        self._give(stream, "host", lambda: function(argument))

    def enqueue_wait_for_word(self, stream, address, value):
        word = ctypes.c_int32.from_address(address)

        def wait():
            while np.int32(np.int64(word.value - value) & 0xFFFFFFFF) < 0:
                time.sleep(LOOK_S)

        self._give(stream, "wait", wait)

    # --- events --------------------------------------------------------------------------------

    def make_event(self):
        number = next(self._numbers)
        self._events[number] = DONE
        return number

    def make_timed_event(self):
        return self.make_event()

    def record_event(self, event, stream):
        queue = self._streams[stream]
        if queue.recording is None:
            mark = Completion()
            queue.put(mark.end)
            self._events[event] = mark
        else:
            self._events[event] = (queue.recording, queue.recording.last[queue])
        return (0,)

    def query_event(self, event):
        from ggsched_cuda.driver import NOT_READY, READY

        mark = self._events[event]
        assert isinstance(mark, Completion), "an event of a capture was asked"
        return (READY if mark.event.is_set() else NOT_READY,)

    def seconds_between(self, earlier, later):
        return self._events[later].at_s - self._events[earlier].at_s

    def enqueue_wait(self, stream, event):
        queue, mark = self._streams[stream], self._events[event]
        if isinstance(mark, Completion):
            assert queue.recording is None, "a captured stream waits for an event from outside"
            queue.put(mark.event.wait)
            return
        recording, nodes = mark
        assert queue.recording in (None, recording)
        queue.recording = recording
        known = recording.last.get(queue, ())
        recording.last[queue] = (*known, *(n for n in nodes if n not in known))

    # --- kernels -------------------------------------------------------------------------------

    def function(self, cache, name, defines, kernel, shared_nbytes=0, mode="off"):
        key = name, defines, kernel
        with self._lock:
            if key not in self._functions:
                self._functions[key] = next(self._numbers)
                self._functions[self._functions[key]] = self._kernels(*key)
            return self._functions[key]

    def launch_kernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        kernel = self._functions[function]
        taken = kernel.taken(params)
        self._give(stream, "kernel", lambda: kernel.run(taken, (gx, gy, gz), bx, shared))
        return (0,)

    # --- graphs --------------------------------------------------------------------------------

    def begin_capture(self, stream):
        queue = self._streams[stream]
        assert queue.recording is None
        queue.recording = Recording(queue)

    def end_capture(self, stream):
        queue = self._streams[stream]
        recording, number = queue.recording, next(self._numbers)
        behind = {id(n) for node in recording.nodes for n in node.behind}
        ends = [node for node in recording.nodes if id(node) not in behind]
        assert set(ends) <= set(recording.last[queue]), "a stream of the capture was not joined"
        for other in recording.last:
            other.recording = None
        self._graphs[number] = recording.nodes
        return number

    def count_nodes(self, graph):
        return len(self._graphs[graph])

    def make_executable(self, graph):
        nodes = self._graphs.pop(graph)
        number = next(self._numbers)
        self._graphs[number] = nodes
        return number, len(nodes)

    def update_executable(self, executable, graph):
        old, new = self._graphs[executable], self._graphs[graph]
        if _shape(old) != _shape(new):
            return "the driver refuses: topology changed"
        self._graphs[executable] = new
        return ""

    def close_graph(self, graph):
        del self._graphs[graph]

    def close_executable(self, graph):
        del self._graphs[graph]

    def launch_graph(self, graph, stream):
        nodes, queue = self._graphs[graph], self._streams[stream]

        def run():
            left, ended = list(nodes), set()
            while left:
                ready = [n for n in left if all(id(b) in ended for b in n.behind)]
                node = queue.random.choice(ready)
                node.work()
                ended.add(id(node))
                left.remove(node)

        queue.put(run)
        return (0,)

    def drain(self, stream):
        """Wait for a stream."""
        self._streams[stream].newest.event.wait()

    def end(self):
        """Let all streams end that nobody closed."""
        for stream in self._streams.values():
            stream.close()


def _shape(nodes):
    numbers = {id(node): i for i, node in enumerate(nodes)}
    return [(n.kind, [numbers[id(b)] for b in n.behind]) for n in nodes]
