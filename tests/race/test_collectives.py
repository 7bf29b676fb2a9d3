"""Collectives: on a stream of their own, for which ``wait()`` of their handle lets others wait."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")
dist = torch.distributed
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)

from ggsched_race.patches import Patches  # noqa: E402
from ggsched_race.simulation import SimulatedCuda  # noqa: E402
from ggsched_race.watch import watch  # noqa: E402
from tests.race import library_programs  # noqa: E402


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def report_of(program, *args):
    with watch(program.__name__, simulate=True, raises=False) as watched:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        try:
            program(*args)
        finally:
            dist.destroy_process_group()
    return watched.report


def tensors():
    return torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")


CALLS = {
    "all_reduce": (lambda x, out: dist.all_reduce(x, async_op=True), "w", ""),
    "broadcast": (lambda x, out: dist.broadcast(x, 0, async_op=True), "w", ""),
    "all_gather": (lambda x, out: dist.all_gather([out], x, async_op=True), "r", "w"),
    "gather": (lambda x, out: dist.gather(x, [out], 0, async_op=True), "r", "w"),
    "all_to_all": (lambda x, out: dist.all_to_all_single(out, x, async_op=True), "r", "w"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("use", ["read x", "write x", "read out", "write out"])
def test_tensors_of_a_collective_are_its_own_until_it_is_waited_for(name, waits, use):
    call, on_x, on_out = CALLS[name]

    def program():
        x, out = tensors()
        work = call(x, out)
        if waits:
            work.wait()
        used = x if use.endswith("x") else out
        used.sum() if use.startswith("read") else used.zero_()
        work.wait()

    mode = on_x if use.endswith("x") else on_out
    races = not waits and (mode == "w" or (mode == "r" and use.startswith("write")))
    report = report_of(program)
    assert report.is_clean != races, report.to_text()
    assert not races or "call wait() of what" in report.findings[0].mend


def reduced_copy(x):
    """Call the functional collective; its wrapper in Python would load the compiler."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(x, "sum", dist.group.WORLD.group_name))


def test_synchronous_and_functional_collectives_are_work_of_the_calling_stream():
    def program():
        x, _ = tensors()
        dist.all_reduce(x)
        y = reduced_copy(x + 1)
        assert (y * 2).sum().item() == 32
        dist.barrier()

    assert report_of(program).is_clean


@pytest.mark.parametrize("waits", [False, True])
def test_result_of_a_functional_collective_is_made_by_two_streams(waits):
    """The caller's copies, the library's works in place: seen by the waits inside the op."""
    native = SimulatedCuda.run

    def program():
        x, _ = tensors()
        library, ended = torch.cuda.Stream(), torch.cuda.Event()

        def run(self, func, args, kwargs):
            if func is not torch.ops._c10d_functional.all_reduce.default:
                return native(self, func, args, kwargs)
            library.wait_stream(torch.cuda.current_stream())
            result = native(self, func, args, kwargs)
            ended.record(library)
            return result

        with Patches() as patches:
            patches.set(SimulatedCuda, "run", run)
            y = reduced_copy(x)
        x.zero_()
        if waits:
            torch.cuda.current_stream().wait_event(ended)
        y.sum()

    assert [f.hazard for f in report_of(program).findings] == ([] if waits else ["RAW"])


@pytest.mark.parametrize("program", library_programs.SIMULATED, ids=lambda p: p.__name__)
@pytest.mark.parametrize("mended", [False, True], ids=["broken", "mended"])
def test_verdict_on_programs_for_a_gpu_is_right_in_the_simulation(program, mended):
    report = library_programs.report_of(program, mended, simulate=True)
    assert report.is_clean == mended, report.to_text()
