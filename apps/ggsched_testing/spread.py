"""Where independent pieces of work run, and whether results are kept.

for r in Spread(jobs=4).results(check, blocks, keys=names, work="litmus", kind=Result): ...
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ggsched.fingerprint import fingerprint

if TYPE_CHECKING:
    from ggsched_testing.parallel import Progress

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the work runs.

    Attributes:
        jobs: Processes of this machine.
        ray: Address of a Ray cluster, or None.
        journal: File that keeps results, or a folder with one for each kind of work, or None.
        progress: Called with the number of results and of items.
    """

    jobs: int = 1
    ray: str | None = None
    journal: Path | None = None
    progress: "Progress | None" = None

    @property
    def is_plain(self) -> bool:
        """Whether this process does everything and keeps nothing."""
        return self.jobs == 1 and self.ray is None and self.journal is None

    def results(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        keys: Sequence[str],
        work: str,
        kind: Any,
    ) -> Iterator[R]:
        """Yield what a function returns for each item, in order.

        Args:
            function: Of a module.
            items: What is pickled and sent.
            keys: A text for each item, to find its result in a journal.
            work: What results depend on beside the item, and the sources of ggsched; up to the
                first comma it names the journal in a folder.
            kind: Type of the results.

        Raises:
            As ``in_order``.
        """
        from ggsched_testing.journal import Journal
        from ggsched_testing.parallel import in_order

        journal: Journal[R] | None = None
        if (path := self.journal) is not None:
            if path.is_dir():
                path /= f"{work.split(',')[0].replace(' ', '-')}.jsonl"
            what = f"{work}, sources {fingerprint('ggsched_testing')}"
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
"""This process, which keeps nothing."""
