"""Graphs of Python callables, scheduled like tensor graphs.

    g = TaskGraph("report")
    path = g.input("path")
    rows = g.add(read, path, cost=2e-3)
    left, right = g.add(count, rows), g.add(total, rows)
    with TaskRunner({"cpu": 2}) as runner:
        a, b = runner.run(g, {"path": "x.csv"}, [left, right])

Objects on edges are arbitrary. Each becomes a handle of 8 bytes in the plan, so placement by cost,
streams, waits, the checker and the timeline are those of tensor graphs.
"""

from ggsched.errors import TaskCancelled, TaskFailed
from ggsched_task.graph import TaskGraph, Value
from ggsched_task.networks import from_networkx, to_networkx
from ggsched_task.runner import TaskRunner

__all__ = [
    "TaskCancelled",
    "TaskFailed",
    "TaskGraph",
    "TaskRunner",
    "Value",
    "from_networkx",
    "to_networkx",
]
