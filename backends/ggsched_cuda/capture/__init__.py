"""Captures and graphs of the driver."""
