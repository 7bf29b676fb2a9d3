"""Traces written by hand."""

from ggsched.trace.schema import NOBODY, Access, Actor, Alloc, Trace, Work

H, A, B = 0, 1, 2
ACTORS = (
    Actor(H, "H", "host"),
    Actor(A, "A", "stream", "gpu:0"),
    Actor(B, "B", "stream", "gpu:1"),
)
SIZE = 64


def alloc(memory, actor=H, **more):
    return Alloc(actor, memory, f"m{memory}", SIZE, **{"is_defined": True, **more})


def touch(memory, start=0, end=SIZE, tag=""):
    return Access(memory, start, end, tag)


def reads(actor, *memory, by=H, label="read", **more):
    return _work(actor, label, by, [touch(m) for m in memory], [], more)


def writes(actor, *memory, by=H, label="write", **more):
    return _work(actor, label, by, [], [touch(m) for m in memory], more)


def _work(actor, label, by, read, written, more):
    by = by if actor != by else NOBODY
    return Work(actor, label, by, tuple(read), tuple(written), **more)


def trace(*entries, actors=ACTORS, **more):
    return Trace("hand", tuple(actors), tuple(entries), **more)
