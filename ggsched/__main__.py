"""``python -m ggsched`` is the command ``ggsched``."""

import sys

from ggsched.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
