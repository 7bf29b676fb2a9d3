"""Graphs from files and frameworks of others."""
