"""A driver and a GPU in software, on which the backend ``cuda`` keeps the contract without a GPU.

What the plug-in asks of ``ggsched_cuda.driver`` and ``ggsched_cuda.capture.driver`` is done on the
host: a stream is a thread, device memory is host memory with random bytes before it is written and
after it is freed, graphs run their nodes in any order that their edges allow. Kernels are the real
ones, compiled for the host and run lane by lane (``tests.kernels.test_fibers``), but for the
plug-in's helpers, of which there are three. Products are numpy's. No kernel uses PDL.

The GPU uses the freedoms of CUDA: before each command a stream may pause, and copies are made
late.
"""

import ctypes
import random
import threading
from collections import Counter
from typing import NamedTuple

import numpy as np

from ggsched_cuda.driver import CudaError
from ggsched_kernels.calls import MAX_PEERS
from tests.backends.software_streams import (
    DONE,
    HOST_CALL_PLACES,
    Completion,
    Recording,
    Stream,
)

MEMORY_NBYTES = 3 << 30
PROCESSORS = 4


class Launch(NamedTuple):
    """How a kernel is launched."""

    grid: tuple[int, int, int]
    lanes: int
    shared: int
    stream: int
    cluster: int = 1
    early: bool = False


class SoftwareDriver:
    """What takes the place of the two files that know the driver.

    Args:
        kernels: Returns what runs a kernel of a source.
        seed: Of what streams choose.
        arch: Compute capability; from 90 on kernels have producer warps and work in clusters.
        apart: Pairs of (GPU, another one whose memory it cannot access), of ``gpus``.
        gpus: How many there are.
    """

    def __init__(self, kernels, seed=0, arch=80, *, gpus=1, apart=()):
        self._gpus, self._apart, self._here = gpus, frozenset(apart), threading.local()
        self._kernels, self._random, self._arch = kernels, random.Random(seed), arch
        self._lock = threading.RLock()
        self._numbers = iter(range(1, 1 << 40))
        self._streams, self._events, self._graphs, self._functions = {}, {}, {}, {}
        self._event_gpus = {}
        self.counts = Counter()  # of what streams were given
        self._memory, self._owners, self._pinned, self._used = {}, {}, [], 0

    # --- GPUs ---------------------------------------------------------------------------------

    def find_gpus(self):
        from ggsched_cuda.driver import DeviceInfo

        shared_nbytes = 232448 if self._arch >= 90 else 166912
        facts = "software", self._arch, MEMORY_NBYTES, 13000, PROCESSORS, shared_nbytes
        return tuple(DeviceInfo(i, *facts) for i in range(self._gpus))

    def context_of(self, ordinal):
        return ordinal

    def enter(self, context):
        self._here.gpu = context

    def can_reach(self, ordinal, other):
        return (ordinal, other) not in self._apart

    def check_access(self, stream, values):
        """Check that a stream's GPU can access the memory that 8 bytes are an address in."""
        gpu = self._streams[stream].gpu
        with self._lock:
            for value in values:
                address = int.from_bytes(value, "little") if len(value) == 8 else 0
                for start, (owner, peers) in self._owners.items():
                    if start <= address < start + self._memory[start].nbytes - 256:
                        assert gpu in (owner, *peers), f"GPU {gpu} cannot access GPU {owner}"

    # --- memory --------------------------------------------------------------------------------

    def make_pool(self, ordinal, peers):
        self.counts["pools"] += 1
        return ordinal, peers

    def trim_pool(self, pool):
        self.counts["trims"] += 1

    def take_memory(self, pool, nbytes, stream):
        from ggsched.errors import OutOfDeviceMemory

        with self._lock:
            if self._used + nbytes > MEMORY_NBYTES or nbytes > 1 << 30:
                raise OutOfDeviceMemory(f"requested {nbytes} bytes")
            room = np.full(nbytes + 256, self._random.randrange(256), np.uint8)
            address = -(-room.ctypes.data // 256) * 256
            self._memory[address], self._owners[address] = room, pool
            self._used += nbytes
            return address

    def give_memory(self, address, stream):
        def free():
            with self._lock:
                room = self._memory.pop(address)
                del self._owners[address]
                self._used -= room.nbytes - 256
                room[:] = 0xA5

        self._streams[stream].put(free)

    def take_pinned(self, nbytes):
        room = np.full(nbytes + 4096, 0x5A, np.uint8)  # page-locked memory is whole pages
        self._pinned.append(room)
        return -(-room.ctypes.data // 4096) * 4096

    def lock_pages(self, address, nbytes):
        self.counts["locks"] += 1
        return True

    def unlock_pages(self, address):
        self.counts["unlocks"] += 1

    # --- streams -------------------------------------------------------------------------------

    def make_stream(self):
        number = next(self._numbers)
        self._streams[number] = Stream(f"software stream {number}", self._random.random())
        self._streams[number].gpu = self._here.gpu
        return number

    def close_stream(self, stream):
        self.counts["streams closed"] += 1
        self._streams[stream].close()

    def query_stream(self, stream):
        from ggsched_cuda.driver import NOT_READY, READY

        return (READY if self._streams[stream].newest.event.is_set() else NOT_READY,)

    def give(self, stream, kind, work):
        queue = self._streams[stream]
        assert self._here.gpu == queue.gpu, "another GPU's context is current"
        self.counts[kind] += 1
        if queue.recording is None:
            queue.put(work, HOST_CALL_PLACES if kind == "host" else 1)
        else:
            queue.recording.add(queue, kind, work)

    def enqueue_upload(self, address, source, nbytes, stream):
        self.give(stream, "copy", lambda: ctypes.memmove(address, source, nbytes))

    def enqueue_download(self, target, address, nbytes, stream):
        self.give(stream, "copy", lambda: ctypes.memmove(target, address, nbytes))

    def enqueue_copy(self, to, address, nbytes, stream):
        self.check_access(stream, [p.to_bytes(8, "little") for p in (to, address)])
        self.give(stream, "copy", lambda: ctypes.memmove(to, address, nbytes))

    def enqueue_fill(self, address, nbytes, pattern, stream):
        content = pattern * (nbytes // len(pattern))
        self.give(stream, "memset", lambda: ctypes.memmove(address, content, nbytes))

    def enqueue_host_call(self, stream, function, argument):
        self.give(stream, "host", lambda: function(argument))

    # --- events --------------------------------------------------------------------------------

    def make_event(self):
        number = next(self._numbers)
        self._events[number], self._event_gpus[number] = DONE, self._here.gpu
        return number

    def make_timed_event(self):
        return self.make_event()

    def record_event(self, event, stream):
        queue = self._streams[stream]
        assert self._event_gpus[event] == queue.gpu, "the event is another GPU's"
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

    def function(self, cache, name, defines, kernel, shared_nbytes=0, mode="off", launch=None):
        key = name, defines, kernel
        with self._lock:
            if key not in self._functions:
                self._functions[key] = next(self._numbers)
                self._functions[self._functions[key]] = self._kernels(*key)
            return self._functions[key]

    def launch_kernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        return self._launch(function, params, Launch((gx, gy, gz), bx, shared, stream))

    def launch_config(self, grid, lanes, shared_nbytes, stream, *, early=False, cluster=1):
        return Launch(grid, lanes, shared_nbytes, stream, cluster, early)

    def launch_configured(self, config, function, params, extra):
        return self._launch(function, params, config)

    def _launch(self, function, params, launch):
        kernel = self._functions[function]
        taken = kernel.taken(params)
        self.check_access(launch.stream, [v for v in taken if isinstance(v, bytes)])

        queue = self._streams[launch.stream]
        behind = queue.recording.last.get(queue, ()) if launch.early and queue.recording else ()
        assert all(node.gpu == queue.gpu for node in behind), "early, behind another GPU's kernel"

        def run():
            with self._lock:
                rooms = {a: room.nbytes - 256 for a, room in self._memory.items()}
            kernel.run(taken, launch, rooms)

        self.give(launch.stream, "kernel", run)
        words = rendezvous_of(kernel, taken)
        assert words is None or queue.recording is not None, "a kernel meets none of a graph"
        if queue.recording is not None:
            queue.recording.nodes[-1].meets = words
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
        is_joined = set(ends) <= set(recording.last[queue])
        for other in recording.last:
            other.recording = None
        if not is_joined:  # as the driver: the capture is over, and there is no graph
            raise CudaError("cuStreamEndCapture", 904, "a stream of the capture was not joined")
        self._graphs[number] = recording.nodes
        return number

    def load_kernels(self, graph):
        self.counts["loaded"] += len(self._graphs[graph])

    def count_nodes(self, graph):
        return len(self._graphs[graph])

    def make_executable(self, graph):
        nodes = self._graphs.pop(graph)
        number = next(self._numbers)
        self._graphs[number] = nodes
        return number, len(nodes)

    def update_executable(self, executable, graph):
        self.counts["graph updates"] += 1
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
        self.counts["graph"] += 1

        rendezvous = [n for n in nodes if n.meets]
        hosts = {own: n for n in rendezvous for own, _ in n.meets.words}
        assert len(hosts) == sum(len(n.meets.words) for n in rendezvous), "words are used twice"
        others = {id(n): [hosts[peer] for _, peer in n.meets.words] for n in rendezvous}
        for n in rendezvous:
            own = {w for w, _ in n.meets.words}
            assert all(own & {peer for _, peer in o.meets.words} for o in others[id(n)])
            assert len({n.gpu, *(o.gpu for o in others[id(n)])}) == 1 + len(own)

        def run():
            left, ended = list(nodes), set()

            def can_run(node):
                group = (node, *others.get(id(node), ()))
                return all(id(b) in ended for n in group for b in n.behind)

            while left:
                node = queue.random.choice([n for n in left if can_run(n)])
                group = others.get(id(node))
                if group is None:
                    node.work()
                else:
                    self.counts["rendezvous"] += 1
                    self.counts["pushed"] += node.meets.is_pushed
                    meet(node, [id(other) in ended for other in group])
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


WORDS_AT, SUM_AT = 19, 13
"""Arguments of ``sum_norm``: the first one of a rendezvous, and the shape of the sum."""
PUSHED_WORDS_AT = -2 * MAX_PEERS - 5
"""Argument of ``warp_specialized_rows``: the first one of a rendezvous."""


class Rendezvous(NamedTuple):
    """Own words of a launch and those of a kernel that it meets, for each; how many they are.

    And whether rows have been pushed.
    """

    words: tuple[tuple[int, int], ...]
    count: int
    is_pushed: bool


def rendezvous_of(kernel, taken):
    """Return the rendezvous of a launch, if it has one."""
    is_pushed = kernel.name == "warp_specialized_rows"
    if kernel.name != "sum_norm" and (not is_pushed or ("PEERS_MET", "0") in kernel.defines):
        return None
    behind = taken[PUSHED_WORDS_AT if is_pushed else WORDS_AT :]
    given = [int.from_bytes(v, "little") for v in behind[: 2 * MAX_PEERS]]
    words = [pair for pair in zip(given[::2], given[1::2], strict=True) if any(pair)]
    assert all(all(pair) for pair in words)
    rows = 1 if is_pushed else int(np.prod(np.frombuffer(taken[SUM_AT][-16:-4], np.int32)))
    return Rendezvous(tuple(words), rows, is_pushed) if words else None


def meet(node, were_told):
    """Run a kernel that meets others; where one runs later it is as if that had run."""
    pairs = [
        [(ctypes.c_uint32 * node.meets.count).from_address(a) for a in addresses]
        for addresses in node.meets.words
    ]
    ones, zeros = [1] * node.meets.count, [0] * node.meets.count
    for (own, _), was_told in zip(pairs, were_told, strict=True):
        assert list(own) == (ones if was_told else zeros), "words of a rendezvous are used twice"
        own[:] = ones
    node.work()
    for (own, peer), was_told in zip(pairs, were_told, strict=True):
        assert list(own) == zeros
        assert list(peer) == ones
        if was_told:
            peer[:] = zeros


def _shape(nodes):
    numbers = {id(node): i for i, node in enumerate(nodes)}
    return [(n.kind, [numbers[id(b)] for b in n.behind]) for n in nodes]
