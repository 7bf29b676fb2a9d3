"""Plans written by hand, command by command, for tests of code that reads plans.

    w = PlanWriter(fake_device("gpu:0"), fake_device("gpu:1"))
    q0, q1 = w.stream(0), w.stream(1)
    x = w.host_input("x", 64)
    d = w.value(w.arena("compute", 0, 256), 0, 64, of=x)
    w.transfer(q0, x, d)
    w.launch(q0, w.node("rw", d, y))
    plan = w.plan()

Whatever is written is taken as it is: the plan may be as wrong as a test wants it.
"""

from dataclasses import replace
from typing import Any

from ggsched.plan.bundle import FORMAT, HostSlot, NodeInfo, Plan
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    Download,
    Fill,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.effects import Hazard, HazardKind, Step
from ggsched.plan.memory import Arena, ArenaKind, Memory, Region
from ggsched.plan.placement import Placement, PlacementChoice
from ggsched.plan.splits import HOST, Split, Splits, Transfer, Value, ValueKind
from ggsched.plan.streams import Streams, StreamSpec
from ggsched.topology.caps import DeviceFacts
from ggsched_testing.plan_mutants import merged

NO_HAZARD = Hazard("RAW", 0, 0, 1, -1, -1)
"""What a wait names when a test does not care."""


def fake_device(name: str = "fake:0", **facts: Any) -> DeviceFacts:
    """Return facts of a GPU that is made up; ``facts`` replace some of them."""
    usual: dict[str, Any] = {
        "backend": name.split(":")[0],
        "description": "made for a test",
        "kind": "gpu",
        "memory_nbytes": 1 << 40,
        "alignment": 16,
        "max_streams": 8,
        "copy_order": "stream",
        "has_events": True,
        "is_async": True,
        "is_deterministic": True,
        "takes_expert_ranges": True,
    }
    return DeviceFacts(name=name, **{**usual, **facts})


class PlanWriter:
    """Collects commands and the artifacts that they refer to."""

    def __init__(self, *devices: DeviceFacts) -> None:
        # Values lie where a test puts them.
        self.devices = tuple(replace(d, alignment=1) for d in devices or (fake_device(),))
        self._streams: list[StreamSpec] = []
        self._arenas: list[Arena] = []
        self._values: list[Value] = []
        self._regions: list[Region] = []
        self._storages = 0
        self._overwrites: dict[int, int] = {}
        self._nodes: list[tuple[str, tuple[Region, ...], tuple[int, ...]]] = []
        self._splits: list[tuple[int, int]] = []
        self._transfers: list[tuple[int, int, int, int, int, bytes | None]] = []
        self._commands: list[Command] = []
        self._events = 0
        self._inputs: list[HostSlot] = []
        self._outputs: list[HostSlot] = []

    # --- memory -----------------------------------------------------------------------------

    def stream(self, device: int = 0) -> int:
        """Add a stream of a device."""
        self._streams.append(StreamSpec(len(self._streams), device))
        return len(self._streams) - 1

    def arena(self, kind: ArenaKind, device: int, nbytes: int, name: str = "") -> int:
        """Add an arena."""
        number = len(self._arenas)
        self._arenas.append(Arena(number, kind, device, nbytes, 1, name))
        return number

    def value(
        self,
        arena: int,
        offset: int,
        nbytes: int,
        *,
        of: int | None = None,
        over: int | None = None,
        start: int | None = None,
    ) -> int:
        """Add a value.

        Args:
            arena: Where it lies.
            offset: First byte there.
            of: Another value of the same storage; without it the storage is new.
            over: The value whose bytes this one takes over.
            start: First byte of the storage that it holds; that of ``of`` if not given.
        """
        place = self._arenas[arena]
        kinds: dict[ArenaKind, ValueKind] = {
            "compute": "home" if of is None or self._values[of].device == HOST else "replica",
            "weight": "home",
            "state": "home",
            "input": "input",
            "output": "output",
            "staging": "staging",
        }
        if of is None:
            storage, begin = self._storages, start or 0
            self._storages += 1
        else:
            storage = self._values[of].storage
            begin = self._values[of].start if start is None else start
        number = len(self._values)
        bound = place.name if place.kind in ("weight", "state") else ""
        kind = kinds[place.kind]
        end = begin + nbytes
        self._values.append(Value(number, kind, storage, place.device, begin, end, bound))
        self._regions.append(Region(arena, offset, nbytes))
        if over is not None:
            self._overwrites[number] = over
        return number

    def host_input(self, name: str, nbytes: int) -> int:
        """Add an input with an arena of its own; the host writes it before each run."""
        value = self.value(self.arena("input", HOST, nbytes), 0, nbytes)
        self._inputs.append(HostSlot(name, self._values[value].storage, value))
        return value

    def host_output(self, name: str, nbytes: int, *, of: int | None = None) -> int:
        """Add an output with an arena of its own; the host reads it after each run."""
        value = self.value(self.arena("output", HOST, nbytes), 0, nbytes, of=of)
        self._outputs.append(HostSlot(name, self._values[value].storage, value))
        return value

    def fixed(self, kind: ArenaKind, device: int, name: str, nbytes: int) -> int:
        """Add a weight or a state that fills an arena of its own."""
        return self.value(self.arena(kind, device, nbytes, name), 0, nbytes)

    # --- commands ----------------------------------------------------------------------------

    def transfer(self, stream: int, src: int, dst: int) -> int:
        """Add an upload, a download or a copy, whichever fits; return its id."""
        a, b = self._values[src], self._values[dst]
        base = self._regions[src]
        offset = base.offset + b.start - a.start
        if a.storage != b.storage:
            offset = base.offset
        kind = Upload if a.device == HOST else Download if b.device == HOST else Copy
        number, command = len(self._transfers), len(self._commands)
        by = self._streams[stream].device
        self._transfers.append((src, dst, by, len(self._splits), stream, None))
        source = Region(base.arena, offset, b.nbytes)
        self._commands.append(kind(command, stream, source, self._regions[dst], number))
        return command

    def fill(self, stream: int, value: int, pattern: bytes = bytes(1)) -> int:
        """Add a fill of a value; return its id."""
        number, command = len(self._transfers), len(self._commands)
        by = self._streams[stream].device
        self._transfers.append((value, value, by, len(self._splits), stream, pattern))
        self._commands.append(Fill(command, stream, self._regions[value], pattern, number))
        return command

    def node(self, modes: str, *operands: int | tuple[int, int, int]) -> int:
        """Add a node on values, or on (value, first byte, one past the last) within them."""
        regions, values = [], []
        for operand in operands:
            if isinstance(operand, int):
                regions.append(self._regions[operand])
                values.append(operand)
            else:
                value, first, last = operand
                home = self._regions[value]
                regions.append(Region(home.arena, home.offset + first, last - first))
                values.append(value)
        self._nodes.append((modes, tuple(regions), tuple(values)))
        return len(self._nodes) - 1

    def launch(self, stream: int, *nodes: int) -> int:
        """Add a launch of nodes, which are a split of their own; return its id."""
        steps = tuple(Step(n, self._nodes[n][1], self._nodes[n][0]) for n in nodes)
        reads = [r for s in steps for r, m in zip(s.operands, s.modes, strict=True) if m == "r"]
        writes = [r for s in steps for r, m in zip(s.operands, s.modes, strict=True) if m in "wp"]
        command = len(self._commands)
        self._commands.append(
            Launch(command, stream, len(self._splits), steps, merged(reads), merged(writes))
        )
        self._splits.append((stream, len(nodes)))
        return command

    def record(self, stream: int) -> int:
        """Add a record of a new event; return the event."""
        event, self._events = self._events, self._events + 1
        self._commands.append(Record(len(self._commands), stream, event))
        return event

    def wait(self, stream: int, event: int, hazard: Hazard = NO_HAZARD) -> int:
        """Add a wait; return its id."""
        self._commands.append(Wait(len(self._commands), stream, event, hazard))
        return len(self._commands) - 1

    def barrier(self, stream: int, hazard: Hazard = NO_HAZARD) -> int:
        """Add a barrier; return its id."""
        self._commands.append(Barrier(len(self._commands), stream, hazard))
        return len(self._commands) - 1

    def sync(self, stream: int, event: int | None = None, hazard: Hazard = NO_HAZARD) -> int:
        """Add a wait of the host; return its id."""
        self._commands.append(HostSync(len(self._commands), stream, event, hazard))
        return len(self._commands) - 1

    def hazard(self, kind: HazardKind, value: int, earlier: int, later: int) -> Hazard:
        """Return a hazard on all bytes of a value; across runs if ``later`` comes first."""
        r = self._regions[value]
        crosses = 0 <= later <= earlier
        return Hazard(kind, r.arena, r.offset, r.end, earlier, later, crosses)

    def order(self, first: int, second: int) -> None:
        """Record an event on one stream and wait for it on another."""
        self.wait(second, self.record(first))

    # --- the plan ----------------------------------------------------------------------------

    def plan(self, name: str = "built") -> Plan:
        """Return the plan."""
        splits, at = [], 0
        for i, (stream, count) in enumerate(self._splits):
            splits.append(Split(i, self._streams[stream].device, at, at + count))
            at += count
        choices = tuple(
            PlacementChoice(s.device, "fill") for s in splits for _ in range(s.end - s.first)
        )
        homes = {v.storage: v.device for v in self._values if v.kind == "home"}
        transfers = tuple(Transfer(i, *t[:4], pattern=t[5]) for i, t in enumerate(self._transfers))
        return Plan(
            format=FORMAT,
            graph="0" * 32,
            name=name,
            topology="0" * 32,
            devices=self.devices,
            nodes=tuple(NodeInfo("op", f"node {i}") for i in range(len(self._nodes))),
            placement=Placement(choices, homes),
            splits=Splits(
                tuple(self._values), transfers, tuple(splits), tuple(n[2] for n in self._nodes)
            ),
            streams=Streams(
                tuple(self._streams),
                tuple(stream for stream, count in self._splits for _ in range(count)),
                tuple(t[4] for t in self._transfers),
            ),
            memory=Memory(tuple(self._arenas), tuple(self._regions), self._overwrites, {}),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            commands=tuple(self._commands),
        )
