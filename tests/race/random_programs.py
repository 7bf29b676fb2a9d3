"""Random programs of several streams, and what all orders of them show.

A program is a list of calls of the host. ``races_in_some_order`` runs it in every order that
streams, events and waits allow, without clocks: a program races if some order comes to a point
where two accesses that conflict may both be next.
"""

import io
from random import Random
from typing import NamedTuple

from ggsched_race.blocks import Blocks
from ggsched_race.recording import HOST, Recording, trace_of_journal

LENGTH = 4
DEVICE, PINNED = (0, 1), 2
STREAMS, EVENTS = 3, 3
WAITS = ("wait", "event", "stream", "device")


class Call(NamedTuple):
    """A call: ``work``, ``host`` (an access), ``record``, ``wait``, or a wait of the host.

    ``renew`` lets a tensor go and fills a new one, which gets its block, on the default stream;
    ``tell`` tells the allocator of a stream (``record_stream``). Both name the tensor by ``event``.
    """

    kind: str
    stream: int = 0
    event: int = 0
    reads: tuple = ()
    writes: tuple = ()


def variants(seed):
    """Yield a program, and the same without one of its waits."""
    random = Random(seed)
    program = draw_program(random, random.randint(4, 13))
    yield program
    waits = [i for i, call in enumerate(program) if call.kind in WAITS]
    if waits:
        left_out = random.choice(waits)
        yield [call for i, call in enumerate(program) if i != left_out]


def draw_program(random, size):
    """Return calls; ``random`` is a ``random.Random``."""
    return [_draw_call(random) for _ in range(size)]


def _span(random, memory):
    start = random.randrange(LENGTH)
    return memory, start, random.randint(start + 1, LENGTH)


def _draw_call(random):
    stream, event = random.randrange(STREAMS), random.randrange(EVENTS)
    kind = random.choices(
        (*("launch", "upload", "download", "host", "record", "wait"), *WAITS[1:], "renew", "tell"),
        (7, 3, 2, 3, 4, 4, 2, 1, 0.3, 1.5, 1.5),
    )[0]
    device = _span(random, random.choice(DEVICE))
    host = (PINNED, *device[1:])
    match kind:
        case "launch":
            mode = random.choice("rwb")
            reads = (device,) if mode in "rb" else ()
            return Call("work", stream, 0, reads, (device,) if mode in "wb" else ())
        case "upload":
            return Call("work", stream, 0, (host,), (device,))
        case "download":
            return Call("work", stream, 0, (device,), (host,))
        case "host":
            writes = random.random() < 0.6
            return Call("host", 0, 0, () if writes else (host,), (host,) if writes else ())
        case "renew" | "tell":
            return Call(kind, 0 if kind == "renew" else stream, device[0])
    return Call(kind, stream, event)


# --- every order ----------------------------------------------------------------------------------


def races_in_some_order(program):
    """Whether two conflicting accesses may both be next at some point of some order."""
    program = _with_generations(program)
    queues, needs = _queues(program)
    todo, seen = [(0, (0,) * STREAMS)], set()
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        at, done = state
        following = []  # accesses that may be next
        if at < len(program):
            call = program[at]
            if call.kind == "host":
                following.append(call)
            if call.kind == "wait" or all(done[s] >= n for s, n in needs[at]):
                todo.append((at + 1, done))  # a wait of a stream holds the stream, not the host
        for s, queue in enumerate(queues):
            if done[s] < len(queue) and queue[done[s]] < at:
                here = queue[done[s]]
                if program[here].kind in ("work", "renew"):
                    following.append(program[here])
                if program[here].kind != "wait" or all(done[o] >= n for o, n in needs[here]):
                    todo.append((at, (*done[:s], done[s] + 1, *done[s + 1 :])))
        if any(_conflict(a, b) for i, a in enumerate(following) for b in following[:i]):
            return True
    return False


def _queues(program):
    """Return the calls that each stream is given, and (stream, count) that each call waits for."""
    queues = [[] for _ in range(STREAMS)]
    recorded, needs = {}, []
    for i, call in enumerate(program):
        needed = []
        if call.kind in ("wait", "event"):
            needed = [recorded[call.event]] if call.event in recorded else []
        elif call.kind == "stream":
            needed = [(call.stream, len(queues[call.stream]))]
        elif call.kind == "device":
            needed = [(s, len(queue)) for s, queue in enumerate(queues)]
        needs.append(needed)
        if call.kind in ("work", "record", "wait", "renew"):
            queues[call.stream].append(i)
        if call.kind == "record":
            recorded[call.event] = (call.stream, len(queues[call.stream]))
    return queues, needs


def _with_generations(program):
    """Return calls whose spans say which tensor of its name they mean, and whom it is told of."""
    told = {m: set() for m in range(3)}
    generation = dict.fromkeys(told, 0)
    found = []
    for call in program:
        if call.kind == "tell":
            told[call.event].add(call.stream)  # the set of this generation, also of earlier spans
            continue
        if call.kind == "renew":
            memory = call.event
            told[memory], generation[memory] = set(), generation[memory] + 1
            call = call._replace(writes=((memory, 0, LENGTH),))
        spans = [
            tuple((m, a, b, generation[m], told[m]) for m, a, b in part)
            for part in (call.reads, call.writes)
        ]
        found.append(call._replace(reads=spans[0], writes=spans[1]))
    return found


def _conflict(a, b):
    return any(
        m == n and start < last and first < end and _may_meet(a, old, b, new)
        for mine, others in ((a.writes, b.writes + b.reads), (a.reads, b.writes))
        for m, start, end, *old in mine
        for n, first, last, *new in others
    )


def _may_meet(a, mine, b, other):
    """Whether the allocator lets two accesses to a block meet: not if it is told of the older."""
    if mine[0] == other[0]:
        return True
    older, (_, told) = (a, mine) if mine[0] < other[0] else (b, other)
    return older.stream not in told


# --- the same program, recorded -------------------------------------------------------------------


def recorded(program):  # noqa: C901  # one case for each kind of call
    """Return the trace of a program, as the recorder of PyTorch would write it."""
    out = io.BytesIO()
    recording = Recording(out, "random")
    streams = [recording.stream((0, handle)) for handle in (0, 16, 32)]
    blocks = Blocks(lambda block, tensor, is_shadow: recording.memory(LENGTH, "(4,) uint8", -1))
    pinned = recording.memory(LENGTH, "(4,) uint8", -1)
    for memory in DEVICE:
        blocks.allocated(512 * memory, streams[0])

    def work(actor, reads, writes):
        takes, parts = [], []
        for spans in (reads, writes):
            parts.append([])
            for memory, start, end in spans:
                found = [pinned]
                if memory != PINNED:
                    block = blocks.at(512 * memory, LENGTH)
                    shadow, taken = blocks.touch(block, actor)
                    takes += taken
                    found = [block.memory] if shadow is None else [block.memory, shadow]
                parts[-1] += [(m, start, end) for m in found]
        recording.work(actor, "op", *parts, -1, takes=takes)

    for call in program:
        stream = streams[call.stream]
        match call.kind:
            case "work" | "host":
                work(stream if call.kind == "work" else HOST, call.reads, call.writes)
            case "renew":
                blocks.freed(512 * call.event)
                blocks.allocated(512 * call.event, streams[0])
                work(streams[0], (), ((call.event, 0, LENGTH),))
            case "tell":
                blocks.at(512 * call.event, LENGTH).recorded.add(stream)
            case "record":
                recording.record(call.event, stream, 0)
            case "wait":
                recording.wait(call.event, stream, 0)
            case "event":
                recording.sync(0, event=call.event)
            case "stream":
                recording.sync(0, streams=[stream])
            case "device":
                recording.sync(0, streams=streams)
    return trace_of_journal(out.getvalue())


def run_in_torch(program):  # noqa: C901  # one case for each kind of call
    """Do what a program says, in PyTorch, on CUDA or its simulation."""
    import numpy as np
    import torch

    tensors = [torch.zeros(LENGTH, dtype=torch.uint8, device="cuda") for _ in DEVICE]
    pinned = torch.zeros(LENGTH, dtype=torch.uint8).pin_memory()
    array = pinned.numpy()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    scratch = [torch.zeros(LENGTH, dtype=torch.uint8, device="cuda") for _ in streams]
    events = [torch.cuda.Event() for _ in range(EVENTS)]
    tensors[0].copy_(pinned, non_blocking=True)  # from here on the host's accesses are followed
    torch.cuda.synchronize()

    def part(span):
        memory, start, end = span
        tensor = (pinned if memory == PINNED else tensors[memory])[start:end]
        return torch.from_dlpack(tensor) if memory != PINNED and number % 3 == 0 else tensor

    def host_reads(array):
        ways = array.sum, array.argmax, array.tolist, array.copy, lambda: array[[0]], array.argsort
        ways[number % len(ways)]()

    def host_writes(array):
        def key():
            array[:] = number % 250

        ways = key, lambda: array.fill(number), array.sort, lambda: array.put([0], [number])
        ways[number % len(ways)]()

    for number, call in enumerate(program):
        stream, event = streams[call.stream], events[call.event % EVENTS]
        with torch.cuda.stream(stream):
            match call:
                case Call("work", _, _, (read,), (written,)) if read == written:
                    part(read).mul_(2)
                case Call("work", _, _, (read,), (written,)):
                    part(written).copy_(part(read), non_blocking=True)
                case Call("work", _, _, (read,), ()):
                    scratch[call.stream][: read[2] - read[1]].copy_(part(read))
                case Call("work", _, _, (), (written,)):
                    part(written).fill_(1)
                case Call("host", _, _, (), ((_, start, end),)):
                    host_writes(array[start:end] if number % 2 else np.asarray(array)[start:end])
                case Call("host", _, _, ((_, start, end),), ()):
                    host_reads(array[start:end] if number % 2 else np.asarray(pinned)[start:end])
                case Call("renew", _, memory):
                    tensors[memory] = None
                    tensors[memory] = torch.zeros(LENGTH, dtype=torch.uint8, device="cuda")
                case Call("tell", _, memory):
                    tensors[memory].record_stream(stream)
                case Call("record"):
                    event.record()
                case Call("wait"):
                    event.wait()
                case Call("event"):
                    event.synchronize()
                case Call("stream"):
                    stream.synchronize()
                case Call("device"):
                    torch.cuda.synchronize()
