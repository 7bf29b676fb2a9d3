"""Events whose completion is a moment of its own (EVT-1..6)."""

from ggsched.backend.checks import closed_error
from ggsched.errors import UsageError
from ggsched_testing.sim.engine import Task
from ggsched_testing.sim.state import SimOwner


class SimEvent:
    """One point on one stream, recorded once.

    Attributes:
        device: The device that made it.
        number: Number in the world.
        task: Its completion; None until it is recorded.
    """

    def __init__(self, device: SimOwner, number: int) -> None:
        self.device = device
        self.number = number
        self.task: Task | None = None
        self._is_closed = False

    @property
    def is_recorded(self) -> bool:
        """Whether a stream has recorded it."""
        if self._is_closed:
            raise closed_error("event")
        return self.task is not None

    @property
    def is_done(self) -> bool:
        """Whether its prefix is complete or has failed (EVT-5, EVT-6)."""
        if self._is_closed:
            raise closed_error("event")
        task = self.task
        if task is None:
            return False
        world = self.device.world
        if not world.host_peeks:
            return task.stream.known >= task.position
        world.poll(f"e{self.number}")
        world.touch(("done", task.actor), 0, 1, writes=False)
        return task.is_done

    def sync(self, timeout_s: float) -> None:
        """Block until done (EVT-5); raises if it was not recorded (EVT-3) or failed (EVT-6)."""
        if self._is_closed:
            raise closed_error("event")
        if self.task is None:
            raise UsageError(
                "the event was not recorded",
                where=self.device.facts.name,
                why="waiting for it would never end (EVT-3)",
                hint="record it on a stream first",
            )
        task = self.task
        self.device.world.block([task], timeout_s, f"event e{self.number} of {task.stream.name}")
        task.stream.known = max(task.stream.known, task.position)
        if task.fault is not None:
            raise task.fault.error()

    def close(self) -> None:
        """Release it; legal twice and before it is done (ERR-3)."""
        if not self._is_closed:
            self._is_closed = True
            self.device.world.forget("events", self.number)
