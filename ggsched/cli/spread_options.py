"""``--jobs``, ``--ray`` and ``--journal``: who does independent pieces of work."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ggsched.cli.console import messages
from ggsched.cli.progress import loading
from ggsched.fingerprint import fingerprint

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Spread:
    """Who does the work.

    Attributes:
        jobs: Processes of this machine.
        ray: Address of a Ray cluster, or None.
        journal: File that keeps results, or None.
    """

    jobs: int
    ray: str | None
    journal: str | None

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
        """Yield what a function returns for each item, in order; a terminal shows how far it is.

        Args:
            function: Of a module.
            items: What is pickled and sent.
            keys: A text for each item, to find its result in a journal.
            work: What results depend on beside the item, and the sources of ggsched.
            kind: Type of the results.
        """
        from ggsched.testing.journal import Journal
        from ggsched.testing.parallel import in_order

        journal: Journal[R] | None = None
        if self.journal is not None:
            what = f"{work}, sources {fingerprint()}"
            journal = Journal(Path(self.journal), work=what, keys=keys, type=kind)
        with loading(messages(), "starting") as busy:
            yield from in_order(
                function,
                items,
                jobs=self.jobs,
                ray=self.ray,
                progress=lambda there, of: busy.stage(f"{there} of {of}"),
                journal=journal,
            )


def spread_options(command: F) -> F:
    """Add the options; the command gets ``jobs``, ``ray`` and ``journal``."""
    for option in (
        click.option(
            "--journal",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Keep results in this file as they come, and go on from those that it has.",
        ),
        click.option(
            "--ray",
            metavar="ADDRESS",
            help="Run on the nodes of a Ray cluster; 'auto' is that of this machine or of "
            "RAY_ADDRESS.",
        ),
        click.option(
            "--jobs",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            metavar="N",
            help="Processes of this machine.",
        ),
    ):
        command = option(command)
    return command


def text_digest(texts: Iterable[str]) -> str:
    """Return a short hash of texts."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
