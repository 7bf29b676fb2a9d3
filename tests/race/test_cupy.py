"""What CuPy does, by a module that stands for it: streams, arrays, kernels, memory."""

import copy
import pickle
import re
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from ggsched_race.cupy_hooks import constant_parameters, cupy_actions  # noqa: E402
from ggsched_race.patches import Patches  # noqa: E402
from ggsched_race.watch import watch  # noqa: E402
from tests.race import fake_cupy  # noqa: E402

TWICE = "extern C __global__ void twice(const float* x, float *y, int n) { y[0] = x[0]; }"


def report_of(program, *args):
    cupy = fake_cupy.module()
    with watch("cupy", simulate=True, raises=False) as watched, Patches() as patches:
        cupy_actions(patches, watched._recorder)["cupy"](cupy)
        program(cupy, *args)
    assert watched.report.notices == (), watched.report.notices
    assert "__add__" not in vars(fake_cupy.ndarray)
    assert fake_cupy.hooks == {}
    return watched.report


def on_device(tensor):
    """Return a tensor of the simulation as an array that was handed over."""
    values = torch.Tensor.numpy(tensor.cpu())
    memory = fake_cupy.UnownedMemory(values.nbytes, tensor.data_ptr())
    return fake_cupy.ndarray(values, memory)


def two_streams(cupy):
    x, first, second = cupy.zeros(8), cupy.cuda.Stream(), cupy.cuda.Stream()
    cupy.cuda.Device().synchronize()
    return x, first, second


WAITS = {
    "none": lambda cupy, first, second: None,
    "event": lambda cupy, first, second: second.wait_event(first.record()),
    "event.record": lambda cupy, first, second: waited_by_event(cupy, first, second),
    "synchronize": lambda cupy, first, second: first.synchronize(),
    "done": lambda cupy, first, second: first.done,
    "event.synchronize": lambda cupy, first, second: first.record().synchronize(),
    "device": lambda cupy, first, second: cupy.cuda.Device().synchronize(),
    "runtime": lambda cupy, first, second: cupy.cuda.runtime.deviceSynchronize(),
    "wrong way": lambda cupy, first, second: first.wait_event(second.record()),
}


def waited_by_event(cupy, first, second):
    event = cupy.cuda.Event()
    event.record(first)
    second.wait_event(event)


@pytest.mark.parametrize("wait", WAITS)
def test_streams_are_ordered_by_their_waits(wait):
    def program(cupy):
        x, first, second = two_streams(cupy)
        with first:
            x += 1
        WAITS[wait](cupy, first, second)
        with second:
            x.fill(2)

    report = report_of(program)
    assert report.is_clean == (wait not in ("none", "wrong way")), report.to_text()


def twice(cupy, x, y):
    cupy.RawKernel(TWICE, "twice")((1,), (1,), (x, y, 8))


def twice_of_a_module(cupy, x, y):
    cupy.RawModule(code=TWICE).get_function("twice")((1,), (1,), (x, y, 8))


def copied(cupy, x, y):
    cupy.ElementwiseKernel("T x", "T y", "y = x")(x, y)


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        (lambda c, x, y: x + 1, lambda c, x, y: x + y, False),
        (lambda c, x, y: x + 1, lambda c, x, y: c.add(y, y, out=x), True),
        (lambda c, x, y: x[:4].fill(1), lambda c, x, y: x[4:].fill(1), False),
        (lambda c, x, y: x[:5].fill(1), lambda c, x, y: x[4:].fill(1), True),
        (lambda c, x, y: x[:4], lambda c, x, y: x.fill(1), False),
        (lambda c, x, y: x.__setitem__(slice(8), y), lambda c, x, y: y + 1, False),
        (lambda c, x, y: x.__setitem__(0, 1), lambda c, x, y: y.fill(x[0:1]), True),
        (lambda c, x, y: x.__setitem__(0, 1), lambda c, x, y: x.__setitem__(1, 1), False),
        (lambda c, x, y: int(x), lambda c, x, y: x + 1, False),
        (lambda c, x, y: x + y, lambda c, x, y: int(x), False),
        (twice, lambda c, x, y: x + 1, False),
        (twice, lambda c, x, y: y + 1, True),
        (twice_of_a_module, lambda c, x, y: y + 1, True),
        (copied, lambda c, x, y: x + 1, False),
        (copied, lambda c, x, y: y + 1, True),
        (lambda c, x, y: x.get(), lambda c, x, y: x.fill(1), False),
        (lambda c, x, y: x.get(blocking=False), lambda c, x, y: x.fill(1), True),
    ],
)  # fmt: skip
def test_arrays_and_kernels_touch_what_they_do(first, second, races):
    def program(cupy):
        x, one, other = two_streams(cupy)
        y = cupy.zeros(8)
        cupy.cuda.Device().synchronize()
        with one:
            first(cupy, x, y)
        with other:
            second(cupy, x, y)

    report = report_of(program)
    assert report.is_clean != races, report.to_text()


@pytest.mark.parametrize("waits", [False, True])
def test_array_that_was_handed_over_is_the_memory_of_the_tensor(waits):
    def program(cupy):
        tensor, stream = torch.ones(8, device="cuda"), cupy.cuda.Stream()
        torch.cuda.synchronize()
        x = on_device(tensor)
        with stream:
            x[2:4].fill(3)
        if waits:
            stream.synchronize()
        tensor[3:5].sum()

    report = report_of(program)
    assert report.is_clean == waits, report.to_text()


@pytest.mark.parametrize("stream_of_next", ["same", "other"])
def test_block_of_the_pool_is_given_again(stream_of_next):
    def program(cupy):
        x, first, second = two_streams(cupy)
        with first:
            x = cupy.zeros(8)
        first.synchronize()
        with second if stream_of_next == "other" else first:
            x + 1
        x.data.mem.free()
        with first:
            again = fake_cupy.ndarray(x.values, fake_cupy.PooledMemory(32, x.data.mem.ptr))
            again.fill(1)

    assert report_of(program).is_clean == (stream_of_next == "same")


@pytest.mark.parametrize("name", ["cupy", "triton.runtime.jit"])
def test_module_that_is_made_otherwise_is_named_and_left(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with watch("otherwise", simulate=True) as watched:
        pass
    assert f"{name} is not followed, or in part" in watched.report.to_text()


def test_kernels_and_functions_are_what_they_are_without_a_recorder():
    def program(cupy):
        class Own(cupy.RawKernel):
            pass

        made = cupy.RawKernel(TWICE, "twice")
        module = cupy.RawModule(code=TWICE)
        for kind in (cupy.RawKernel, fake_cupy.RawKernel):
            assert isinstance(made, kind)
            assert isinstance(module.get_function("twice"), kind)
            assert isinstance(fake_cupy.RawKernel(TWICE, "twice"), kind)
            assert isinstance(Own(TWICE, "twice"), kind)
        assert not isinstance(made, Own)
        assert isinstance(module, cupy.RawModule)
        assert isinstance(fake_cupy.Device(), cupy.cuda.Device)
        assert isinstance(cupy.add, types.FunctionType)
        assert pickle.loads(pickle.dumps(cupy.add)) is fake_cupy.add
        assert copy.deepcopy(made).name == "twice"

    report_of(program)


def test_kernel_that_outlives_the_recording_works_and_is_not_recorded():
    with watch("cupy", simulate=True) as watched, Patches() as patches:
        cupy_actions(patches, watched._recorder)["cupy"](cupy := fake_cupy.module())
        kernel, journal = cupy.ElementwiseKernel("T x", "T y", "y = x"), recorded_in(watched)
    before, x = journal.getvalue(), fake_cupy.zeros(4)
    with fake_cupy.Stream():
        assert kernel(x, x) is x
    assert journal.getvalue() == before


def recorded_in(watched):
    return watched._recorder.recording._out


def test_kernel_within_a_function_is_a_part_of_it():
    cupy, kernels = fake_cupy.module(), []
    cupy.applied = lambda x: (kernels[0](x, x), x + 1, x)[2]
    with watch("cupy", simulate=True) as watched, Patches() as patches:
        cupy_actions(patches, watched._recorder)["cupy"](cupy)
        kernels.append(cupy.ElementwiseKernel("T x", "T y", "y = x"))
        cupy.applied(x := cupy.zeros(8))
        x.fill(1)
    assert re.findall(rb'"label":"(.*?)"', watched.trace) == [b"cupy zeros", b"cupy fill"]


def test_end_is_clean_where_another_thread_has_imported_it():
    with watch("cupy", simulate=True) as watched, Patches() as patches:
        cupy_actions(patches, watched._recorder)["cupy"](fake_cupy.module())
        fake_cupy.hooks.clear()
    assert "__add__" not in vars(fake_cupy.ndarray)


def test_parameters_that_point_to_constants():
    code = "void k(const float *x, float* y, int n, T const * z, const int m) { } void other() {}"
    assert constant_parameters(code, "k") == {0, 3}
    assert constant_parameters(code, "missing") == set()
