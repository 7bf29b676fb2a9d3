"""Hand-made timelines: each command by stream, kind and times."""

from ggsched.trace.timeline import Span, TimedRun, Timeline, Track

DEVICES = ("", "gpu:0", "gpu:1", "gpu:2")


def timeline(*rows, runs=()):
    """Return a timeline; a row is (track, kind, issued, start, end, more fields).

    Track 0 is the host; track n is the one stream of gpu:n-1.
    """
    spans = [
        Span(i, track, kind, f"{kind} {i}", issued, start, end, run=0 if runs else -1, **more)
        for i, (track, kind, issued, start, end, more) in enumerate(rows)
    ]
    tracks = tuple(Track(i, d or "host", d) for i, d in enumerate(DEVICES))
    return Timeline("by hand", tracks, tuple(spans), tuple(TimedRun(0, *r) for r in runs))


def launch(track, start, end, issued=0.0):
    return (track, "launch", issued, start, end, {})


def copy(track, start, end, issued=0.0, nbytes=100, src="gpu:0", dst="gpu:1"):
    return (track, "copy", issued, start, end, {"nbytes": nbytes, "src": src, "dst": dst})


def record(track, at, event):
    return (track, "record", 0.0, at, at, {"event": event})


def wait(track, start, end, event, issued=0.0):
    return (track, "wait", issued, start, end, {"event": event})


def sync(start, end, event=-1, target=-1):
    return (0, "sync", start, start, end, {"event": event, "target": target})
