"""Who measures: this process, others of this machine, or the nodes of a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from ggsched.fingerprint import fingerprint
from ggsched.testing.journal import Journal
from ggsched.testing.parallel import Progress, in_order

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Spread:
    """Who measures.

    Attributes:
        jobs: Processes of this machine.
        ray: Address of a Ray cluster, or None.
        folder: Keeps a journal for each kind of work, or None.
        progress: Told how far it is.
    """

    jobs: int = 1
    ray: str | None = None
    folder: Path | None = None
    progress: Progress | None = None

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        keys: Sequence[str],
        work: str,
        kind: Any,
    ) -> Iterator[R]:
        """Yield what a function returns for each item, in order."""
        journal: Journal[R] | None = None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{work.split(',')[0].replace(' ', '-')}.jsonl"
            what = f"{work}, sources {fingerprint()}"
            journal = Journal(path, work=what, keys=keys, type=kind)
        return in_order(
            function,
            items,
            jobs=self.jobs,
            ray=self.ray,
            progress=self.progress,
            journal=journal,
        )


HERE: Final = Spread()
