"""Streams of a GPU in software: threads, and captures of what they are given."""

import random
import threading
import time
from collections import deque

DAWDLE_S = 2e-4
PLACES = 1000
"""Of the queue. A GPU blocks who enqueues more: a held stream took 256 launches, and blocked at
the 57th upload, which is a call of the host and a copy."""

HOST_CALL_PLACES = 17


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
        self.kind, self.work, self.behind, self.gpu = kind, work, tuple(behind), None
        self.meets = None  # own words and those of the kernel that it meets


class Recording:
    """A capture: nodes, and what the streams that take part have last."""

    def __init__(self, origin):
        self.nodes, self.last = [], {origin: ()}

    def add(self, stream, kind, work):
        node = Node(kind, work, self.last[stream])
        node.gpu = stream.gpu
        self.nodes.append(node)
        self.last[stream] = (node,)


class Stream:
    """An in-order queue with a thread of its own."""

    def __init__(self, name, seed):
        self.random = random.Random(seed)
        self.newest = DONE
        self.recording = None
        self._commands, self._more = deque(), threading.Condition()
        self._taken = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work, places=1):
        with self._more:
            self._more.wait_for(lambda: self._taken + places <= PLACES)
            self._taken += places
            self.newest = Completion()
            self._commands.append((work, self.newest, places))
            self._more.notify_all()

    def close(self):
        with self._more:
            self._is_over = True
            self._more.notify_all()

    def _run(self):
        while True:
            with self._more:
                self._more.wait_for(lambda: self._commands or self._is_over)
                if not self._commands:
                    return
                work, completion, places = self._commands.popleft()
            if self.random.random() < 0.25:
                time.sleep(self.random.random() * DAWDLE_S)
            work()
            del work
            completion.end()
            with self._more:
                self._taken -= places
                self._more.notify_all()
