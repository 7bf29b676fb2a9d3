"""Benchmarks: ratios against a peer or a limit, measured in the same run.

``make bench`` prints them all; ``python -m benchmarks planning decode`` some of them.
"""
