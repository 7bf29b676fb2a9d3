"""A progress bar for loading weights, on a terminal only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from ggsched.plan.text import nbytes_text as nbytes


@contextmanager
def loading(console: Console) -> Iterator[Callable[[str, int], None] | None]:
    """Give a function to call with the name and the bytes of each weight, or None.

    What it shows vanishes when the block ends.
    """
    if not console.is_terminal:
        yield None
        return
    total = 0
    with console.status("opening devices") as status:

        def show(name: str, count: int) -> None:
            nonlocal total
            total += count
            status.update(f"loading weights: {nbytes(total)} ({name})")

        yield show
