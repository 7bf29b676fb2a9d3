"""The levels of ``GGSCHED_DEBUG``: what is written to stderr while plans are made and run.

Each level adds to those below: 1 devices and sizes, 2 placement and splits with their reasons, 3
commands with the hazards of waits, 4 each call that is made on a device, when it is made.
"""

from collections.abc import Callable
from typing import Final

from ggsched.plan.bundle import Plan
from ggsched.plan.text import plan_text
from ggsched.printable import write_err
from ggsched.topology.model import Topology
from ggsched.trace.recorder import Recorder

SECTIONS: Final[dict[str, int]] = {
    "devices": 1,
    "memory": 1,
    "stats": 1,
    "splits": 2,
    "streams": 2,
    "commands": 3,
}
"""From which level on each section of a printed plan is written."""

EACH_CALL: Final = 4

Log = Callable[[str], None]


def log_to_stderr(text: str) -> None:
    """Write a line on stderr, behind our name."""
    write_err(f"ggsched: {text}\n")


def log_machine(topology: Topology, level: int, log: Log = log_to_stderr) -> None:
    """Log the devices of a scheduler, from level 1 on."""
    if level < 1:
        return
    for facts in topology.devices:
        log(f"device {facts.name}: {facts.kind}, {facts.description}")


def log_plan(plan: Plan, level: int, log: Log = log_to_stderr) -> None:
    """Log a plan that was made: more of it on each level."""
    if level < 1:
        return
    for line in plan_lines(plan, level):
        log(line)


def plan_lines(plan: Plan, level: int) -> list[str]:
    """Return those lines of a printed plan that belong to a level."""
    first, *sections = plan_text(plan, verbose=level >= 3).rstrip("\n").split("\n\n")
    kept = [first]
    for section in sections:
        title = section.partition("\n")[0]
        if SECTIONS.get(title, 1) <= level:
            kept += section.split("\n")
    return kept


def recorder_for(level: int, recorder: Recorder | None) -> Recorder | None:
    """Return a recorder that logs each call from level 4 on; a new one keeps no records."""
    if level < EACH_CALL:
        return recorder
    made = recorder or Recorder(0)
    made.log = log_to_stderr
    return made
