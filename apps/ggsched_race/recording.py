"""A trace that is written while a program runs: streams, events, graphs and what they touch.

All threads of the host are one actor, in the order of their calls, unless ``HostThreads`` follows
how they hand over to each other. A captured graph is kept as a
list of its commands; each replay writes them again, on the stream that replays and on an actor of
its own for each other stream of the capture. Replays of one graph follow each other, as CUDA
orders them.

What is written is a journal: lines for actors and stacks, which a trace has in its header, between
the records. ``trace_of_journal`` puts them there, also where the program ended in the middle.
"""

import gc
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, count
from time import perf_counter
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from ggsched.errors import UsageError
from ggsched.trace.schema import FORMAT
from ggsched_race.call_sites import CallSites, Place, Stack, assigned_name

HOST: Final = 0
LEGACY_HANDLES: Final = (0, 1)
"""Of the legacy default stream."""

Bytes = tuple[int, int, int]
"""(memory, first byte, one past the last)."""
Entry = dict[str, Any]
StreamKey = tuple[int, int]
"""(device, handle); handle 0 is the legacy default stream."""


class RowChooser(NamedTuple):
    """What chooses rows anew when a graph is replayed.

    Attributes:
        ids: Memories that hold the ids.
        tables: Memories of which rows are chosen.
        choose: Returns the bytes that the present ids choose; None where they are gone.
    """

    ids: frozenset[int]
    tables: frozenset[int]
    choose: Callable[[], list[tuple[int, int]] | None]


class _Graph:
    """What a capture has collected."""

    def __init__(self, origin: int, end: int) -> None:
        self.origin = origin
        self.end = end
        self.entries: list[Entry] = []
        self.choosers: dict[int, RowChooser] = {}
        self.memories: set[int] = set()
        self.written: set[int] = set()
        self.branches: dict[int, int] = {}
        self.is_replayed = False


class RecordLock:
    """Held while something is recorded; by one thread, as often as it likes.

    The garbage collector pauses meanwhile: a finalizer of the program may wait for a lock that
    another thread holds, and that thread would wait here.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth, self._pauses = 0, False

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._pauses = gc.isenabled()
            gc.disable()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth and self._pauses:
            gc.enable()
        self._lock.release()


class Recording:
    """Writes records in the order of the host's calls.

    Args:
        out: Where the journal goes.
        name: Of the program, for people.

    Attributes:
        failure: Why nothing is written any more, if so.
        thread_actor: Returns the actor of the calling thread, called with whether it does something
            itself; None where all threads are one actor.
    """

    def __init__(self, out: BinaryIO, name: str) -> None:
        self._out = out
        self.failure: str | None = None
        self._encode = msgspec.json.Encoder().encode
        self._held = bytearray()
        self._gone_events: deque[int] = deque()
        self._write({"name": name})
        self._start = perf_counter()
        self._actors: dict[object, int] = {}
        self._actor_names: set[str] = set()
        self._site_names: dict[int, str] = {}
        self._stacks: dict[int, tuple[Stack, Place]] = {}
        self._blocking: set[int] = set()
        self._work_counts: dict[int, int] = {}
        self._ordered_counts: dict[tuple[int, int], int] = {}
        self._memories, self._event_ids = count(), count()
        self._events: dict[object, int] = {}
        self._capturing: dict[int, _Graph] = {}
        self._captured_events: dict[int, _Graph] = {}
        self._graphs: dict[object, _Graph] = {}
        self._pooled: set[int] = set()
        self._dead: set[int] = set()
        self.sites = CallSites(self._add_site)
        self.lock = RecordLock()
        self.thread_actor: Callable[[bool], int] | None = None
        self._notices: set[str] = set()
        self._groups: dict[str, int] = {}
        self._add_actor("host", "host", "host", "", -1)

    # --- the journal ------------------------------------------------------------------------------

    def _write(self, entry: Any) -> None:
        if self.failure is None:
            line = self._encode(entry)  # a finalizer may write meanwhile
            while self._gone_events:
                line += b'\n{"event_gone":%d}' % self._gone_events.popleft()
            self._held += line + b"\n"
            held, self._held = self._held, bytearray()
            try:
                self._out.write(held)
            except OSError as error:  # the program goes on
                self.failure = error.strerror or str(error)

    def _hold(self, line: bytes) -> None:
        """Keep a line for the next one: what memory is made or gone means nothing by itself."""
        if self.failure is None:
            self._held += line + b"\n"

    def _emit(self, entry: Entry, chooser: RowChooser | None = None) -> None:
        """Write a record, or keep it where its actor captures."""
        graph = self._capturing.get(entry["actor"]) if self._capturing else None
        if graph is None:
            if self.thread_actor is not None:
                is_own = entry["actor"] == HOST
                entry = {**entry, "actor" if is_own else "by": self.thread_actor(is_own)}
            self._write(entry)
            return
        if chooser is not None:
            graph.choosers[len(graph.entries)] = chooser
        graph.entries.append(entry)
        graph.memories.update(a[0] for part in ("reads", "writes") for a in entry.get(part, ()))
        graph.written.update(a[0] for a in entry.get("writes", ()))

    def notice(self, text: str) -> None:
        """Say in the report, once, what of the program is not recorded, or otherwise than it is."""
        if text not in self._notices:
            self._notices.add(text)
            self._write({"notice": text})

    def _add_site(self, number: int, stack: Stack, place: Place) -> None:
        self._stacks[number] = stack, place
        self._hold(self._encode({"site": number, "frames": stack}))

    def name_at(self, site: int) -> str:
        """Return the name that the line of a site assigns to, or ""."""
        if site not in self._site_names:
            self._site_names[site] = assigned_name(*self._stacks[site])
        return self._site_names[site]

    def collective(
        self, group: str, ranks: Sequence[int], rank: int, name: str, nbytes: int
    ) -> None:
        """Say that this process takes part in the next collective of a group.

        Args:
            ranks: Those of the group.
            rank: Of this process.
            name: Of the op.
            nbytes: Of the tensors that it is given.
        """
        if group not in self._groups:
            self._groups[group] = 0
            self._write({"group": group, "ranks": ranks, "rank": rank})
        number = self._groups[group]
        self._groups[group] += 1
        called = {"of": group, "number": number, "name": name, "nbytes": nbytes}
        self._write({"collective": {**called, "at": self.sites.here()}})

    # --- actors -----------------------------------------------------------------------------------

    def _add_actor(self, key: object, name: str, kind: str, device: str, at: int) -> int:
        actor = self._actors[key] = len(self._actors)
        names = chain([name], (f"{name} {i}" for i in count(2)))
        unique = next(n for n in names if n not in self._actor_names)
        self._actor_names.add(unique)
        line = {"id": actor, "name": unique, "kind": kind, "device": device, "at": at}
        self._write({"new_actor": line})
        return actor

    def stream(self, key: StreamKey, is_blocking: bool = False) -> int:
        """Return the actor of a stream; one that is new is named after the line that makes it."""
        known = self._actors.get(key)
        if known is not None:
            return known
        with self.lock:
            if key in self._actors:  # meanwhile
                return self._actors[key]
            at = self.sites.here() if key[1] else -1
            name = self.name_at(at) if key[1] else "default stream"
            actor = self._add_actor(key, name or "stream", "stream", f"cuda:{key[0]}", at)
            if is_blocking or key[1] == 0:
                self._blocking.add(actor)
            return actor

    def host_thread(self, name: str) -> int:
        """Return a new actor for a thread of the host."""
        with self.lock:
            return self._add_actor(object(), f"thread {name}", "host", "", -1)

    def hand_over(self, actor: int) -> int:
        """Return an event that stands for all that a thread of the host has done."""
        event = next(self._event_ids)
        self._write({"type": "record", "actor": actor, "event": event, "is_inherent": True})
        return event

    def take_over(self, actor: int, event: int) -> None:
        """Record that a thread of the host comes after an event of another one."""
        self._write({"type": "sync", "actor": actor, "event": event, "is_inherent": True})

    def engine(self, name: str) -> int:
        """Return the actor of what works beside all streams."""
        with self.lock:
            key = f"engine {name}"
            return self._actors.get(key) or self._add_actor(key, name, "stream", "", -1)

    def _follow_legacy_rule(self, actor: int) -> None:
        """Order the legacy default stream and blocking streams with each other, as CUDA does."""
        defaults = [a for key, a in self._actors.items() if isinstance(key, tuple) and not key[1]]
        for other in self._blocking if actor in defaults else defaults:
            works = self._work_counts.get(other, 0)
            if other != actor and works != self._ordered_counts.get((actor, other), 0):
                self._ordered_counts[actor, other] = works
                event = next(self._event_ids)
                self._emit({"type": "record", "actor": other, "event": event, "by": HOST})
                self._emit({"type": "wait", "actor": actor, "event": event, "by": HOST})
                self.event_gone(event)

    # --- memory and work --------------------------------------------------------------------------

    def memory(self, nbytes: int, text: str, at: int, *, place: str = "cuda") -> int:
        """Add a memory object.

        Args:
            text: Shape and type, for people.
            at: Where it was made.
            place: ``cuda``, ``pinned``, or ``graph`` for memory of a captured graph.
        """
        memory = next(self._memories)
        name = (self.name_at(at) if at >= 0 else "") or f"tensor {text}"
        if place == "graph":
            self._pooled.add(memory)
        entry = {
            "type": "alloc", "actor": HOST, "memory": memory, "name": name, "nbytes": nbytes,
            "is_defined": True, "is_unsafe": False, "text": text, "place": place, "at": at,
        }  # fmt: skip
        self._hold(self._encode(entry))
        return memory

    def memory_gone(self, memory: int) -> None:
        """Say that no later record touches a memory object, if that is so."""
        graphs = (*self._graphs.values(), *self._capturing.values()) if self._graphs else ()
        is_kept = memory in self._pooled or (graphs and any(memory in g.memories for g in graphs))
        if not is_kept:
            self._hold(b'{"gone":%d}' % memory)

    def memory_died(self, memory: int) -> None:
        """Note that the program has let go of a memory object."""
        if not self._graphs or memory in self._pooled:
            return
        if any(memory in g.memories for g in self._graphs.values()):
            self._dead.add(memory)

    def work(
        self,
        stream: int,
        label: str,
        reads: Sequence[Bytes],
        writes: Sequence[Bytes],
        at: int,
        *,
        is_copy: bool = False,
        is_partial: bool = False,
        chooser: RowChooser | None = None,
        takes: Sequence[Bytes] = (),
        views: Sequence[Any] = (),
        is_possible: bool = False,
    ) -> None:
        """Record work of a stream, or of the host.

        Args:
            stream: The actor.
            label: The op.
            at: Where it was called.
            is_copy: Whether all that it writes is a copy.
            is_partial: Whether it may leave some of the bytes that it writes as they were.
            chooser: What chooses the rows again for each replay, where a graph captures the work.
            takes: Bytes of freed blocks that may be the same memory as what it touches.
            views: (memory, shape and type, strides, offset) of tensors that are part of theirs.
            is_possible: Whether it may touch fewer bytes.
        """
        if stream in self._blocking and len(self._blocking) > 1:
            self._follow_legacy_rule(stream)
        self._work_counts[stream] = self._work_counts.get(stream, 0) + 1
        entry: Entry = {"type": "work", "actor": stream, "label": label, "at": at}
        if stream != HOST:
            entry["by"] = HOST
        if reads:
            entry["reads"] = reads
        if writes or takes:
            entry["writes"] = [*writes, *takes]
        if is_copy:
            entry["is_copy"] = True
        if is_partial or takes:
            entry["is_partial"] = True
        if takes:
            entry["takes"] = sorted({memory for memory, _, _ in takes})
        if views:
            entry["views"] = views
        if is_possible:
            entry["is_possible"] = True
        if self._capturing or self.thread_actor is not None:
            self._emit(entry, chooser)
        else:
            self._write(entry)

    # --- events and waits -------------------------------------------------------------------------

    def event_created(self, key: object) -> None:
        """Let a handle stand for a new event."""
        self._events[key] = next(self._event_ids)

    def event_deleted(self, key: object) -> None:
        """Forget a handle."""
        event = self._events.pop(key, None)
        if event is not None:
            self.event_gone(event)

    def event_gone(self, event: int) -> None:
        """Say, behind the next record, that none uses an event any more; at any point of one."""
        self._gone_events.append(event)

    def _event(self, key: object) -> int:
        if key not in self._events:
            self.event_created(key)
        return self._events[key]

    def record(self, key: object, stream: int, at: int) -> None:
        """Record that an event is recorded on a stream."""
        event = self._event(key)
        self._captured_events.pop(event, None)
        if stream in self._capturing:
            self._captured_events[event] = self._capturing[stream]
        self._emit({"type": "record", "actor": stream, "event": event, "by": HOST, "at": at})

    def wait(self, key: object, stream: int, at: int) -> None:
        """Record that a stream waits for an event; for one of a capture it joins the capture."""
        event = self._event(key)
        graph = self._captured_events.get(event)
        if graph is not None:
            self._capturing.setdefault(stream, graph)
        self._emit({"type": "wait", "actor": stream, "event": event, "by": HOST, "at": at})

    def sync(
        self,
        at: int,
        *,
        event: object = None,
        streams: Sequence[int] = (),
        start_s: float | None = None,
        is_inherent: bool = False,
    ) -> None:
        """Record that the host has waited for an event, or for all that streams have so far.

        Args:
            start_s: When it began to wait, by ``perf_counter``; until now.
            is_inherent: Whether the wait is a part of an op, such as ``item()``.
        """
        entry: Entry = {"type": "sync", "actor": HOST, "at": at}
        if is_inherent:
            entry["is_inherent"] = True
        if start_s is not None:
            entry |= {"start_s": start_s - self._start, "end_s": perf_counter() - self._start}
        if event is not None:
            self._emit({**entry, "event": self._event(event)})
        if len(streams) > 1 and len(streams) == len(self._actors) - 1 and not self._capturing:
            self._emit(entry)
            return
        for stream in streams:
            if stream not in self._capturing:
                self._emit({**entry, "stream": stream})
                entry = {k: v for k, v in entry.items() if not k.endswith("_s")}  # waited once

    def streams_of(self, device: int) -> list[int]:
        """Return the actors of a device, branches of graphs included."""
        return [a for key, a in self._actors.items() if isinstance(key, tuple) and key[0] == device]

    # --- graphs -----------------------------------------------------------------------------------

    def is_capturing(self, stream: int) -> bool:
        """Whether a stream collects what it is given."""
        return stream in self._capturing

    def begin_capture(self, key: object, stream: int) -> None:
        """Collect what the stream is given, and whoever waits for events of the capture."""
        graph = self._graphs[key] = _Graph(stream, next(self._event_ids))
        self._capturing[stream] = graph

    def end_capture(self, key: object) -> None:
        """Stop collecting."""
        graph = self._graphs.get(key)
        for known in (self._capturing, self._captured_events):
            for item in [item for item, of in known.items() if of is graph]:
                del known[item]

    def forget_graph(self, key: object) -> None:
        """Forget a graph that was reset."""
        self.end_capture(key)
        self._graphs.pop(key, None)

    def replay(self, key: object, stream: int, at: int) -> None:
        """Write the commands of a graph once more, on a stream."""
        graph = self._graphs.get(key)
        if graph is None:
            return
        if graph.is_replayed:
            self._emit({"type": "wait", "actor": stream, "event": graph.end, "by": HOST})
        graph.is_replayed = True
        for memory in sorted(self._dead & graph.memories):
            self._dead.discard(memory)
            free = {"type": "free", "actor": stream, "memory": memory, "by": HOST, "at": at}
            self._emit(free)
        for i, entry in enumerate(list(graph.entries)):
            actor = self._replaying(graph, entry["actor"], stream)
            again = {**entry, "actor": actor, "captured": entry.get("at", -1), "at": at}
            chooser = graph.choosers.get(i)
            if chooser is not None and not chooser.ids & graph.written:
                _choose(again, chooser)
            self._emit(again)
        self._emit({"type": "record", "actor": stream, "event": graph.end, "by": HOST})

    def _replaying(self, graph: _Graph, captured: int, stream: int) -> int:
        """Return the actor that stands for a stream of a capture while a stream replays it."""
        if captured == graph.origin:
            return stream
        if captured not in graph.branches:
            device = next((k[0] for k, a in self._actors.items() if a == stream), 0)  # type: ignore[index]
            key = (device, f"graph {graph.end} {captured}")
            graph.branches[captured] = self._add_actor(
                key, "branch of a graph", "stream", f"cuda:{device}", -1
            )
        return graph.branches[captured]


def _choose(entry: Entry, chooser: RowChooser) -> None:
    """Let a record touch the rows that the present ids choose."""
    runs = chooser.choose()
    for part in ("reads", "writes") if runs is not None else ():
        tables = sorted({a[0] for a in entry.get(part, ())} & chooser.tables)
        if tables:
            others = [a for a in entry[part] if a[0] not in chooser.tables]
            entry[part] = others + [(m, start, end) for m in tables for start, end in runs or ()]


def trace_of_journal(journal: bytes) -> bytes:
    """Return the trace that a journal makes; a last line that is cut off is left out.

    Raises:
        UsageError: a line that is not JSON before the last one.
    """
    name, actors, sites, notices, entries = "program", [], [], [], []
    ranks: dict[str, Any] = {}
    decode = msgspec.json.Decoder().decode
    lines = journal.split(b"\n")
    if lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if line.startswith(b'{"type"'):
            entries.append(line)
        elif line:
            try:
                found = decode(line)
            except msgspec.DecodeError as error:
                what, where = "not a journal of a race run", f"journal:{number}"
                raise UsageError(what, where=where, why=str(error)) from error
            name = found.get("name", name)
            actors += [found["new_actor"]] if "new_actor" in found else []
            sites += [found["frames"]] if "site" in found else []
            notices += [found["notice"]] if "notice" in found else []
            if "group" in found:
                ranks.setdefault("groups", {})[found["group"]] = found["ranks"]
                ranks["rank"] = found["rank"]
            if "collective" in found:
                ranks.setdefault("collectives", []).append(found["collective"])
    header = {"format": FORMAT, "name": name, "actors": actors, "events": "latest", "sites": sites}
    header |= {"notices": notices} if notices else {}
    header |= ranks if "collectives" in ranks else {}
    return b"\n".join([msgspec.json.encode(header), *entries, b""])
