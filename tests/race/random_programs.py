"""Random programs of several streams, and what all orders of them show.

A program is a list of calls of the host. ``races_in_some_order`` runs it in every order that
streams, events and waits allow, without clocks: a program races if some order comes to a point
where two accesses that conflict may both be next.
"""

import io
from random import Random
from typing import NamedTuple

from ggsched_race.recording import HOST, Recording, trace_of_journal

LENGTH = 4
DEVICE, PINNED = (0, 1), 2
STREAMS, EVENTS = 3, 3
WAITS = ("wait", "event", "stream", "device")


class Call(NamedTuple):
    """A call: ``work``, ``host`` (an access), ``record``, ``wait``, or a wait of the host."""

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
        ("launch", "upload", "download", "host", "record", "wait", "event", "stream", "device"),
        (7, 3, 2, 3, 4, 4, 2, 1, 0.3),
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
    return Call(kind, stream, event)


# --- every order ----------------------------------------------------------------------------------


def races_in_some_order(program):
    """Whether two conflicting accesses may both be next at some point of some order."""
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
                if program[here].kind == "work":
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
        if call.kind in ("work", "record", "wait"):
            queues[call.stream].append(i)
        if call.kind == "record":
            recorded[call.event] = (call.stream, len(queues[call.stream]))
    return queues, needs


def _conflict(a, b):
    return any(
        m == n and start < last and first < end
        for mine, others in ((a.writes, b.writes + b.reads), (a.reads, b.writes))
        for m, start, end in mine
        for n, first, last in others
    )


# --- the same program, recorded -------------------------------------------------------------------


def recorded(program):
    """Return the trace of a program, as the recorder of PyTorch would write it."""
    out = io.BytesIO()
    recording = Recording(out, "random")
    memories = [recording.memory(LENGTH, "(4,) uint8", -1) for _ in range(3)]
    streams = [recording.stream((0, handle)) for handle in (0, 16, 32)]

    def bytes_of(spans):
        return [(memories[m], start, end) for m, start, end in spans]

    for call in program:
        stream = streams[call.stream]
        match call.kind:
            case "work" | "host":
                actor = stream if call.kind == "work" else HOST
                recording.work(actor, "op", bytes_of(call.reads), bytes_of(call.writes), 0)
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
        return (pinned if memory == PINNED else tensors[memory])[start:end]

    for number, call in enumerate(program):
        stream, event = streams[call.stream], events[call.event]
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
                    array[start:end] = number % 250
                case Call("host", _, _, ((_, start, end),), ()):
                    assert array[start:end].sum() >= 0
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
