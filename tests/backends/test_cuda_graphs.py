"""Captures of the backend ``cuda`` over a driver that is not there: what is opened is closed."""

import ctypes
from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched.errors import DeviceFault, UsageError
from ggsched_cuda import driver
from ggsched_cuda.capture import driver as capturing
from ggsched_cuda.driver import CudaError
from ggsched_cuda.graphs import CudaCapture
from ggsched_cuda.pinned import SMALLEST, PinnedMemory
from ggsched_cuda.queue import CudaQueue
from ggsched_cuda.stream import CudaStream

FAILED = CudaError("a call", 999, "unknown")
WHY = "the driver refuses: topology changed"


class FakeDriver:
    """Counts graphs and executable graphs; says of an update what the test says."""

    def __init__(self):
        self.capturing = set()
        self.captured = set()
        self.executables = {}
        self.says = ""
        self.fails = set()
        self._made = 0

    def begin_capture(self, stream):
        self._may_fail("begin")
        assert stream not in self.capturing
        self.capturing.add(stream)

    def end_capture(self, stream):
        if stream not in self.capturing:
            raise FAILED
        self.capturing.remove(stream)
        self._may_fail("end")
        self._made += 1
        self.captured.add(self._made)
        return self._made

    def make_executable(self, graph):
        self.close_graph(graph)
        self._may_fail("make")
        self._made += 1
        self.executables[self._made] = graph
        return self._made, 3

    def count_nodes(self, graph):
        assert graph in self.captured
        return 5

    def update_executable(self, executable, graph):
        assert graph in self.captured
        self._may_fail("update")
        if not self.says:
            self.executables[executable] = graph
        return self.says

    def close_graph(self, graph):
        self.captured.remove(graph)

    def close_executable(self, executable):
        del self.executables[executable]

    def _may_fail(self, what):
        if what in self.fails:
            raise FAILED


class FakeMarker:
    handle = 0

    def __init__(self):
        self.done = False

    def is_done(self):
        return self.done


class FakeCard:
    def __init__(self):
        self.draining = []

    def enter(self):
        pass

    def drain_later(self, marker, finish, handle):
        self.draining.append((marker, finish))

    def sweep(self):
        for marker, finish in self.draining:
            assert marker.done
            finish()
        self.draining = []


class FakeDevice:
    def __init__(self):
        self.facts = SimpleNamespace(name="cuda:0")
        self.gpu = FakeCard()


class FakeQueue(CudaQueue):
    """A queue that has work, or none."""

    work = None

    def unfinished(self):
        return [self.work] if self.work is not None else []

    def marker(self):
        return FakeMarker()


class FakeStream(CudaStream):
    def __init__(self, device, handle):
        self.gpu = device.gpu
        queue = FakeQueue(self.gpu, handle, None, f"stream {handle}", 5.0)
        super(CudaStream, self).__init__(device, queue)


@pytest.fixture
def fake(monkeypatch):
    made = FakeDriver()
    for name in dir(FakeDriver):
        if not name.startswith("_"):
            monkeypatch.setattr(capturing, name, getattr(made, name))
    monkeypatch.setattr(driver, "enqueue_wait", lambda stream, event: None)
    return made


class Setting:
    """Two streams, and captures of both of them."""

    def __init__(self):
        self.device = FakeDevice()
        self.streams = [FakeStream(self.device, 11), FakeStream(self.device, 12)]
        self.forgotten = []

    def capture(self, kept="", streams=None):
        made = CudaCapture(self.device.gpu, streams or self.streams)
        made.captured.keeps.append(kept)
        made.captured.forgets.append(lambda: self.forgotten.append(kept))
        made.captured.words.add(kept)
        return made

    def all_free(self):
        return all(not stream.sink.is_capturing for stream in self.streams)


@pytest.fixture
def setting():
    return Setting()


def test_an_update_keeps_the_executable_and_nothing_else(fake, setting):
    graph = setting.capture("old").end()
    ((executable, _),) = fake.executables.items()
    capture = setting.capture("new")
    assert capture.end_into(graph) == ""
    assert setting.all_free()
    assert (list(fake.executables), fake.captured, fake.capturing) == ([executable], set(), set())
    assert setting.forgotten == ["old"], "no replay was enqueued"
    assert (graph.nodes, graph.words) == (5, {"new"})
    assert graph.executable_on(setting.streams[0]) == executable
    for call in (capture.end, lambda: capture.end_into(graph)):
        with pytest.raises(UsageError, match="closed"):
            call()
    capture.abort()
    assert setting.forgotten == ["old"]
    graph.close()
    graph.close()
    assert setting.forgotten == ["old", "new"]
    assert not fake.executables


def test_what_replays_need_is_kept_until_they_are_through(fake, setting):
    graph = setting.capture("old").end()
    setting.streams[0].queue.work = marker = FakeMarker()
    assert setting.capture("new").end_into(graph) == ""
    assert setting.forgotten == []
    assert [m for m, _ in setting.device.gpu.draining] == [marker]
    marker.done = True
    setting.device.gpu.sweep()
    assert setting.forgotten == ["old"]
    setting.streams[0].queue.work = None
    graph.close()
    assert setting.forgotten == ["old", "new"]


def test_a_refusal_changes_nothing_and_leaves_a_graph_to_make(fake, setting):
    graph = setting.capture("old").end()
    fake.says = WHY
    capture = setting.capture("new")
    assert capture.end_into(graph) == WHY
    assert setting.all_free()
    assert (setting.forgotten, graph.words, len(fake.captured)) == ([], {"old"}, 1)
    assert capture.end_into(graph) == WHY, "it may be asked again"
    between = setting.capture("between")
    made = capture.end()
    assert fake.capturing == {11}, "the capture that was begun meanwhile goes on"
    between.abort()
    assert (setting.forgotten, made.words, fake.captured) == (["between"], {"new"}, set())
    for each in (graph, made):
        each.close()
    assert (setting.forgotten, fake.executables) == (["between", "old", "new"], {})


def test_a_capture_is_given_up_behind_a_refusal(fake, setting):
    graph = setting.capture("old").end()
    fake.says = WHY
    capture = setting.capture("new")
    capture.end_into(graph)
    between = setting.capture("between")
    capture.abort()
    capture.abort()
    assert (setting.forgotten, fake.captured, fake.capturing) == (["new"], set(), {11})
    between.abort()
    graph.close()
    assert (fake.executables, fake.capturing) == ({}, set())


@pytest.mark.parametrize("what", ["end", "update"])
def test_a_fault_in_an_update_leaves_nothing_but_the_graph(fake, setting, what):
    graph = setting.capture("old").end()
    fake.fails = {what}
    capture = setting.capture("new")
    with pytest.raises(DeviceFault, match="updating a graph failed"):
        capture.end_into(graph)
    assert setting.all_free()
    assert (setting.forgotten, fake.captured, fake.capturing) == (["new"], set(), set())
    with pytest.raises(UsageError, match="closed"):
        capture.end()
    graph.close()
    assert (setting.forgotten, fake.executables) == (["new", "old"], {})


@pytest.mark.parametrize("what", ["begin", "end", "make"])
def test_a_fault_in_a_capture_leaves_nothing(fake, setting, what):
    fake.fails = {what}
    with pytest.raises(DeviceFault, match="a capture failed"):
        setting.capture("new").end()
    assert setting.all_free()
    assert (fake.captured, fake.capturing, fake.executables) == (set(), set(), {})
    assert setting.forgotten == ([] if what == "begin" else ["new"])


def test_a_capture_that_is_given_up_leaves_nothing(fake, setting):
    capture = setting.capture("new")
    capture.abort()
    capture.abort()
    assert setting.all_free()
    assert (fake.captured, fake.capturing, setting.forgotten) == (set(), set(), ["new"])


def test_graphs_that_cannot_be_updated_leave_the_capture_going(fake, setting):
    other = setting.capture("other", setting.streams[1:]).end()
    closed = setting.capture("closed").end()
    closed.close()
    capture = setting.capture("new")
    for graph, why in ((other, "another stream"), (closed, "closed"), (object(), "another")):
        with pytest.raises(UsageError, match=why):
            capture.end_into(graph)
        assert not setting.all_free()
    capture.end().close()
    other.close()
    assert (fake.executables, fake.captured, fake.capturing) == ({}, set(), set())


def test_memory_for_staging_goes_back_with_what_used_it(fake, setting, monkeypatch):
    page = (ctypes.c_uint8 * SMALLEST)()
    monkeypatch.setattr(driver, "take_pinned", lambda nbytes: ctypes.addressof(page))
    gpu, stream = setting.device.gpu, setting.streams[0]
    gpu.pinned, gpu.host_calls = PinnedMemory(), None
    first, block = setting.capture("first"), stream.sink.stage(64)
    graph = first.end()
    assert not gpu.pinned._idle[SMALLEST], "the graph has it"
    assert setting.capture("second").end_into(graph) == ""
    assert gpu.pinned._idle[SMALLEST] == [block]
    given_up = setting.capture("third")
    assert stream.sink.stage(64) is block
    given_up.abort()
    assert gpu.pinned._idle[SMALLEST] == [block]
    graph.close()


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [(0, 0, ""), (910, 2, WHY), (910, 1, "the driver refuses: error"), (910, 77, "77")],
)
def test_what_the_driver_says_of_an_update(monkeypatch, code, reason, said):
    def update(executable, graph, at):
        assert (executable, graph) == (7, 8)
        at._obj.reason = reason
        return code

    monkeypatch.setattr(capturing, "_update_call", lambda: update)
    found = capturing.update_executable(7, 8)
    assert found == said if reason != 77 else said in found


def test_any_other_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(capturing, "_update_call", lambda: lambda *arguments: 1)
    with pytest.raises(CudaError, match="cuGraphExecUpdate"):
        capturing.update_executable(7, 8)
