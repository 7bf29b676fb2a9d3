"""Calibration: measures what the cost model guesses, and keeps it in a file."""
