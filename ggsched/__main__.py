"""The process ``ggsched``, also as ``python -m ggsched``; imports nothing that takes time."""

import os
import sys

INTERRUPTED = 130


def command() -> int:
    """Run the command line and return the exit code; interrupted at any time it says nothing."""
    try:
        from ggsched.cli.main import main

        return main()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(command())
