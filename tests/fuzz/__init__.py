"""Fuzzers of everything that reads what strangers wrote; see ``SECURITY.md``."""
