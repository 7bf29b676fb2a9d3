"""The executor: enqueue the commands of a plan in order. It decides nothing.

Every command is bound once to a call without arguments; a run is a loop over these calls. Events
are made anew for each run, because an event is recorded once (EVT-1).
"""

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import ref

import numpy as np

from ggsched.backend.fill import fill
from ggsched.backend.interrupts import is_interrupt
from ggsched.backend.plugin_calls import broken_by, name_of
from ggsched.backend.progress import doing, wait_patiently
from ggsched.backend.protocols import Event, HostMemory, Stream
from ggsched.errors import GgschedError, SyncTimeout, UsageError
from ggsched.ids import show
from ggsched.interchange.dlpack_import import check_array, wrong_array
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.plan.bundle import HostSlot, Plan
from ggsched.plan.command import (
    Barrier,
    Copy,
    CopyRows,
    Download,
    Fill,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.memory import Region
from ggsched.plan.parts import PartCommand, Receive, Send
from ggsched.run.capture import CapturedRun, captured_run, renew_run
from ggsched.run.expert_binding import ExpertBinding
from ggsched.run.following import first_at_end, first_wait_at_end, state_streams, takes_turns
from ggsched.run.host_transfers import needless_transfers
from ggsched.run.protocols import Network, Run
from ggsched.run.resources import Resources
from ggsched.run.waiting_host import run_while_waiting
from ggsched.trace.commands import ids_label
from ggsched.trace.recorder import Recorder

Call = Callable[[], None]

_LOG: Final = logging.getLogger("ggsched")


class Executor:
    """A plan bound to live devices, to be run as often as wanted. For one thread at a time.

    Attributes:
        state_streams: See ``ggsched.run.following``.
        takes_turns: See ``ggsched.run.following``.
        owes: Whether the next run waits for the end of the last.
        is_under_way: Whether a run was started that has not been finished.
        is_closed: Whether it was closed, or closing it was interrupted.
        alternate: Double buffering: the plan once more, with memory of its own, for every other
            run. It is closed with this.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        resources: Resources,
        *,
        timeout_s: float,
        recorder: Recorder | None = None,
        watch: Callable[[HostMemory], None] | None = None,
        captures: bool = False,
        network: Network | None = None,
    ) -> None:
        """Bind a plan.

        Args:
            graph: Of the plan.
            resources: Its memory, streams and programs.
            timeout_s: For waits of the host: seconds without progress.
            recorder: Writes down what the host does itself.
            watch: Told what the host reads in the middle of a run: the ids of rows.
            captures: Whether commands on devices that offer capture become graphs, from the second
                run on. Not where each of them is reported, unless the recorder takes replays.
            network: Carries what a part of a plan sends and receives.
        """
        self.plan = plan
        self._network = network
        self._graph = graph
        self._timeout_s = timeout_s
        self._events: dict[int, Event] = {}
        self._retired: list[Event] = []
        self.is_closed = False
        self._recorder, self._watch = recorder, watch
        self._calls: tuple[Call, ...] = ()
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[int, np.ndarray] = {}
        self._written: list[HostMemory] = []
        self._read: list[HostMemory] = []
        self._take(resources)
        self._numbers: Sequence[int] = range(len(self._calls))
        self.captured: CapturedRun | None = None
        if captures and watch is None and (recorder is None or recorder.replays):
            self.captured = captured_run(plan, resources, self._calls, self._events)
            self._calls, self._numbers = self.captured.calls, self.captured.numbers
        self._first_wait, self._first_at_end = first_wait_at_end(plan), first_at_end(plan)
        self.owes = self.is_under_way = False
        self._left = 0, 0  # the calls that ``finish`` makes of a run
        self.state_streams, self.takes_turns = state_streams(plan), takes_turns(plan)
        self.alternate: Run | None = None
        self._unused = {t.name: t for t in graph.roots(Role.INPUT) if t.name not in self._inputs}

    def run(self, inputs: Mapping[str, np.ndarray], *, copy: bool = True) -> dict[int, np.ndarray]:
        """Run the plan once and return the outputs by tensor id: ``start``, then ``finish``.

        Args:
            inputs: An array for each input of the graph, in its shape and of its type. Inputs
                that no node reads may be left out; names that the graph does not have are refused.
            copy: Whether outputs are copies. Else they are read-only views of the plan's own
                memory, and the next run writes there.

        Raises:
            UsageError: an input is missing, unknown, or of another shape or type.
            DeviceFault: a command failed; the message names it. The streams have been drained.
            SyncTimeout: no stream got on for too long. Work may be under way; drain the store
                before anything else.
        """
        self.start(inputs)
        return self.finish(copy=copy)

    def start(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Enqueue a run, up to where only the host's waits are left; ``finish`` has to follow.

        What stands at the end of the commands to order the next run of the plan behind this one is
        enqueued when that run begins: until then other plans may run, which need not wait for it.

        Args:
            inputs: As for ``run``.

        Raises:
            UsageError: as ``run``, or the last run has not been finished.
            DeviceFault: as ``run``. There is nothing to finish then.
            SyncTimeout: likewise.
        """
        if self.is_closed:
            raise UsageError("the plan's resources have been released", where=self.plan.name)
        if self.is_under_way:
            raise UsageError("a run has not been finished", where=self.plan.name)
        end = bisect_left(self._numbers, self._first_at_end)
        waits = bisect_left(self._numbers, self._first_wait)
        if self.owes:
            self.owes = False
            try:
                self._enqueue(end, len(self._calls))
            finally:
                self._retire_events()
        self._set_inputs(inputs)
        if self._recorder is not None:
            self._recorder.add(self._recorder.host_work("write inputs", writes=self._written))
        self._experts.run += 1
        try:
            self._left = waits, end
            self._enqueue(0, waits)
            self.is_under_way = True
        finally:
            if not self.is_under_way:
                self._retire_events()

    def finish(self, *, copy: bool = True) -> dict[int, np.ndarray]:
        """Wait for the run that was started, and return its outputs; see ``run``."""
        self.is_under_way = False
        waits, end = self._left
        try:
            self._enqueue(waits, end)
            self.owes = end < len(self._calls)
        finally:
            if not self.owes:
                self._retire_events()
        if self.captured is not None:
            self._calls = self.captured.after_run()
        outputs = {tid: a.copy() if copy else a for tid, a in self._outputs.items()}
        if self._recorder is not None:
            self._recorder.add(self._recorder.host_work("read outputs", self._read))
        return outputs

    @property
    def is_done(self) -> bool:
        """Whether the run that was started is known to have come to its end."""
        commands = self.plan.commands[self._first_wait : self._first_at_end]
        waits = [c.event for c in commands if isinstance(c, HostSync)]
        return all(e is not None and e in self._events and self._events[e].is_done for e in waits)

    def give_up(self) -> None:
        """Take note that the run that was started failed; its streams must have been drained."""
        if self.is_under_way:
            self.is_under_way = False
            self._retire_events()

    def _enqueue(self, first: int, stop: int) -> None:
        """Make some of the calls, in order; an error names the command."""
        number = first
        try:
            for number in range(first, stop):  # named in the error
                self._calls[number]()
        except GgschedError as error:
            self._experts.failed()
            self._explain(error, self._numbers[number])
            raise
        except Exception as failure:
            self._experts.failed()
            if is_interrupt(failure):
                raise
            broken = self._broken(failure, self._numbers[number])
            self._explain(broken, self._numbers[number])
            raise broken from failure

    def follow(self) -> None:
        """Let the next run come behind the last one of another plan, stream by stream.

        Streams do that by themselves (STR-1), except for commands in graphs.

        Raises:
            DeviceFault: a command of an earlier run failed. The streams have been drained.
        """
        try:
            if self.captured is not None:
                self.captured.follow()
            else:
                self._resources.store.graph_order.release(self._resources.streams)
        except GgschedError as error:
            self._drain_after(error)
            raise

    def drained(self) -> None:
        """Take note that all streams were drained: nothing is under way, and all events are done.

        Whatever an interrupted run left is gone afterwards.
        """
        self._close_events()
        self.owes = self.is_under_way = False
        if self.alternate is not None:
            self.alternate.drained()

    def rebind(self, resources: Resources) -> None:
        """Run with other memory and programs from now on; those from before are released.

        The streams must have been drained. Graphs are updated where their device can (CAP-4).

        Args:
            resources: Of the same plan.

        Raises:
            UsageError: they are another plan's, or the executor is closed. Nothing has changed.
        """
        if self.is_closed or resources.plan != self.plan:
            why = "the executor is closed" if self.is_closed else "they are another plan's"
            raise UsageError("resources cannot be handed over", where=self.plan.name, why=why)
        before = self._resources
        self.drained()
        self._take(resources)
        if self.captured is not None:
            renew_run(self.captured, self.plan, resources, self._calls)
            self._calls = self.captured.calls
        if before is not resources:
            before.close()

    def close(self) -> None:
        """Release the plan's resources; the streams must have been drained."""
        self.is_closed = True
        if self.alternate is not None:
            self.alternate.close()
            self.alternate = None
        self._close_events()
        self._inputs = {}
        self._outputs = {}
        self._written, self._read = [], []
        self._calls = ()
        if self.captured is not None:
            self.captured.close()
        self._resources.close()

    def _take(self, resources: Resources) -> None:
        """Bind every command to resources, and the slots of inputs and outputs to their memory."""
        plan, graph = self.plan, self._graph
        is_seen = self._recorder is not None or self._watch is not None
        self._resources = resources
        self._experts = ExpertBinding(plan, resources, self._note_ids if is_seen else None)
        self._calls = tuple(self._bind(c) for c in plan.commands)
        regions, places = plan.memory.regions, dict[Region, Region]()
        if self._network is None and not is_seen:
            needless = needless_transfers(plan, resources)
            places = dict(needless.values())
            calls = run_while_waiting(plan, resources, self._calls)
            self._calls = tuple(_nothing if n in needless else c for n, c in enumerate(calls))

        def array(slot: HostSlot) -> np.ndarray:
            return resources.host_array(graph, slot, places.get(regions[slot.value]))

        self._inputs = {s.name: array(s) for s in plan.inputs}
        self._outputs = {s.tensor: _readonly(array(s)) for s in plan.outputs}
        self._written, self._read = (
            [resources.host_bytes(regions[s.value]) for s in slots]
            for slots in (plan.inputs, plan.outputs)
        )

    def _close_events(self) -> None:
        for event in (*self._retired, *self._events.values()):
            event.close()
        self._retired = []
        self._events.clear()

    def _retire_events(self) -> None:
        """Close the events that are done; a stream of another backend may wait for the others."""
        if self._recorder is not None:
            with self._recorder.housekeeping():
                self._close_done()
        else:
            self._close_done()

    def _close_done(self) -> None:
        pending = []
        for event in (*self._retired, *self._events.values()):
            if event.is_done:
                event.close()
            else:
                pending.append(event)
        self._retired = pending
        self._events.clear()

    def _set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        slots = self._inputs
        for name, value in inputs.items():
            slot = slots.get(name)
            if slot is None:
                if name in self._unused:
                    check_array(value, self._unused[name])
                    continue
                raise UsageError(
                    f"no input {name!r}", where=self.plan.name, hint=f"inputs: {', '.join(slots)}"
                )
            if slot.shape != value.shape or slot.dtype != value.dtype:
                raise wrong_array(value, self._graph.named(name))
            slot[...] = value
        for name in slots:
            if name not in inputs:
                raise UsageError(f"no value for input {name!r}", where=self.plan.name)

    def _broken(self, failure: Exception, number: int) -> GgschedError:
        """Return the error for what a call on a device raised and the contract does not name."""
        command = self.plan.commands[number]
        return broken_by(name_of(self._stream(command).device), type(command).__name__, failure)

    def _explain(self, error: GgschedError, number: int) -> None:
        """Name the command, then let everything that was enqueued come to an end.

        After a timeout nobody waits again for what did not come to an end.
        """
        command = self.plan.commands[number]
        kind = type(command).__name__
        error.add_note(
            f"at {show('command', command.id)} {kind} on {show('stream', command.stream)}"
        )
        self._drain_after(error)

    def _drain_after(self, error: GgschedError) -> None:
        if isinstance(error, SyncTimeout):
            return
        for failure in self._resources.store.drain():
            if str(failure) != str(error):
                error.add_note(f"then, draining: {failure}")

    def _bind(self, command: PartCommand) -> Call:
        """Return a call that enqueues the command."""
        return _HANDLERS[type(command)](self, command)

    def _stream(self, command: PartCommand) -> Stream:
        return self._resources.streams[command.stream]

    def _upload(self, c: Upload) -> Call:
        r = self._resources
        source = r.host_bytes(c.src).toreadonly()
        enqueue = self._stream(c).upload
        call = partial(enqueue, source, r.buffers[c.dst.arena], c.dst.offset)
        return self._experts.counted(c, call)

    def _download(self, c: Download) -> Call:
        r = self._resources
        enqueue = self._stream(c).download
        return partial(enqueue, r.buffers[c.src.arena], c.src.offset, r.host_bytes(c.dst))

    def _copy(self, c: Copy) -> Call:
        buffers, (src, dst) = self._resources.buffers, (c.src, c.dst)
        ends = (buffers[src.arena], src.offset, buffers[dst.arena], dst.offset)
        return self._experts.counted(c, partial(self._stream(c).copy, *ends, src.nbytes))

    def _copy_rows(self, c: CopyRows) -> Call:
        return self._experts.bind(c)

    def _fill(self, c: Fill) -> Call:
        buffer = self._resources.buffers[c.dst.arena]
        return partial(fill, self._stream(c), buffer, c.dst.offset, c.dst.nbytes, c.pattern)

    def _launch(self, c: Launch) -> Call:
        return partial(self._stream(c).launch, self._resources.programs[c.id])

    def _barrier(self, c: Barrier) -> Call:
        return self._stream(c).barrier

    def _record(self, c: Record) -> Call:
        stream, events, number = self._stream(c), self._events, c.event
        make, enqueue = stream.device.create_event, stream.record

        def record() -> None:
            event = events[number] = make()
            enqueue(event)

        return record

    def _wait(self, c: Wait) -> Call:
        hold, events, number = self._stream(c).wait, self._events, c.event
        return lambda: hold(events[number])

    def _host_sync(self, c: HostSync) -> Call:
        events, number = self._events, c.event
        owner = ref(self)  # a call must not keep the executor, and so its memory, until gc runs

        def wait(sync: Callable[[float], None]) -> None:
            executor = owner()
            assert executor is not None  # it makes this call
            executor._await(sync)

        if number is None:
            return partial(wait, self._stream(c).sync)
        return lambda: wait(events[number].sync)

    def _send(self, c: Send) -> Call:
        source = self._resources.host_bytes(c.src).toreadonly()
        return partial(self._messages(c).send, c.machine, c.tag, source)

    def _receive(self, c: Receive) -> Call:
        target = self._resources.host_bytes(c.dst)
        return partial(self._messages(c).receive, c.machine, c.tag, target)

    def _messages(self, command: Send | Receive) -> Network:
        if self._network is None:
            raise UsageError("a part of a plan needs a network", where=command.text)
        return self._network

    def _await(self, sync: Callable[[float], None]) -> None:
        """Wait as long as anything of the run progresses."""
        try:
            wait_patiently(sync, self._progress, self._timeout_s, lasts=self._log_slow)
        except SyncTimeout as error:
            running = doing(self._resources.store.streams)
            pending = _PART.sub("", error.what)
            raise SyncTimeout(
                f"no progress for {self._timeout_s:g} s",
                where=error.where or self.plan.name,
                why="; ".join(
                    p for p in (pending, error.why, running and f"running: {running}") if p
                ),
                hint=(
                    "it does not compute: look for what it waits for, or wait longer"
                    " (GGSCHED_TIMEOUT_S)"
                    if running
                    else error.hint
                ),
                details=error.details,
            ) from error

    def _log_slow(self) -> None:
        """Name the nodes that have computed for about as long as the timeout."""
        slow = doing(self._resources.store.streams, self._timeout_s / 2)
        if slow:
            _LOG.warning("%s: still running: %s", self.plan.name, slow)

    def _progress(self) -> object:
        """Return a value that changes as the run proceeds on any device."""
        events = [event for event in self._events.values() if event.is_done]
        return len(events), self._resources.store.progress()

    def _note_ids(self, memory: HostMemory, copies: int) -> None:
        if self._watch is not None:
            self._watch(memory)
        if self._recorder is not None:
            self._recorder.add(self._recorder.host_work(ids_label(copies), [memory]))


_HANDLERS: Final[Mapping[type[PartCommand], Callable[[Executor, Any], Call]]] = {
    Upload: Executor._upload,
    Download: Executor._download,
    Copy: Executor._copy,
    CopyRows: Executor._copy_rows,
    Fill: Executor._fill,
    Launch: Executor._launch,
    Record: Executor._record,
    Wait: Executor._wait,
    Barrier: Executor._barrier,
    HostSync: Executor._host_sync,
    Send: Executor._send,
    Receive: Executor._receive,
}
"""How each command is enqueued."""


_PART: Final = re.compile(r" after [0-9.e+-]+ s")
"""A part of the timeout, which devices are given."""


def _nothing() -> None:
    """Enqueue nothing: a transfer that need not be made."""


def _readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
