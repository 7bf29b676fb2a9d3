"""Whether a program can tell a drawn mutant from its baseline: one that is aimed at the mutant.

The program makes the mutant's condition true, calls the method, and compares what the caller sees
with what the contract says. A mutant that it cannot tell from the baseline may well be as good.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ggsched.backend.capture import offers_capture
from ggsched.backend.protocols import Stream
from ggsched.errors import SyncTimeout, UsageError
from ggsched_testing.conformance import Harness
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.rules import BrokenRule
from ggsched_testing.conformance.watchdog import Hung, guarded
from tests.mutants.mutant import TIMEOUT_S
from tests.mutants.operators import TRANSFERS, OperatorMutant

SEEDS: Final = 2
PROGRAM_S: Final = 20.0
"""A program that makes no call for so long hangs, which tells the mutant as well."""


def is_distinguished(mutant: OperatorMutant) -> bool:
    """Whether what a caller sees is not what the contract says, with any of the seeds."""
    return any(run_program(mutant, mutant.harness(), seed) is not None for seed in range(SEEDS))


def run_program(mutant: OperatorMutant, harness: Harness, seed: int) -> BaseException | None:
    """Run the program that is aimed at a mutant; return the error of what is not as it should be.

    Args:
        mutant: What the program is aimed at.
        harness: Opens the devices: the mutant, or its baseline.
        seed: Of the bytes.
    """
    worlds: list[TestContext] = []

    def work() -> None:
        w = TestContext(harness.open(2, seed), harness, "proof", seed)
        worlds.append(w)
        try:
            _Proof(w, mutant).run()
        finally:
            w.finish(failed=True)

    try:
        return guarded(work, PROGRAM_S, "proof")
    except Hung as hung:
        for w in worlds:
            w.release()
        return hung


class _Proof:
    """A program that is aimed at a mutant."""

    def __init__(self, w: TestContext, mutant: OperatorMutant) -> None:
        self.w, self.mutant = w, mutant
        trigger, bound = mutant.trigger, mutant.bound
        self.at = bound if trigger == "offset" else int(trigger == "unaligned")
        self.nbytes = bound if trigger == "size" else NBYTES + (trigger == "unaligned")
        self.before = bound if trigger in ("count", "depth", "waits") else 0
        self.room = self.at + self.nbytes + 16
        self.helper = w.stream()
        others = [w.stream() for _ in range(bound - 1)] if trigger == "stream" else []
        self.q: Stream = w.stream() if trigger == "stream" else self.helper
        if self.q is self.helper:
            self.helper = w.stream()
        self.others = others

    def run(self) -> None:
        """Raise an error if the mutant shows."""
        owner, _, name = self.mutant.method.rpartition(".")
        if owner:
            getattr(self, f"_{owner}_{name}")()
        elif name in TRANSFERS:
            self._transfer(name)
        else:
            getattr(self, f"_{name}")()

    # --- what comes before --------------------------------------------------------------------

    def _repeat(self, call: Callable[[], object]) -> None:
        """Meet a condition of a number: of calls of the method, of commands, or of waits."""
        w, q = self.w, self.q
        if self.mutant.trigger == "waits":
            event = w.record(self.helper)
            w.sync(event)
            call = lambda: w.wait(q, event)  # noqa: E731
        elif self.mutant.trigger == "depth":
            small = w.buffer(16)
            call = lambda: w.upload(q, w.bytes(16), small)  # noqa: E731
        for _ in range(self.before):
            call()
            del w.program[24:]

    def _filled(self, nbytes: int, device: Any = None) -> tuple[Any, Any]:
        """Return a buffer and its bytes."""
        w = self.w
        buffer, data = w.buffer(nbytes, device), w.bytes(nbytes)
        q = self.helper if device in (None, w.device) else w.stream(device)
        w.put(q, buffer, data)
        return buffer, data

    def _require(self, condition: bool, what: str) -> None:
        if not condition:
            raise BrokenRule(what)

    # --- transfers ----------------------------------------------------------------------------

    def _transfer(self, method: str) -> None:
        w, q, at, n = self.w, self.q, self.at, self.nbytes
        far = w.other if self.mutant.trigger == "peer" else None
        src, content = self._filled(self.room, far)
        dst, expected = self._filled(self.room)
        old = expected.copy()
        target = np.zeros(n, np.uint8)
        pattern = w.bytes(1 if at % 4 or n % 4 else 4).tobytes()
        calls: dict[str, Callable[[], None]] = {
            "upload": lambda: w.upload(q, content[at : at + n].copy(), dst, at),
            "download": lambda: w.download_to(q, src, at, target),
            "copy": lambda: w.copy(q, src, at, dst, at, n),
            "fill": lambda: w.fill(q, dst, at, n, pattern),
        }
        self._repeat(calls[method])
        if self.mutant.trigger == "count":
            w.sync(q)  # else they race with what the other stream writes
        if self.before:
            w.put(self.helper, dst, old)
        if method == "download":
            target[:] = 0
        w.wait(q, w.record(self.helper))
        hold = w.hold(q)
        calls[method]()
        if method == "download":
            w.upload(q, w.bytes(self.room), src)
        seen = w.download(q, dst, at, n)
        w.pause()
        w.equal(w.get(self.helper, dst), old, "written while the stream is held")
        self._require(not target.any(), "downloaded while the stream is held")
        hold.release()
        through = w.buffer(self.room)
        w.wait(self.helper, w.record(q))
        w.copy(self.helper, dst, 0, through, 0, self.room)
        self._compare(method, expected, pattern, content)
        w.equal(w.get(self.helper, through), expected, "behind an event")
        w.sync(q)
        w.equal(seen, expected[at : at + n], "downloaded by the next command")
        w.equal(w.get(self.helper, dst), expected, "after sync")
        if method == "download":
            w.equal(target, content[at : at + n], "downloaded")

    def _compare(self, method: str, expected: Any, pattern: bytes, content: Any) -> None:
        at, n = self.at, self.nbytes
        if method == "fill":
            expected[at : at + n] = np.frombuffer(pattern * (n // len(pattern)), np.uint8)
        elif method != "download":
            expected[at : at + n] = content[at : at + n]

    # --- other commands -----------------------------------------------------------------------

    def _launch(self) -> None:
        w, q = self.w, self.q
        buffers, numbers = w.buffers(3), w.numbers()
        for x in buffers:
            w.put(self.helper, x, numbers)
        programs = [w.compute(q, [(buffers[i], 0)], (buffers[i + 1], 0)) for i in range(2)]
        self._repeat(lambda: w.launch(q, programs[0]))
        w.sync(q) if self.mutant.trigger == "count" else None
        fresh = w.numbers()
        w.upload(q, fresh, buffers[0])
        for program in programs:
            w.order(q)
            w.launch(q, program)
        w.order(q)
        seen = w.download(q, buffers[2])
        w.wait(self.helper, w.record(q))
        early = w.download(self.helper, buffers[2])
        w.sync(self.helper)
        wanted = w.result(w.result(fresh))
        w.equal(early, wanted, "behind an event")
        w.sync(q)
        w.equal(seen, wanted, "behind launches")

    def _replay(self) -> None:
        w, q = self.w, self.q
        if not offers_capture(w.device):
            return
        x, data = self._filled(NBYTES)
        y = w.buffer()
        graph = w.captured(q, lambda: w.copy(q, x, 0, y, 0, NBYTES))
        self._repeat(lambda: w.replay(q, graph))
        w.upload(q, data[::-1].copy(), x)
        w.replay(q, graph)
        w.equal(w.get(q, y), data[::-1], "copied by a replay")

    def _wait(self) -> None:
        w, q = self.w, self.q
        x, _ = self._filled(NBYTES)
        y, data = w.buffer(), w.bytes()
        done = w.record(self.helper)
        w.sync(done)
        self._repeat(lambda: w.wait(q, done))
        hold = w.hold(self.helper)
        w.upload(self.helper, data, x)
        w.wait(q, w.record(self.helper))
        w.copy(q, x, 0, y, 0, NBYTES)
        w.not_done(q)
        hold.release()
        w.equal(w.get(q, y), data, "copied behind a wait")

    def _sync(self) -> None:
        w, q = self.w, self.q
        self._repeat(lambda: None)
        w.hold(q)
        w.upload(q, w.bytes(), w.buffer())
        w.refused(SyncTimeout, w.sync, q, TIMEOUT_S / 8)

    def _is_done(self) -> None:
        w, q = self.w, self.q
        self._repeat(lambda: None)
        w.hold(q)
        w.upload(q, w.bytes(), w.buffer())
        w.not_done(q)

    # --- events, buffers, and the device ------------------------------------------------------

    def _held_event(self, before: Callable[[Any], object]) -> Any:
        w, q = self.w, self.q
        done = w.record(q)
        w.sync(q)
        self._repeat(lambda: before(done))
        w.hold(q)
        w.upload(q, w.bytes(), w.buffer())
        return w.record(q)

    def _event_sync(self) -> None:
        event = self._held_event(lambda done: self.w.sync(done))
        self.w.refused(SyncTimeout, self.w.sync, event, TIMEOUT_S / 8)

    def _event_is_done(self) -> None:
        self.w.not_done(self._held_event(lambda done: done.is_done))

    def _device_allocate(self) -> None:
        w = self.w
        self._repeat(lambda: w.buffer(64))
        pairs = [self._filled(self.nbytes) for _ in range(3)]
        for buffer, data in pairs:
            w.equal(w.get(self.q, buffer), data, "in one of three buffers")

    def _device_create_event(self) -> None:
        w = self.w
        self._repeat(lambda: w.event())
        for _ in range(2):
            w.record(self.q)

    def _device_create_stream(self) -> None:
        w = self.w
        self._repeat(lambda: w.close(w.stream()))
        a, b = w.stream(), w.stream()
        w.hold(a)
        w.upload(a, w.bytes(), w.buffer())
        w.put(b, w.buffer(), w.bytes())

    def _device_compile(self) -> None:
        w, q = self.w, self.q
        x, y = w.buffers(2)
        self._repeat(lambda: w.compute(q, [(x, 0)], (y, 0)))
        numbers = w.numbers()
        w.put(q, x, numbers)
        w.launch(q, w.compute(q, [(x, 0)], (y, 0)))
        w.equal(w.get(q, y), w.result(numbers), "computed by a program")

    def _buffer_close(self) -> None:
        w = self.w
        self._repeat(lambda: w.close(w.buffer(64)))
        buffer = w.buffer(self.nbytes)
        w.close(buffer)
        w.refused(UsageError, w.upload, self.q, w.bytes(4), buffer)
