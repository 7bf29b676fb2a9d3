"""What a program runs when it is launched."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ggsched.backend.timing import HostTaken


class Body(Protocol):
    """What a program runs. A launch that is enqueued holds it, whatever becomes of the program."""

    def run(self) -> None:
        """Run every node in order."""

    def run_timed(self, taken: HostTaken) -> None:
        """Run every node in order, and note when."""

    def failed_node(self, error: BaseException) -> str:
        """Return the label of the node at which ``run`` raised ``error``."""


class Steps:
    """Calls without arguments, each with the label of its node.

    Infinities and NaN are values (LCH-3): numpy's
    warnings of them, which Python may be set to raise, are switched off.
    """

    def __init__(self, steps: Sequence[tuple[str, Callable[[], None]]]) -> None:
        self.steps = steps
        self._label = "launch"
        self._count = 0

    @property
    def position(self) -> object:
        """What is different as soon as the next node runs."""
        return self._label

    def run(self) -> None:
        """Run every node in order."""
        with np.errstate(all="ignore"):
            for label, step in self.steps:
                self._label = label
                self._count += 1
                step()

    def run_timed(self, taken: HostTaken) -> None:
        """Run every node in order, and note when."""

        def labelled(label: str, step: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                self._label = label
                self._count += 1
                step()

            return run

        with np.errstate(all="ignore"):
            taken.run_steps([(label, labelled(label, step)) for label, step in self.steps])

    def at(self) -> tuple[int, str]:
        """Return the nodes begun so far, in all runs, and the label of the last one."""
        return self._count, self._label

    def failed_node(self, error: BaseException) -> str:
        """Return the label of the node that ran last."""
        return self._label


Command = str | Body
"""What a command is called: by name, or the body that says which node failed."""
