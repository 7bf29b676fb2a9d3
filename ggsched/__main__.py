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
    except Exception as error:  # of an import, which may have been interrupted
        from ggsched.cli.interruption import is_interruption

        if is_interruption(error):
            os._exit(INTERRUPTED)
        raise


if __name__ == "__main__":
    sys.exit(command())
