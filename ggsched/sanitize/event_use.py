"""Events and barriers: is each recorded once, and before anybody waits for it (EVT-3)?"""

from ggsched.sanitize.events import Event, EventStream
from ggsched.sanitize.report import Finding


def find_event_misuse(stream: EventStream) -> list[Finding]:
    """Return events recorded twice or waited for too early, and uses of what a device lacks."""
    findings: list[Finding] = []
    recorded: set[int] = set()

    def add(event: Event, does: str, fix: str) -> None:
        what = f"{stream.names.ref(event)} {does}"
        findings.append(Finding("event", what, event.source, fix))

    for event in stream.events:
        actor, number = stream.actors[event.actor], event.event
        if event.kind == "record" and number is not None:
            if number in recorded and not stream.is_renewable:
                add(event, f"records event {number} again", "use an event of its own (EVT-3)")
            if not actor.has_events:
                does = f"records an event on {actor.device}, which has none"
                add(event, does, "let the host wait for the stream")
            recorded.add(number)
        elif event.kind == "barrier" and not actor.has_barrier:
            does = f"is a barrier on {actor.device}, which has none"
            fix = "let the host wait for the stream"
            add(event, does, fix if actor.copy_order == "host" else "leave it out")
        elif event.kind in ("wait", "sync") and number is not None:
            if number not in recorded and not stream.is_renewable:
                does = f"waits for event {number}, which is not recorded before"
                add(event, does, "record it before (EVT-3)")
            if event.kind == "wait" and not actor.has_events:
                does = f"lets {actor.device} wait for an event, which it cannot"
                add(event, does, "let the host wait instead")
    return findings
