"""TRU-1: capabilities that lie, in both directions."""

from collections.abc import Sequence
from dataclasses import replace

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseProgram, BaseStream
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import HostMemory, Stream
from ggsched.errors import UsageError
from ggsched_testing.sim import SimDevice, SimEvent
from tests.mutants.baselines import CPU, SIM_NO_EVENTS
from tests.mutants.mutant import breaks


@breaks("TRU-1", "Ops that are not declared are compiled, to nothing.", CPU)
class UndeclaredOpCompiles(BaseDevice):
    """The planner would have placed the node elsewhere."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        try:
            return super().compile(nodes, stream)
        except UsageError as error:
            if "does not support" not in error.what:
                raise
            return super().compile([], stream)


@breaks("TRU-1", "More streams can be had than are declared.", CPU, max_streams=2)
class MoreStreamsThanDeclared(BaseDevice):
    """The figure was a guess."""

    def create_stream(self) -> BaseStream:
        declared, self.facts = self.facts, replace(self.facts, max_streams=1000)
        try:
            return super().create_stream()
        finally:
            self.facts = declared


@breaks("TRU-1", "Fewer streams can be had than are declared.", CPU)
class FewerStreamsThanDeclared(BaseDevice):
    """The ninth one is refused."""

    def create_stream(self) -> BaseStream:
        if sum(not s.is_closed for s in self._streams) >= 8:
            raise UsageError("more than 8 streams", where=self.facts.name)
        return super().create_stream()


@breaks("TRU-1", "Importing host memory is declared, and refused.", CPU)
class DeclaredImportIsRefused(BaseDevice):
    """It was not built with it."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        raise UsageError("cannot import host memory", where=self.facts.name)


@breaks(
    "TRU-1", "Importing host memory works, and is not declared.", CPU, imports_host_memory=False
)
class UndeclaredImportWorks(BaseDevice):
    """A planner that believes the facts copies for nothing."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        declared, self.facts = self.facts, replace(self.facts, imports_host_memory=True)
        try:
            return super().import_host(memory)
        finally:
            self.facts = declared


@breaks("TRU-1", "Imported memory can be written.", CPU)
class ImportedMemoryIsWritten(BaseDevice):
    """Weights that were mapped from a file change in it."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        buffer = super().import_host(memory)
        buffer.readonly = False
        return buffer


@breaks("TRU-1", "Events work, and are not declared.", SIM_NO_EVENTS)
class UndeclaredEventsWork(SimDevice):
    """The planner lets the host wait instead."""

    def create_event(self) -> SimEvent:
        return self.make_event(self.world.next_number("events"))


@breaks("TRU-1", "Facts change while the device is used.", CPU)
class FactsChange(BaseDevice):
    """The memory that is left is declared as the memory that there is."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        buffer = super().allocate(nbytes)
        self.facts = replace(self.facts, max_allocation_nbytes=self.free_nbytes - 1)
        return buffer
