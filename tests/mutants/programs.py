"""ALL-1: what goes wrong only after a while, or in company. Directed cases do not get there."""

from ggsched.backend.base import BaseEvent, BaseStream
from ggsched.backend.protocols import Buffer, Event
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks


@breaks("ALL-1", "A stream waits once for each other stream; later waits for it are merged.", CPU)
class OneWaitPerStream(BaseStream):
    """The second event of a stream is taken for covered by the first."""

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent) and event.is_recorded:
            seen: set[int] = self.__dict__.setdefault("seen", set())
            if id(event._progress) in seen:
                return
            seen.add(id(event._progress))
        super().wait(event)


@breaks("ALL-1", "Every third wait of a stream is lost.", CPU)
class ThirdWaitIsLost(BaseStream):
    """A slot that is written twice before it is read."""

    def wait(self, event: Event) -> None:
        count = self.__dict__["waits"] = int(self.__dict__.get("waits", 0)) + 1
        if count % 3 or not isinstance(event, BaseEvent):
            super().wait(event)


@breaks("ALL-1", "Every fourth copy of a device copies nothing.", CPU)
class FourthCopyIsLost(BaseStream):
    """A ring of descriptors that is off by one."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        kept = self.device.__dict__
        count = kept["copies"] = int(kept.get("copies", 0)) + 1
        lost = count % 4 == 0
        super().copy(src, src_offset, dst, dst_offset, 0 if lost else nbytes)
