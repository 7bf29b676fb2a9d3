"""Old names of modules that are elsewhere now: an import of one works and names the new one.

``ggsched`` puts the finder in front of Python's own, which would load a module of a moved package
again, under its old name.
"""

import importlib.abc
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "ggsched.cluster": "ggsched_cluster",
    "ggsched.importers": "ggsched_import",
    "ggsched.models": "ggsched_llm",
    "ggsched.task": "ggsched_task",
    "ggsched.testing": "ggsched_testing",
    "ggsched.oplib": "ggsched.ops.nd",
    "ggsched.oplib.tasks": "ggsched.ops.tasks",
    "ggsched.ir.shapes": "ggsched.ops.record",
    "ggsched.testing.oracle.dequant": "ggsched.backend.packed",
    "ggsched.backend.sample_nodes": "ggsched_ggml.sample_nodes",
    "ggsched.backend.patience": "ggsched.backend.progress",
    "ggsched.backend.sinks": "ggsched.backend.list_capture",
    "ggsched.backend.chosen_rows": "ggsched.backend.program",
    "ggsched.trace.text": "ggsched.trace.recorder",
    "ggsched.trace.versions": "ggsched.trace.unroll",
    "ggsched.trace.plan_account": "ggsched.trace.utilization",
    "ggsched.cli.progress": "ggsched_commands.progress",
    "ggsched.cli.report_bug": "ggsched_commands.report_bug",
    "ggsched.interchange.dot": "ggsched_commands.dot",
    "ggsched.interchange.safetensors": "ggsched_llm.safetensors_file",
    "ggsched.passes.explain": "ggsched_commands.explain",
    "ggsched.passes.machines": "ggsched_cluster.machines",
    "ggsched.plan.tensor_locations": "ggsched_commands.tensor_locations",
    "ggsched.sanitize.from_parts": "ggsched_cluster.check_parts",
    "ggsched.sanitize.live": "ggsched_race.live_races",
    "ggsched.trace.expected": "ggsched_commands.expected_trace",
    "ggsched.trace.perfetto": "ggsched_commands.perfetto",
    "ggsched.passes.shard": "ggsched_shard",
    "ggsched.passes.experts": "ggsched_offload",
    "ggsched.passes.experts.policy": "ggsched_offload.offload",
    "ggsched.calibrate.device_rates": "ggsched_calibrate.device_rates",
    "ggsched.calibrate.link_rates": "ggsched_calibrate.link_rates",
    "ggsched.calibrate.machine": "ggsched_calibrate.machine",
    "ggsched.calibrate.samples": "ggsched_calibrate.samples",
    "ggsched.calibrate.timing": "ggsched_calibrate.timing",
    "ggsched.calibrate.workload": "ggsched_calibrate.workload",
}
"""New names by old ones, of packages and of modules. A module in a package kept its name there."""


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by their old names; each is the same object as by its new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module whose package was moved."""
        new = _new_name(fullname)
        return ModuleSpec(fullname, self) if new and find_spec(new) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return an empty module, whose place the one by the new name takes."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Import the module by its new name.

        Warns:
            DeprecationWarning: with the new name.
        """
        old = module.__name__
        new = _new_name(old)
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)


def _new_name(name: str) -> str:
    """Return the new name of a module, or "" for one that was not moved."""
    for old in (name, *(".".join(name.split(".")[:n]) for n in (3, 2))):
        if old in MOVED:
            return MOVED[old] + name.removeprefix(old)
    return ""
