"""Measures devices and links for the planner: ``ggsched calibrate``."""
