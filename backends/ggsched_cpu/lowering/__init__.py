"""Nodes as entries of a table that compiled kernels run; None where there is no kernel."""

from ggsched_cpu.lowering.emitters import EMITTERS, emit_fused, emit_group
from ggsched_cpu.lowering.tasks import Task

__all__ = ["EMITTERS", "Task", "emit_fused", "emit_group"]
