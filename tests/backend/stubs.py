"""Plug-ins for tests: as good or as bad as a test wants them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ggsched.backend.protocols import CONTRACT_VERSION
from ggsched.errors import BackendUnavailable
from ggsched.topology.caps import DeviceFacts
from ggsched_testing.plan_builder import fake_device

FACTS = fake_device(
    "stub:0",
    description="a stub",
    memory_nbytes=1 << 30,
    max_allocation_nbytes=1 << 28,
    alignment=64,
    max_streams=4,
    ops=frozenset({"add:f32", "mul_mat:q8_0"}),
)


def facts_of(name: str, **changes: Any) -> DeviceFacts:
    return replace(FACTS, name=name, backend=name.partition(":")[0], **changes)


class StubDevice:
    """Facts and paths; it cannot compute."""

    def __init__(
        self,
        facts: Any,
        copies: Callable[[DeviceFacts], Any] = lambda other: False,
        waits: Callable[[DeviceFacts], Any] = lambda other: "host",
    ) -> None:
        self.facts = facts
        self.copies_with = copies
        self.wait_path = waits
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def _never(self, *args: Any) -> Any:
        raise AssertionError("nothing here may compute")

    allocate = import_host = allocate_host = _never
    create_stream = create_event = compile = _never


@dataclass
class StubBackend:
    """A backend with ``count`` devices; it remembers those that it opened."""

    name: str
    count: Any = 1
    contract_version: Any = CONTRACT_VERSION
    changes: dict[str, Any] = field(default_factory=dict)
    failing: dict[int, BaseException] = field(default_factory=dict)
    opened: list[StubDevice] = field(default_factory=list)

    def device_count(self) -> Any:
        return self.count

    def open_device(self, index: int) -> StubDevice:
        if index in self.failing:
            raise self.failing[index]
        if index >= max(self.count, 1):
            raise BackendUnavailable(f"there is no device {index}", where=f"{self.name}:{index}")
        device = StubDevice(facts_of(f"{self.name}:{index}", **self.changes))
        self.opened.append(device)
        return device


@dataclass
class Point:
    """An entry point whose plug-in is already in memory."""

    name: str
    opener: Any
    loads: int = 0

    def load(self) -> Any:
        self.loads += 1
        return self.opener


def point(backend: Any, name: str = "") -> Point:
    """Return an entry point that opens this object."""
    return Point(name or backend.name, lambda: backend)


def raising(name: str, error: BaseException) -> Point:
    """Return an entry point whose function raises."""

    def opener() -> Any:
        raise error

    return Point(name, opener)
