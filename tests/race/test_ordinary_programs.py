"""Ordinary programs are clean: training, prefetching, offloading, graphs, several threads."""

import io
import threading

import numpy
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from benchmarks.gpu.race_programs import PROGRAMS  # noqa: E402
from ggsched_race.watch import watch  # noqa: E402


def report_of(program, **options):
    with watch(program.__name__, simulate=True, raises=False, **options) as watched:
        program()
    return watched.report


def offload_on_a_side_stream():
    """Activations go to pinned memory and come back; each block is kept until its copy is done."""
    side, kept = torch.cuda.Stream(), []
    layers = [torch.randn(8, 8, device="cuda") for _ in range(3)]
    x = torch.randn(8, 8, device="cuda")
    for w in layers:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.record_stream(side)
            saved = x.to("cpu", non_blocking=True)
        kept.append(saved)
        x = torch.relu(x @ w)
    for saved in reversed(kept):
        with torch.cuda.stream(side):
            back = saved.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        back.record_stream(torch.cuda.current_stream())
        x = x * back


def graph_of_several_streams():
    x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            doubled = x * 2
        y.add_(x)
        here.wait_stream(side)
        total = y + doubled
    for step in range(3):
        x.fill_(step)
        graph.replay()
    assert total.tolist() == [7.0] * 8


def backward_of_several_streams():
    side = torch.cuda.Stream()
    w = torch.ones(8, device="cuda", requires_grad=True)
    for _ in range(2):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = (w * 2).exp()
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        (y * 3).sum().backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
            w.grad = None


def several_threads():
    done = []

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.full((8,), float(number), device="cuda")
            done.append((x * 2).sum().item())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0.0, 16.0, 32.0]


def graphed_modules():
    """Modules whose passes are graphs, one or the other by the value of the first one's result."""
    x = torch.randn(4, 8, device="cuda")
    h = torch.randn(4, 8, device="cuda", requires_grad=True)
    first, *others = (
        torch.cuda.make_graphed_callables(torch.nn.Linear(8, 8).cuda(), (sample,))
        for sample in (x, h, h)
    )
    for _ in range(3):
        found = first(torch.rand(4, 8, device="cuda"))
        others[found.sum().item() > 0](found).sum().backward()


def recurrent_net():
    net = torch.nn.LSTM(8, 8, batch_first=True).to("cuda")
    net(torch.randn(3, 5, 8, device="cuda"))[0].sum().backward()


@pytest.mark.parametrize(
    "program",
    [
        offload_on_a_side_stream, graph_of_several_streams, backward_of_several_streams,
        several_threads, graphed_modules, recurrent_net,
    ],
    ids=lambda p: p.__name__,
)  # fmt: skip
def test_ordinary_program_is_clean(program):
    report = report_of(program)
    assert report.is_clean, report.to_text()
    assert report.records > 3


GLOO = torch.distributed.is_available() and torch.distributed.is_gloo_available()
LIBRARIES = ("triton", "cupy", *(() if GLOO else ("ddp", "fsdp2")))
SIMULATED = [name for name in PROGRAMS if name not in LIBRARIES]


@pytest.mark.parametrize("name", SIMULATED)
def test_ordinary_program_for_a_gpu_is_clean_in_the_simulation(name, monkeypatch):
    """Training, prefetching, offloading, graphs, decoding, data-parallel: as measured on a GPU."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with watch(name, simulate=True, raises=False) as watched:
        PROGRAMS[name](3)
    assert watched.report.is_clean, watched.report.to_text()
    assert watched.report.records > 50


def test_program_of_a_thread_is_recorded():
    def program():
        x = torch.ones(8, device="cuda")
        side = torch.cuda.Stream()

        def work():
            with torch.cuda.stream(side):
                x.mul_(2)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    (finding,) = report_of(program).findings
    assert [side.stream for side in finding.sides] == ["default stream", "side"]


def test_backward_runs_on_the_stream_of_its_forward():
    """Gradients of a side stream that is not waited for race with a step on the default one."""

    def program():
        side = torch.cuda.Stream()
        w = torch.ones(8, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            (w * 2).sum().backward()
        with torch.no_grad():
            w -= w.grad

    findings = report_of(program).findings
    assert {f.hazard for f in findings} >= {"RAW"}


def test_captured_work_does_not_run_until_it_is_replayed():
    def program():
        counter = torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            counter.add_(1)
        before = counter.item()
        graph.replay()
        graph.replay()
        assert (before, counter.item()) == (0.0, 2.0)

    assert report_of(program).is_clean


def test_rows_of_a_replay_are_those_of_its_ids_then():
    def program(shared):
        table = torch.zeros(8, 4, device="cuda")
        ids = torch.tensor([0, 1], device="cuda")
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            table.index_fill_(0, ids, 1.0)
        ids.copy_(torch.tensor([4, 5], device="cuda"))
        torch.cuda.synchronize()
        graph.replay()
        with torch.cuda.stream(side):
            table[5 if shared else 0].sum()

    for shared in (False, True):
        with watch("rows", simulate=True, raises=False) as watched:
            program(shared)
        assert watched.report.is_clean != shared, watched.report.to_text()


def test_writes_by_other_code_are_seen_by_the_content():
    """Through a plain array, as of before the recording; here a view that reports nothing."""

    def program(waits):
        host = torch.zeros(8).pin_memory()
        array = host.numpy().view(numpy.ndarray)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            host.to("cuda", non_blocking=True)
        if waits:
            side.synchronize()
        array[2] = 5
        torch.cuda.synchronize()

    for waits in (False, True):
        with watch("content", simulate=True, raises=False) as watched:
            program(waits)
        assert watched.report.is_clean == waits, watched.report.to_text()
        assert waits or "code outside" in watched.report.findings[0].sides[1].op


def test_record_stream_is_noted_also_where_modes_are_off():
    """FSDP calls it so."""
    from torch.utils._python_dispatch import _disable_current_modes

    def program():
        x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.sum()
        with _disable_current_modes():
            x.record_stream(side)
        del x
        torch.zeros(8, device="cuda")

    assert report_of(program).is_clean


@pytest.mark.parametrize(
    ("source", "target", "is_direct"),
    [
        (lambda p: p, lambda d: d, True),
        (lambda p: p[2:4], lambda d: d[4:6], True),
        (lambda p: p.t(), lambda d: d.t(), True),
        (lambda p: p[:, :4].contiguous().pin_memory(), lambda d: d[:, :4], True),
        (lambda p: p[:, :4], lambda d: d[:, :4], False),
        (lambda p: p.t(), lambda d: d, False),
        (lambda p: p[0], lambda d: d, False),
        (lambda p: p, lambda d: d.to(torch.float64), False),
        (lambda p: p.clone(), lambda d: d, False),
    ],
)
def test_host_may_rewrite_at_once_what_the_runtime_stages(source, target, is_direct):
    def program():
        host = torch.zeros(8, 8).pin_memory()
        torch.zeros(8, 8, device="cuda").copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        read, written = source(host), target(torch.zeros(8, 8, device="cuda"))
        written.copy_(read, non_blocking=True)
        read.add_(1)

    assert report_of(program).is_clean != is_direct


@pytest.mark.parametrize("rows", [True, False])
def test_rows_are_told_apart_only_where_ids_are_read(rows):
    def program():
        table = torch.zeros(8, 4, device="cuda")
        side = torch.cuda.Stream()
        first, second = torch.tensor([1], device="cuda"), torch.tensor([2], device="cuda")
        torch.cuda.synchronize()
        table.index_fill_(0, first, 1.0)
        with torch.cuda.stream(side):
            table.index_fill_(0, second, 1.0)

    assert report_of(program, rows=rows).is_clean == rows


@pytest.mark.parametrize("waits", [False, True])
def test_kernels_and_engines_touch_what_is_declared(waits):
    with watch("declared", simulate=True, raises=False) as watched:
        x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            watched.declare("scale", reads=[x], writes=[y])
        if waits:
            side.synchronize()
        watched.declare("send", reads=[y], engine="nic")
        if waits:
            watched.engine_done("nic")
        y.zero_()
    pairs = {tuple(side.op for side in f.sides) for f in watched.report.findings}
    racing = {("scale", "send"), ("send", "aten.zero_"), ("scale", "aten.zero_")}
    assert pairs == (set() if waits else racing)


def test_native_classes_of_cuda_are_patched_and_put_back():
    """Without a GPU: what the recorder does with a real platform, on tensors of the host."""
    from ggsched_race.pytorch import Recorder
    from ggsched_race.pytorch_hooks import recorded
    from ggsched_race.real_cuda import RealCuda
    from ggsched_race.recording import Recording

    kinds = (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph, torch.Tensor, torch.cuda)
    before = [dict(vars(kind)) for kind in kinds]
    out = io.BytesIO()
    recorder = Recorder(Recording(out, "host"), RealCuda())
    with recorded(recorder):
        net = torch.nn.Linear(4, 4)
        net(torch.ones(2, 4)).sum().backward()
        assert net.weight.grad.numpy().shape == (4, 4)
        assert "__init__" in vars(torch.cuda.Stream)
    assert [dict(vars(kind)) for kind in kinds] == before
    assert b'"notice"' not in out.getvalue()


def test_advice_names_waits_that_nobody_needs_but_not_those_of_ops():
    def program():
        side, x = torch.cuda.Stream(), torch.ones(8, device="cuda")
        for _ in range(5):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
            torch.cuda.synchronize()
            torch.cuda.current_stream().wait_stream(side)
            y.record_stream(torch.cuda.current_stream())
            assert (y + 1).sum().item() == 24

    report = report_of(program, advice=True)
    assert report.is_clean
    waits = [advice for advice in report.advice if "wait of the host" in advice.what]
    assert [(advice.times, advice.seconds is not None) for advice in waits] == [(5, True)]
    assert report_of(program).advice == ()


def test_findings_raise_unless_the_program_does():
    from ggsched.errors import RaceFound

    def program():
        x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(side):
            x.mul_(2)

    with pytest.raises(RaceFound, match="nothing orders") as raised, watch("x", simulate=True):
        program()
    assert any("wait_stream" in line for line in raised.value.details)

    def failing():
        program()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watch("x", simulate=True) as watched:
        failing()
    assert not watched.report.is_clean


def test_everything_is_as_before_after_a_recording():
    from torch.cuda import _gpu_trace

    before = [vars(torch.cuda).copy(), vars(torch.Tensor).copy(), torch.cuda.Stream]
    callbacks = len(_gpu_trace.EventRecordCallbacks.callback_list)
    assert report_of(several_threads).is_clean
    assert [vars(torch.cuda), vars(torch.Tensor), torch.cuda.Stream] == before
    assert len(_gpu_trace.EventRecordCallbacks.callback_list) == callbacks
    assert not torch.ones(1).is_cuda
