"""What programs call of ``torch.cuda`` works in the simulation, and gives what CUDA gives."""

import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from torch.cuda import _gpu_trace  # noqa: E402

from ggsched_race.pytorch import DispatchMode  # noqa: E402
from ggsched_race.simulation import simulated  # noqa: E402
from ggsched_race.watch import watch  # noqa: E402


@pytest.fixture
def cuda():
    with simulated() as platform, DispatchMode(platform.run):
        yield platform


ON_DEVICE = [
    "torch.zeros(3, device='cuda')",
    "torch.zeros(3, device='cuda:0')",
    "torch.zeros(3, device=0)",
    "torch.zeros(3).cuda()",
    "torch.zeros(3).cuda(0, non_blocking=True)",
    "torch.zeros(3).to('cuda')",
    "torch.zeros(3).to(0)",
    "torch.zeros(3).to(torch.device('cuda'), torch.float16)",
    "torch.zeros(3).to(device='cuda', dtype=torch.int64, non_blocking=True, copy=True)",
    "torch.zeros(3).to(torch.ones(1, device='cuda'))",
    "torch.tensor([1, 2], device='cuda')",
    "torch.tensor([1.0], device='cuda', requires_grad=True)",
    "torch.as_tensor([1, 2], device='cuda')",
    "torch.as_tensor(np.ones(3), device='cuda')",
    "torch.from_numpy(np.ones(3)).pin_memory().cuda(non_blocking=True)",
    "torch.arange(4, device='cuda').view(2, 2).t()",
    "torch.ones(2, device='cuda').new_zeros(3)",
    "torch.ones(2, device='cuda').new_tensor([1, 2])",
    "torch.empty_like(torch.ones(2, device='cuda'))",
    "torch.randn(2, device='cuda', generator=torch.Generator(device='cuda'))",
    "torch.linspace(0, 1, 3, device='cuda') + torch.tensor(1.0)",
    "torch.nn.Linear(2, 2).to('cuda').weight",
    "torch.nn.Linear(2, 2, device='cuda').cuda()(torch.ones(1, 2, device='cuda'))",
    "torch.stack([torch.ones(2, device='cuda')] * 2)[0]",
    "torch.ones(4, device='cuda')[torch.tensor([0, 1])]",
    "torch.where(torch.ones(2, device='cuda') > 0, 1.0, 0.0)",
    "torch.ones(3, device='cuda').to('cuda')",
    "torch.ones(3, device='cuda').half().float().contiguous()",
    "torch.nn.Parameter(torch.ones(3, device='cuda'))",
    "torch.ones(3, device='cuda').detach().clone()",
    "torch.empty(2, 2, device=torch.device('cuda', torch.cuda.current_device())).normal_()",
]
ON_HOST = [
    "torch.zeros(3)",
    "torch.zeros(3, device='cuda').cpu()",
    "torch.zeros(3, device='cuda').to('cpu', non_blocking=True)",
    "torch.zeros(3, device='cuda').to(torch.float64).to(torch.zeros(1))",
    "torch.zeros(3).pin_memory()",
    "torch.empty(3, pin_memory=True)",
    "torch.empty_like(torch.ones(2, device='cuda'), device='cpu', pin_memory=True)",
    "torch.tensor([1, 2], pin_memory=True)",
]


@pytest.mark.parametrize("text", ON_DEVICE)
@pytest.mark.usefixtures("cuda")
def test_tensor_is_on_the_device(text):
    tensor = eval(text)
    assert tensor.is_cuda
    assert str(tensor.device) == "cuda:0"
    assert tensor.get_device() == 0
    assert not tensor.is_pinned()


@pytest.mark.parametrize("text", ON_HOST)
@pytest.mark.usefixtures("cuda")
def test_tensor_is_on_the_host(text):
    tensor = eval(text)
    assert not tensor.is_cuda
    assert str(tensor.device) == "cpu"
    pinned = "pin" in text or "non_blocking" in text
    assert tensor.is_pinned() == pinned


@pytest.mark.usefixtures("cuda")
def test_moves_that_are_none_return_the_tensor_itself():
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    assert here.cpu() is here
    assert here.to("cpu") is here
    assert there.cuda() is there
    assert there.to("cuda") is there
    assert there.to("cuda", copy=True) is not there
    assert here.to(torch.float32) is here


@pytest.mark.usefixtures("cuda")
def test_what_cuda_refuses_is_refused():
    x = torch.ones(2, device="cuda")
    with pytest.raises(TypeError, match="Tensor.cpu"):
        x.numpy()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(graph):
        x.sum().item()
    assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.item(), lambda x: bool(x), lambda x: x.tolist(), lambda x: x.cpu(),
        lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: repr(x),
        lambda x: torch.zeros(1).copy_(x), lambda x: torch.equal(x, x), lambda x: float(x),
        lambda x: torch.cuda.current_stream().synchronize(),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("cuda")
def test_host_waits_where_it_needs_a_value(wait):
    x, waited = torch.ones(1, device="cuda"), []
    registry = _gpu_trace.StreamSynchronizationCallbacks
    registry.add_callback(waited.append)
    try:
        (x * 2).to("cpu", non_blocking=True)
        x + 1
        assert waited == []
        wait(x)
    finally:
        registry.callback_list.remove(waited.append)
    assert waited


@pytest.mark.usefixtures("cuda")
def test_streams_and_events_are_as_those_of_cuda():
    default = torch.cuda.current_stream()
    assert default == torch.cuda.default_stream()
    assert isinstance(default, torch.cuda.Stream)
    side = torch.cuda.Stream(priority=-1)
    assert side != default
    assert side.priority == -1
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == side
        with torch.cuda.stream(default):
            assert torch.cuda.current_stream() == default
    with side:
        assert torch.cuda.current_stream() == side
    torch.cuda.set_stream(side)
    torch.cuda.set_stream(default)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    last.record(side)
    last.wait(default)
    default.wait_event(first)
    last.synchronize()
    assert first.query()
    assert first.elapsed_time(last) == 0.0
    assert torch.cuda.ExternalStream(77).cuda_stream == 77
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
    with torch.cuda.stream(side):
        thread.start()
        thread.join()
    assert seen == [default]


@pytest.mark.usefixtures("cuda")
def test_facts_about_the_device_are_there():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() >= (7, 0)
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert len(torch.cuda.mem_get_info()) == 2
    torch.cuda.empty_cache()
    torch.cuda.manual_seed_all(1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")


def test_memory_goes_back_when_the_last_view_ends(cuda):
    freed = []
    registry = _gpu_trace.MemoryDeallocationCallbacks
    registry.add_callback(freed.append)
    try:
        x = torch.ones(4, device="cuda")
        address, view = x.data_ptr(), x[1:]
        assert view.data_ptr() == address + 4
        del x
        assert freed == []
        del view
        assert freed == [address]
        assert torch.ones(4, device="cuda").data_ptr() == address
        again = torch.ones(4, device="cuda")
        again.untyped_storage().resize_(0)
        assert freed[-1] == address
    finally:
        registry.callback_list.remove(freed.append)
    assert cuda.device_of(again) is None or again.untyped_storage().nbytes() == 0


def test_default_device_and_generators_and_workers_of_loaders():
    def program():
        torch.set_default_device("cuda")
        try:
            assert torch.ones(2).is_cuda
        finally:
            torch.set_default_device(None)
        data = torch.utils.data.TensorDataset(torch.arange(8.0).view(4, 2))
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, pin_memory=True)
        total = sum(batch.cuda(non_blocking=True).sum() for (batch,) in loader)
        assert total.item() == np.arange(8).sum()

    with watch("loader", simulate=True) as watched:
        program()
    assert watched.report.is_clean


def test_an_op_costs_as_many_calls_of_the_recorder_whatever_its_tensors_and_a_view_hardly_any():
    """Counted, not timed: what a foreach op of an optimizer costs decides over the slowdown."""

    def calls(op):
        count = 0

        def called(frame, event, _):
            nonlocal count
            is_own = frame.f_globals.get("__name__", "").startswith("ggsched_race")
            simulates = "simulat" in frame.f_globals.get("__name__", "")
            count += event == "call" and is_own and not simulates

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            op()
        finally:
            sys.setprofile(before)
        return count

    with watch("calls", simulate=True, raises=False):
        x, many = torch.ones(8, device="cuda"), [torch.ones(8, device="cuda") for _ in range(50)]
        ops = [lambda: x.add_(x), lambda: torch._foreach_add_(many, many), lambda: x.view(2, 4)]
        one, all_of_them, view = [(op(), calls(op))[1] for op in ops]
    assert all_of_them <= one + 5
    assert view < one / 5


@pytest.mark.parametrize("waits", [False, True])
def test_a_hook_of_a_backward_pass_uses_the_stream_that_it_chooses(waits):
    side = None

    def reduce(gradient):
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            bucket.copy_(gradient)
        gradient.record_stream(side)

    with watch("hook", simulate=True, raises=False) as watched:
        side = torch.cuda.Stream()
        bucket = torch.zeros(8, device="cuda")
        weight = torch.ones(8, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        weight.register_hook(reduce)
        (weight * 3).sum().backward()
        torch.cuda.synchronize()
    assert watched.report.is_clean == waits
