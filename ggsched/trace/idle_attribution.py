"""What an idle moment of a device is attributed to; see ``ggsched.trace.utilization``."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from ggsched.trace.timeline import COPIES, Span, Timeline

Cause = Literal["copy", "peer", "host", "done"]


class Charge(NamedTuple):
    """An idle interval of a device, and what it is charged to.

    Attributes:
        through_host: Whether the host waited for the same thing, and the device for the host.
    """

    cause: Cause
    start_s: float
    end_s: float
    through_host: bool = False


class _Track:
    """The commands of one stream in the order of enqueueing."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = list(spans)
        # Whoever is complete only with all before it: the order of a stream.
        self.done_s = list(accumulate((s.end_s for s in spans), max))
        self.ids = [s.id for s in spans]

    def first_open(self, at_s: float) -> int:
        """Return the first command that is not complete at a time."""
        return bisect_right(self.done_s, at_s)


class IdleAttribution:
    """Attributes idle time of devices to its causes, for one timeline.

    Args:
        spans: Those of its spans that count.
    """

    def __init__(self, timeline: Timeline, spans: Sequence[Span]) -> None:
        self._device_of = [track.device for track in timeline.tracks]
        by_track: dict[int, list[Span]] = defaultdict(list)
        for span in spans:
            by_track[span.track].append(span)
        self._tracks = {track: _Track(items) for track, items in by_track.items()}
        self._recorded = {
            span.event: (track, i)
            for track, items in by_track.items()
            for i, span in enumerate(items)
            if span.kind == "record"
        }
        self._syncs = sorted((s for s in spans if s.kind == "sync"), key=lambda s: s.start_s)
        self._sync_ends = list(accumulate((s.end_s for s in self._syncs), max))

    def busy_of(self, device: str) -> Iterator[tuple[float, float, Span]]:
        """Yield the launches of a device by start, each as (start, end, span)."""
        launches = [
            span
            for track, items in self._tracks.items()
            if self._device_of[track] == device
            for span in items.spans
            if span.kind == "launch"
        ]
        for span in sorted(launches, key=lambda s: (s.start_s, s.end_s)):
            yield span.start_s, span.end_s, span

    def gap_before(self, launch: Span, start_s: float, end_s: float) -> Iterator[Charge]:
        """Yield what held back a launch during an interval that ends with its start."""
        track = self._tracks[launch.track]
        upto = bisect_right(track.ids, launch.id)
        at = start_s
        for charge in self._prefix(launch.track, upto, start_s, end_s, False):
            yield charge
            at = charge.end_s
        if at < end_s:
            yield Charge("host", at, end_s)

    def tail_of(self, device: str, start_s: float, end_s: float) -> Iterator[Charge]:
        """Yield what a device does after its last launch: copies that are left, then nothing."""
        if start_s >= end_s:
            return
        own = [track for track in self._tracks if self._device_of[track] == device]
        last = max(own, key=lambda track: self._tracks[track].done_s[-1])
        at = start_s
        for charge in self._prefix(last, len(self._tracks[last].spans), start_s, end_s, False):
            yield charge
            at = charge.end_s
        if at < end_s:
            yield Charge("done", at, end_s)

    def _prefix(
        self, track: int, upto: int, start_s: float, end_s: float, through: bool
    ) -> Iterator[Charge]:
        """Yield why the first commands of a stream are not complete, as long as they are not."""
        items = self._tracks[track]
        at = start_s
        for i in range(items.first_open(at), upto):
            span = items.spans[i]
            if at >= end_s:
                return
            if span.end_s <= at:
                continue
            if span.issued_s > at:
                until = min(span.issued_s, end_s)
                yield from self._host(at, until, span.id, through)
                at = until
            until = min(span.end_s, end_s)
            if until > at:
                yield from self._command(track, span, at, until, through)
                at = until

    def _command(
        self, track: int, span: Span, at: float, until: float, through: bool
    ) -> Iterator[Charge]:
        """Yield why a command that was enqueued is not complete."""
        if span.kind == "launch" or span.kind in COPIES:
            if span.start_s > at:
                yield Charge("host", at, min(span.start_s, until), through)
            if until > span.start_s:
                cause: Cause = "peer" if span.kind == "launch" else "copy"
                yield Charge(cause, max(at, span.start_s), until, through)
        elif span.kind == "wait" and span.event in self._recorded:
            for charge in self._prefix(*self._recorded[span.event], at, until, through):
                yield charge
                at = charge.end_s
            if at < until:  # the way from the event to whoever waits
                yield Charge("peer", at, until, through)
        else:
            yield Charge("host", at, until, through)

    def _host(self, at: float, until: float, before: int, through: bool) -> Iterator[Charge]:
        """Yield why the host had not enqueued something: what it waits for, or itself."""
        for i in range(bisect_right(self._sync_ends, at), len(self._syncs)):
            sync = self._syncs[i]
            if sync.start_s >= until or at >= until:
                break
            if sync.end_s <= at or sync.id >= before:
                continue
            if sync.start_s > at:
                yield Charge("host", at, sync.start_s, through)
                at = sync.start_s
            stop = min(sync.end_s, until)
            for charge in self._awaited(sync, at, stop):
                yield charge
                at = charge.end_s
            if at < stop:
                yield Charge("host", at, stop, through)
                at = stop
        if at < until:
            yield Charge("host", at, until, through)

    def _awaited(self, sync: Span, at: float, until: float) -> Iterator[Charge]:
        """Yield why the host had to wait."""
        if sync.event in self._recorded:
            yield from self._prefix(*self._recorded[sync.event], at, until, True)
            return
        tracks = list(self._tracks) if sync.target < 0 else [sync.target]
        streams = [track for track in tracks if track in self._tracks and self._device_of[track]]
        if streams:
            ends = {track: bisect_right(self._tracks[track].ids, sync.id) for track in streams}
            done = {k: self._tracks[k].done_s[n - 1] for k, n in ends.items() if n}
            if done:
                last = max(done, key=lambda track: done[track])
                yield from self._prefix(last, ends[last], at, until, True)
