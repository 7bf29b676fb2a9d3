"""CPY-1, CPY-2, CPY-3, CPY-6: copies that go elsewhere, or that are not copies."""

from collections.abc import Iterator

import numpy as np

from ggsched.backend import checks
from ggsched.backend.base import BaseDevice, BaseStream
from ggsched.backend.base_buffer import own_buffer, writable_memory
from ggsched.backend.protocols import Buffer, HostMemory
from ggsched.errors import UsageError
from ggsched.topology.caps import DeviceFacts
from ggsched_testing.sim import SimBuffer, SimDevice, SimStream
from ggsched_testing.sim.engine import Task
from tests.mutants.baselines import CPU, SIM, SIM_APART
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import streams_beside

# --- CPY-1 ------------------------------------------------------------------------------------


def _others(stream: BaseStream) -> Iterator[BaseStream]:
    streams = sorted(streams_beside(stream), key=lambda s: s.progress.where)
    return (s for s in streams if s is not stream and not s.is_closed)


@breaks("CPY-1", "A copy runs on another stream's queue.", CPU)
class CopyOnAnotherQueue(BaseStream):
    """The library has one stream for copies, and takes the first one that there is."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        queue = next(_others(self), self)
        BaseStream.copy(queue, src, src_offset, dst, dst_offset, nbytes)


@breaks("CPY-1", "A copy to another device runs on that device's queue.", SIM)
class PeerCopyOnTheirQueue(SimStream):
    """The other side pulls, whatever this side was to wait for."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        device = dst.device
        if device is not self.device and isinstance(device, SimDevice) and device.streams:
            SimStream.copy(device.streams[-1], src, src_offset, dst, dst_offset, nbytes)
        else:
            super().copy(src, src_offset, dst, dst_offset, nbytes)


@breaks("CPY-1", "A copy waits for everything on the device.", CPU)
class CopyWaitsForAll(BaseStream):
    """As a copy on a default stream would."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        ends = [(s.progress, s.progress.enqueued) for s in _others(self)]

        def wait() -> None:
            for progress, position in ends:
                progress.wait_for(position, self.device.event_timeout_s)

        self._submit("wait for all", wait)
        super().copy(src, src_offset, dst, dst_offset, nbytes)


@breaks("CPY-1", "A copy is made at once, past its own stream's queue.", CPU)
class CopyAtOnce(BaseStream):
    """The library has a synchronous copy only, and its streams do not know."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        self._require_usable()
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        source = src.host_view()[src_offset : src_offset + nbytes]
        self.device.write_memory(writable_memory(dst), dst_offset, source)


# --- CPY-2 ------------------------------------------------------------------------------------


@breaks("CPY-2", "Copies write whole words.", CPU)
class CopyOfWholeWords(BaseStream):
    """Up to three bytes behind the destination are written as well."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        room = min(src.nbytes - src_offset, dst.nbytes - dst_offset)
        if src is dst:
            room = min(room, abs(src_offset - dst_offset))
        more = max(nbytes, min(-(-nbytes // 4) * 4, room))
        super().copy(src, src_offset, dst, dst_offset, more)


@breaks("CPY-2", "Copies leave out what is not a whole word.", CPU)
class CopyLeavesTheRest(BaseStream):
    """The last bytes of an odd copy keep what they were."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        super().copy(src, src_offset, dst, dst_offset, nbytes // 4 * 4)


@breaks("CPY-2", "An upload uses up its source.", CPU)
class UploadUsesUpItsSource(BaseStream):
    """It turns bytes around in place on their way."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        super().upload(source, buffer, offset)
        if not source.readonly:
            self._submit("upload", lambda: _fill(source))


@breaks("CPY-2", "A download empties the buffer.", CPU)
class DownloadEmptiesTheBuffer(BaseStream):
    """It moves."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        super().download(buffer, offset, target)
        memory = own_buffer(buffer).memory
        if memory.flags.writeable:
            self._submit("download", lambda: _fill(memory[offset : offset + target.nbytes].data))


def _fill(memory: HostMemory) -> None:
    np.frombuffer(memory, np.uint8).fill(0)


# --- CPY-3 ------------------------------------------------------------------------------------


@breaks("CPY-3", "Overlapping source and destination are accepted.", CPU)
class OverlapAccepted(BaseStream):
    """What comes out depends on the direction."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        if src is not dst or src.device is not self.device:
            super().copy(src, src_offset, dst, dst_offset, nbytes)
            return
        self._require_usable()
        checks.check_region(src, src_offset, nbytes, "copy source")
        checks.check_region(dst, dst_offset, nbytes, "copy destination")
        memory = writable_memory(dst)
        source = memory[src_offset : src_offset + nbytes].data
        self._submit("copy", lambda: self.device.write_memory(memory, dst_offset, source))


@breaks("CPY-3", "Copies between neighbours are refused.", CPU)
class NeighboursRefused(BaseStream):
    """Off by one."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        if src is dst and abs(src_offset - dst_offset) <= nbytes:
            raise UsageError("source and destination overlap", where="copy")
        super().copy(src, src_offset, dst, dst_offset, nbytes)


@breaks("CPY-3", "Copies of zero bytes are refused.", CPU)
class ZeroBytesRefused(BaseStream):
    """As some drivers do."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        if nbytes == 0:
            raise UsageError("nothing to copy", where="copy")
        super().copy(src, src_offset, dst, dst_offset, nbytes)


@breaks("CPY-3", "After a command of zero bytes the stream has forgotten what came before.", SIM)
class ZeroBytesForget(SimStream):
    """The empty command's task, which is none, becomes the last one."""

    def _enqueue(self, task: Task) -> None:
        super()._enqueue(task)
        if " 0 B" in task.label:
            self.queues[0].last = None


# --- CPY-6 ------------------------------------------------------------------------------------


@breaks("CPY-6", "A copy without a path goes over the host in secret.", SIM_APART)
class StagedInSecret(SimStream):
    """Nobody planned for it, and it is ordered with nothing."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        apart = isinstance(src, SimBuffer) and isinstance(dst, SimBuffer)
        if apart and src.device is not dst.device:
            assert isinstance(src, SimBuffer)
            assert isinstance(dst, SimBuffer)
            self.sync(1.0)
            part = src.array[src_offset : src_offset + nbytes]
            dst.array[dst_offset : dst_offset + nbytes] = part
            return
        super().copy(src, src_offset, dst, dst_offset, nbytes)


@breaks("CPY-6", "A path is declared that is not there.", SIM_APART)
class DeclaredPathIsNotThere(SimDevice):
    """Every copy of a plan is refused."""

    def copies_with(self, other: DeviceFacts) -> bool:
        return other.backend == self.facts.backend


@breaks("CPY-6", "Uploads take buffers of another device.", CPU)
class ForeignBuffersTaken(BaseStream):
    """What is host memory is taken for one's own."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        if buffer.device is not self.device and isinstance(buffer.device, BaseDevice):
            memory = writable_memory(buffer)
            self._submit("upload", lambda: self.device.write_memory(memory, offset, source))
            return
        super().upload(source, buffer, offset)


@breaks("CPY-6", "Copies between two buffers of other devices are accepted.", CPU)
class CopiesForOthers(BaseStream):
    """It copies whatever it can reach."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        if self.device not in (src.device, dst.device):
            source = src.host_view()[src_offset : src_offset + nbytes]
            target = writable_memory(dst)
            self._submit("copy", lambda: self.device.write_memory(target, dst_offset, source))
            return
        super().copy(src, src_offset, dst, dst_offset, nbytes)
