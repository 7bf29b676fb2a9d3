"""The command ``ggsched``. One file for each subcommand; ``main.py`` is the only error boundary."""
