"""Hand-made timelines: each command by stream, kind and times."""

from ggsched.trace.timeline import Lane, Span, TimedRun, Timeline

DEVICES = ("", "gpu:0", "gpu:1", "gpu:2")


def timeline(*rows, runs=()):
    """Return a timeline; a row is (lane, kind, issued, start, end, more fields).

    Lane 0 is the host; lane n is the one stream of gpu:n-1.
    """
    spans = [
        Span(i, lane, kind, f"{kind} {i}", issued, start, end, run=0 if runs else -1, **more)
        for i, (lane, kind, issued, start, end, more) in enumerate(rows)
    ]
    lanes = tuple(Lane(i, d or "host", d) for i, d in enumerate(DEVICES))
    return Timeline("by hand", lanes, tuple(spans), tuple(TimedRun(0, *r) for r in runs))


def launch(lane, start, end, issued=0.0):
    return (lane, "launch", issued, start, end, {})


def copy(lane, start, end, issued=0.0, nbytes=100, src="gpu:0", dst="gpu:1"):
    return (lane, "copy", issued, start, end, {"nbytes": nbytes, "src": src, "dst": dst})


def record(lane, at, event):
    return (lane, "record", 0.0, at, at, {"event": event})


def wait(lane, start, end, event, issued=0.0):
    return (lane, "wait", issued, start, end, {"event": event})


def sync(start, end, event=-1, target=-1):
    return (0, "sync", start, start, end, {"event": event, "target": target})
