"""Subcommands of ``ggsched`` that concern applications, one per module."""
