"""Nodes as entries of a table that compiled kernels run; what has none is left to numpy."""

from ggsched_cpu.compiled.emitters import EMITTERS, emit_fused, emit_group
from ggsched_cpu.compiled.tasks import Task

__all__ = ["EMITTERS", "Task", "emit_fused", "emit_group"]
