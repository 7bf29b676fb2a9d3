"""Commands that the host may run itself while it has nothing else to do but wait for them.

A stream with a thread of its own costs a hand-over each way: the thread is woken, and wakes whoever
waits for it. That is worth it while the host, or another device, has something to do meanwhile. In
a step that goes from device to device and back, as decoding does with experts in host memory, it
has not: everything that follows waits for these commands, and so does the host in the end.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ggsched.plan.bundle import Plan
from ggsched.plan.command import Launch
from ggsched.plan.effects import Effects
from ggsched.run.resources import Resources

Call = Callable[[], None]


def run_while_waiting(plan: Plan, resources: Resources, calls: Sequence[Call]) -> tuple[Call, ...]:
    """Return the calls of a plan; those for which the host would wait let it run them.

    Streams that offer it have ``__run_here__(enqueue, programs)``, which calls ``enqueue`` and may
    run what that enqueues before it returns, if nothing is enqueued before it and the programs are
    known to be short.

    Args:
        resources: What it is bound to.
        calls: A call for each command, which enqueues it.
    """
    found = list(calls)
    streams: Sequence[Any] = resources.streams
    offers = [getattr(stream, "__run_here__", None) for stream in streams]
    if any(offers):
        effects = [command.effects for command in plan.commands]
        for stream, numbers in _groups(effects):
            offer, commands = offers[stream], plan.commands[numbers.start : numbers.stop]
            programs = [resources.programs[c.id] for c in commands if isinstance(c, Launch)]
            if offer is not None and programs and _is_awaited(effects, numbers):
                for n in numbers:
                    found[n] = partial(offer, calls[n], programs)
    return tuple(found)


def _groups(effects: Sequence[Effects]) -> Iterator[tuple[int, range]]:
    """Yield neighbours on one stream; an event ends them, since others may go on from there."""
    start = 0
    for n, effect in enumerate(effects):
        if effect.blocks_host or len(effect.streams) != 1:
            start = n + 1
            continue
        following = effects[n + 1] if n + 1 < len(effects) else None
        if (
            following is None
            or following.blocks_host
            or following.streams != effect.streams
            or (effect.records and not following.records)
        ):
            yield effect.streams[0], range(start, n + 1)
            start = n + 1


def _is_awaited(effects: Sequence[Effects], numbers: range) -> bool:
    """Whether all work behind some commands, up to a wait of the host for them, waits for them."""
    behind = set(effects[numbers.start].streams)
    events = {event for n in numbers for event in effects[n].records}
    for effect in effects[numbers.stop :]:
        if effect.blocks_host:
            if events.intersection(effect.waits) or (
                not effect.waits and behind.issuperset(effect.streams)
            ):
                return True
        elif behind.issuperset(effect.streams):
            events.update(effect.records)
        elif events.intersection(effect.waits):
            behind.update(effect.streams)
        elif not effect.records and not effect.waits:
            return False
    return False
