"""Pins by name or pattern; another policy places the rest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec

from ggsched.errors import UsageError
from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.place import PlacementPolicy, PlacementProblem
from ggsched.passes.placement.ggml import GgmlRules
from ggsched.plan.placement import Placement, PlacementChoice
from ggsched.topology.model import Topology

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Pinned:
    """Nodes, weights, states and inputs that match a pattern are on a device.

    Constraints of the caller win over patterns. A pattern that matches nothing has no effect,
    because one policy serves all graphs of a scheduler.

    Attributes:
        pins: Name of a device, or its index, by pattern; the first pattern that matches a name
            counts. A pattern is matched as a whole, with ``*``, ``?`` and ``[...]`` as in a shell,
            against names of weights, states and inputs, names of nodes, and ids such as ``n12``.
        base: Places what is not pinned.
    """

    pins: Mapping[str, str | int]
    base: PlacementPolicy = field(default_factory=GgmlRules)

    @property
    def key(self) -> str:
        """See ``PlacementPolicy``."""
        return f"pinned({list(self.pins.items())}, {self.base.key})"

    def place(self, problem: PlacementProblem) -> Placement:
        """See ``PlacementPolicy``.

        Raises:
            UsageError: a device that is not in the topology.
        """
        graph, given = problem.graph, problem.constraints
        devices = {p: _device_index(d, p, problem.topology) for p, d in self.pins.items()}
        tensors = dict(self._matching(_named_tensors(graph)))
        nodes = {i: p for i, p in self._matching(_named_nodes(graph)) if i not in given.pins}
        wanted = replace(
            given,
            homes={**{name: devices[p] for name, p in tensors.items()}, **given.homes},
            pins={**{i: devices[p] for i, p in nodes.items()}, **given.pins},
        )
        found = self.base.place(replace(problem, constraints=wanted))
        choices = list(found.choices)
        for i, pattern in nodes.items():
            choices[i] = PlacementChoice(choices[i].device, "pin", f"by {pattern!r}")
        return msgspec.structs.replace(found, choices=tuple(choices))

    def _matching(self, named: Iterator[tuple[K, tuple[str, ...]]]) -> Iterator[tuple[K, str]]:
        """Yield each thing that a pattern matches, with the first pattern that does."""
        for thing, names in named:
            for pattern in self.pins:
                if any(fnmatchcase(name, pattern) for name in names):
                    yield thing, pattern
                    break


def _named_tensors(graph: Graph) -> Iterator[tuple[str, tuple[str, ...]]]:
    for t in graph.tensors:
        if t.name and not t.is_view and t.role is not Role.TEMP:
            yield t.name, (t.name,)


def _named_nodes(graph: Graph) -> Iterator[tuple[int, tuple[str, ...]]]:
    for node in graph.nodes:
        yield node.id, tuple(filter(None, (node.name, show("node", node.id))))


def _device_index(device: str | int, pattern: str, topology: Topology) -> int:
    names = [facts.name for facts in topology.devices]
    if device in names:
        return names.index(str(device))
    if isinstance(device, int) and 0 <= device < len(names):
        return device
    raise UsageError(
        f"{pattern!r} is pinned to {device!r}, which is not a device in use",
        where="placement",
        hint=f"devices: {', '.join(names)}",
    )
