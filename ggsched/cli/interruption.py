"""Ctrl-C, however it comes, and the line that says what it left undone."""

import sys


def is_interruption(error: BaseException) -> bool:
    """Whether it was raised because of Ctrl-C: modules in C raise others in its place."""
    chain: list[BaseException] = []  # which may end in itself
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return any(isinstance(each, KeyboardInterrupt) for each in chain)


def tell_interruption(what: str) -> None:
    """Say what was interrupted, below the ``^C`` that a terminal shows."""
    from ggsched.cli.console import write_line
    from ggsched.printable import is_terminal, write_err

    if is_terminal(sys.stderr):
        write_err("\n")
    write_line(f"ggsched: interrupted: {what}")
