"""Doing it: buffers and streams for a plan, and an executor that decides nothing."""
