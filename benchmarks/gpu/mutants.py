"""Backends for CUDA that are broken on purpose: the kit has to reject each of them on the GPU."""

import ctypes
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.gpu.kit import harness
from ggsched.backend.capture import DeviceGraph
from ggsched.backend.protocols import Event, HostMemory
from ggsched_cuda import driver
from ggsched_cuda.async_errors import FaultWords
from ggsched_cuda.event import CudaEvent, Marker
from ggsched_cuda.graphs import CudaCapture, CudaGraph
from ggsched_cuda.pinned import PinnedBlock
from ggsched_cuda.program import CudaProgram
from ggsched_cuda.queue import STAGED_OFTEN, CudaQueue, Held
from ggsched_cuda.stream import CudaStream
from ggsched_testing.conformance import CaseResult, run_conformance
from tests.mutants.mutant import graft

TIMEOUT_S = 3.0
LONG_NBYTES = 8 << 20
LONGEST_S = 120.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken backend.

    Attributes:
        name: What is broken.
        rules: Rules of which one case at least has to reject it.
        mutate: Breaks an open device.
    """

    name: str
    rules: str
    mutate: Callable[[Any], None]


def hook_all(device: Any, maker: str, change: Callable[[Any], Any]) -> None:
    """Let a change be made to everything that a method of a device returns."""
    original = getattr(device, maker)
    setattr(device, maker, lambda *arguments: change(original(*arguments)))


def streams(part: type) -> Callable[[Any], None]:
    """Return what lays a class over the streams of a device."""
    return lambda device: hook_all(device, "create_stream", lambda made: graft(made, part))


def queues(part: type) -> Callable[[Any], None]:
    """Return what lays a class over the queues of a device's streams."""

    def change(made: Any) -> Any:
        graft(made.queue, part)
        return made

    return lambda device: hook_all(device, "create_stream", change)


class EventOnAnotherStream(CudaQueue):
    """Events are recorded on a stream without work."""

    def marker(self) -> Marker:
        """Record on the GPU's idle stream."""
        return Marker.behind(self.gpu, self.gpu._idle)


class BlocksReleasedEarly(CudaQueue):
    """The eighth staging block of a stream is released before its copy, and reused at once."""

    def stage(self, nbytes: int) -> PinnedBlock:
        """Put the block behind a marker at once; the copy then takes as long as a large one."""
        block = super().stage(nbytes)
        if len(self._now.blocks) >= STAGED_OFTEN:
            self.behind(self.marker())
            memory = np.empty(2 * LONG_NBYTES, np.uint8)
            at = memory.ctypes.data
            self.call(at, at + LONG_NBYTES, LONG_NBYTES, memory)
        return block

    def _release(self, held: Held) -> None:
        """Write to the blocks, as their next user does."""
        for block in held.blocks:
            ctypes.memset(block.address, 0, block.nbytes)
        super()._release(held)


class WaitIgnored(CudaStream):
    """Waits for events of CUDA do nothing."""

    def wait(self, event: Event) -> None:
        """Forget the wait."""
        if not isinstance(event, CudaEvent) or self.sink.is_capturing:
            super().wait(event)


class NothingIsKept(CudaQueue):
    """What stands behind a wait for another backend's event is enqueued at once."""

    def give(self, command: str, enqueue: Callable[[], None], *, is_timed: bool = True) -> None:
        """Enqueue a command although the backlog has others."""
        self._run(command, enqueue, self.times if is_timed else None)


class ClosingCancels(CudaStream):
    """Closing a stream drops what stands behind a wait that is not over."""

    def close(self) -> None:
        """Give up the wait."""
        self.cancel()
        super().close()


class ClosingReleases(CudaStream):
    """Closing a stream enqueues what stands behind a wait that is not over."""

    def close(self) -> None:
        """Take the wait for done."""
        queue, kept = self.backlog._work.queue, []
        while not queue.empty():
            kept.append(queue.get())
        for item in kept:
            if item is not None and item.deadline is None:
                item.run()
        super().close()


class CallerWaits(CudaStream):
    """Uploads end before the call returns."""

    def upload(self, source: HostMemory, buffer: Any, offset: int) -> None:
        """Wait for the stream."""
        super().upload(source, buffer, offset)
        if not self.sink.is_capturing:
            driver.cu.cuStreamSynchronize(self.handle)


class StagedAtTheCall(CudaStream):
    """Ordinary host memory is read while an upload is enqueued, and not in its turn."""

    def upload(self, source: HostMemory, buffer: Any, offset: int) -> None:
        """Copy the source before anything runs."""
        if not self.sink.is_capturing and source.nbytes:
            source = memoryview(bytes(source))
        super().upload(source, buffer, offset)


class ReplayForgetsIds(CudaStream):
    """Ids out of range in a replay go unnoticed."""

    def replay(self, graph: CudaGraph) -> None:
        """Forget the fault words."""
        graph.words = frozenset()
        super().replay(graph)


class UpdateIsNotMade(CudaCapture):
    """An update leaves the driver's graph as it is, with its old addresses."""

    def end_into(self, graph: DeviceGraph) -> str:
        """Forget what was captured."""
        self.abort()
        return ""


def updates_are_not_made(device: Any) -> None:
    """Let captures be of that kind."""
    hook_all(device, "begin_capture", lambda made: graft(made, UpdateIsNotMade))


class OneQueue(CudaStream):
    """A stream that leaves the driver's stream open, since it is not its own."""

    def close(self) -> None:
        """End what is the stream's own."""
        self.is_closed = True
        self.backlog.finish(lambda: None)


def one_queue(device: Any) -> None:
    """All streams of a device are one stream of the driver."""
    first: list[int] = []

    def share(made: Any) -> Any:
        first.append(made.handle)
        made.queue.handle = first[0]
        return graft(made, OneQueue)

    hook_all(device, "create_stream", share)


def shared_words(device: Any) -> None:
    """All streams of a device have the same fault words."""
    first: list[FaultWords] = []

    def share(made: Any) -> Any:
        first.append(made.queue.words)
        made.queue.words = first[0]
        return made

    hook_all(device, "create_stream", share)


class SharedScratch(CudaProgram):
    """Programs of all streams have one piece of scratch memory."""

    def _own(self, nbytes: int) -> Any:
        device: Any = self.stream.device
        if getattr(device, "scratch", None) is None:
            device.scratch = device.allocate(64 << 20)
        return device.scratch

    def close(self) -> None:
        """Leave it open."""
        self._owned = []
        super().close()


def shared_scratch(device: Any) -> None:
    """Let programs be of that kind, with kernels that end late, so that streams do meet."""
    device.early = "late"
    device.compile = lambda nodes, stream: SharedScratch(stream, nodes)


def freed_at_once(device: Any) -> None:
    """Memory is handed out again while commands use it."""
    gpu = device.gpu

    def free(address: int) -> None:
        gpu.enter()
        driver.give_memory(address, gpu._idle)

    if "free" not in vars(gpu):
        gpu.free = free


def missing_dependency(device: Any) -> None:
    """Kernels that begin early do not wait for what they need."""
    device.early = "broken"


def kernels_end_late(device: Any) -> None:
    """Kernels let their successor in and sleep before they do anything."""
    device.early = "late"


MUTANTS: Sequence[Mutant] = (
    Mutant("event on another stream", "EVT-1,EVT-2", queues(EventOnAnotherStream)),
    Mutant("wait ignored", "EVT-2", streams(WaitIgnored)),
    Mutant("nothing is kept", "EVT-4", queues(NothingIsKept)),
    Mutant("closing cancels", "ERR-3", streams(ClosingCancels)),
    Mutant("closing releases", "ERR-3", streams(ClosingReleases)),
    Mutant("staging blocks released early", "CPY-4", queues(BlocksReleasedEarly)),
    Mutant("caller waits", "STR-2", streams(CallerWaits)),
    Mutant("staged at the call", "EVT-4", streams(StagedAtTheCall)),
    Mutant("one queue for all streams", "STR-4", one_queue),
    Mutant("shared fault words", "ERR-2", shared_words),
    Mutant("replay forgets ids", "CAP-1", streams(ReplayForgetsIds)),
    Mutant("update is not made", "CAP-4", updates_are_not_made),
    Mutant("shared scratch", "LCH-5", shared_scratch),
    Mutant("missing grid dependency", "STR-1,LCH-1,LCH-3,ALL-1", missing_dependency),
    Mutant("memory freed at once", "BUF-2", freed_at_once),
)


LATE = Mutant("kernels that end late", "STR-*,LCH-*,CAP-*,ALL-1", kernels_end_late)
"""No mutant: a good device at its worst."""


def run(*, quick: bool) -> dict[str, Any]:
    """Run the kit on each mutant, and on a good device with kernels that end late.

    Each in a process of its own: a mutant may well end all work of the GPU, as CUDA does after an
    access outside of memory. Cases that failed until then count.
    """
    found: dict[str, Any] = {}
    for mutant in (*MUTANTS, LATE):
        command = [sys.executable, "-m", "benchmarks.gpu.mutants", mutant.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
            lines, ended = done.stdout.splitlines(), f"exit code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            lines, ended = bytes(error.stdout or b"").decode().splitlines(), "timeout"
        killers = [line.partition(" ")[2] for line in lines if line.startswith("failed ")]
        found[mutant.name] = {"rejected by": killers, "ended": ended}
        sys.stdout.write(f"   {mutant.name}: {len(killers)} {killers[:3]}, {ended}\n")
        sys.stdout.flush()
    survivors = [m.name for m in MUTANTS if not found[m.name]["rejected by"]]
    late = found.pop(LATE.name)
    is_good = late == {"rejected by": [], "ended": "exit code 0"}
    return {"ok": not survivors and is_good, "survivors": survivors, "mutants": found, "late": late}


def main(name: str) -> int:
    """Run the kit on one mutant; print each case that fails as it comes."""
    mutant = next(m for m in (*MUTANTS, LATE) if m.name == name)
    made = mutated(mutant.mutate)
    if mutant is LATE:
        made = replace(made, timeout_s=10.0, case_timeout_s=60.0)

    def log(result: CaseResult) -> None:
        if result.verdict == "fail":
            sys.stdout.write(f"failed {result.case.name}\n")
            sys.stdout.flush()

    run_conformance(made, rules=mutant.rules, max_examples=10, verbose=log)
    return 0


def mutated(mutate: Callable[[Any], None]) -> Any:
    """Return how the kit opens devices of the GPU that are broken."""
    good = harness()

    def opened(count: int, seed: int) -> list[Any]:
        devices = list(good.open(count, seed))
        for device in devices:
            device.event_timeout_s = TIMEOUT_S
            mutate(device)
        return devices

    return replace(good, open=opened, timeout_s=1.0, case_timeout_s=TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
