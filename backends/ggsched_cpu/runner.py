"""What a stream runs tables of kernels with: the team, or its own thread."""

import weakref
from typing import TYPE_CHECKING

from ggsched_cpu.native import team, walk_functions

if TYPE_CHECKING:
    from ggsched_cpu.kernels.team import Fault, Slots, Table, Team


class Runner:
    """Runs tables for one stream.

    Args:
        stream: When it is closed or gone, the team is left.
        threads: How many compute.
    """

    def __init__(self, stream: object, threads: int) -> None:
        from ggsched_cpu.kernels.team import Lone

        self._lone = Lone(walk_functions())
        self._team: Team | None = None
        self._leave = None
        if threads > 1:
            self._team = team(threads)
            self._team.enter()
            self._leave = weakref.finalize(stream, self._team.leave)
            self._leave.atexit = False

    def run(self, table: "Table", times: "Slots | None", *, is_serial: bool) -> "Fault | None":
        """Run a table; one that is the work of one thread does not need the team."""
        if self._team is None or is_serial:
            return self._lone.run(table, times)
        return self._team.run(table, times)

    @property
    def position(self) -> tuple[int | None, int]:
        """Entries of the tables that run on the team, if there is one, and on the own thread."""
        return None if self._team is None else self._team.position, self._lone.position

    def close(self) -> None:
        """Leave the team; legal twice."""
        if self._leave is not None:
            self._leave()
