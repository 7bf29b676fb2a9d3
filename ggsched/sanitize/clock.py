"""Vector clocks: what each actor knows to be done.

A clock is a list with one number for each lane; number n of a lane stands for its first n pieces
of work. The number of lanes is small (the host, and one or two for each stream), so plain lists
are the fastest representation there is.
"""

Clock = list[int]


def new_clock(lanes: int) -> Clock:
    """Return the clock of an actor that knows of nothing."""
    return [0] * lanes


def join(into: Clock, other: Clock) -> None:
    """Add to a clock all that another one knows."""
    for lane, known in enumerate(other):
        if known > into[lane]:
            into[lane] = known
