"""ggsched beside what a user would take instead: ``make bench-peers``.

``python -m benchmarks.peers tasks memory`` runs two suites. A peer that is not installed is named
with the reason, and its rows are left out. All peers that can be had stand in the extra ``peers``.
"""
