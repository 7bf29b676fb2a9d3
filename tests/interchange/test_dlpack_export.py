"""Tensors of a scheduler for other libraries: their own bytes where that can be, and in order."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggsched.errors import InterchangeError, UsageError
from ggsched.interchange.capsule import BFLOAT, tensor_of
from ggsched.interchange.dlpack_export import ExportedTensor
from ggsched.interchange.dlpack_export import given as offered
from ggsched.interchange.dlpack_import import host_array
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32
from ggsched.scheduler import Scheduler
from ggsched_testing.sim import SimConfig, SimWorld
from tests.interchange.foreign import ByDlpack

PLAIN = {F32: "<f4", F16: "<f2", I32: "<i4"}


def counting():
    """A state that grows by the weight with each run."""
    g = GraphBuilder("counting")
    s, w = g.state("s", (2, 3)), g.weight("w", (2, 3))
    total = g.add(s, w)
    g.op("cpy", total, s)
    return g.build(total)


ONES = {"w": np.ones((2, 3), np.float32)}
GRAPH = counting()
S, W = GRAPH.named("s"), GRAPH.named("w")


@pytest.fixture
def scheduler():
    with Scheduler(["cpu:0"], weights=ONES) as found:
        found.prepare(GRAPH)
        yield found


@pytest.fixture
def elsewhere():
    """A scheduler on a device whose memory is not the host's."""
    world = SimWorld([SimConfig(is_host=False)], seed=3)
    with Scheduler(world.open_all(), weights=ONES) as found:
        found.prepare(GRAPH)
        yield found
    assert not world.violations


@given(
    array=hnp.arrays(
        st.sampled_from(sorted(PLAIN.values())), hnp.array_shapes(min_dims=0, min_side=0)
    ),
    is_readonly=st.booleans(),
)
def test_round_trip_by_numpy(array, is_readonly):
    array.flags.writeable = not is_readonly
    dtype = next(d for d, kind in PLAIN.items() if array.dtype == kind)
    tensor = offered(array, dtype)
    by_dlpack, described = np.from_dlpack(tensor), np.asarray(tensor)
    for taken in (by_dlpack, described):
        assert taken.dtype == array.dtype
        np.testing.assert_array_equal(taken, array)
        assert taken.flags.writeable is not is_readonly
        if array.size:
            assert taken.ctypes.data == array.ctypes.data
    assert tensor.__dlpack_device__() == (1, 0)


def test_bfloat16_is_called_so():
    bits = np.array([0x3F80, 0xC020], np.uint16)
    tensor = tensor_of(offered(bits, BF16).__dlpack__(max_version=(1, 0)))
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (BFLOAT, 16, 1, 1)
    assert tensor.data == bits.ctypes.data
    old = tensor_of(offered(bits, BF16).__dlpack__())
    assert (old.code, old.bits) == (BFLOAT, 16)
    assert bits.dtype == np.uint16
    with pytest.raises(InterchangeError, match="bf16 has no name there.*numpy()"):
        np.asarray(offered(bits, BF16))
    floats = offered(bits, BF16).numpy().view(ml_dtypes.bfloat16)
    assert floats.astype(np.float32).tolist() == [1.0, -2.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": 1}, "has no stream"),
        ({"stream": -1}, "has no stream"),
        ({"dl_device": (2, 0)}, "not on CUDA 0"),
        ({"dl_device": (1, 1)}, "not on"),
        ({"max_version": None}, "read-only"),
        ({"max_version": (0, 8)}, "read-only"),
    ],
)
def test_what_cannot_be_promised_is_refused(scheduler, options, message):
    tensor = scheduler.exchange.give(W)
    with pytest.raises(InterchangeError, match=message) as caught:
        tensor.__dlpack__(**{"max_version": (1, 0), **options})
    assert str(caught.value).startswith("w: ")
    assert isinstance(caught.value, BufferError)


def test_an_old_consumer_of_a_weight_takes_a_copy(scheduler):
    tensor = scheduler.exchange.give(W)
    capsule = tensor.__dlpack__(copy=True)
    assert tensor_of(capsule).data != tensor.numpy().ctypes.data


def test_a_copy_on_request_is_the_consumers_own(scheduler):
    tensor = scheduler.exchange.give(W)
    copy = np.from_dlpack(tensor, copy=True)
    copy[:] = 7
    assert tensor.numpy().max() == 1
    assert not np.shares_memory(copy, tensor.numpy())


def test_weights_are_the_same_memory_and_read_only(scheduler):
    tensor = scheduler.exchange.give(W)
    assert (tensor.is_view, tensor.is_readonly, tensor.copied_nbytes) == (True, True, 0)
    assert tensor.device == "cpu:0"
    taken = np.from_dlpack(tensor, copy=False)
    assert not taken.flags.writeable
    assert taken.ctypes.data == tensor.numpy().ctypes.data
    assert "view of w f32[2, 3] on cpu:0" in repr(tensor)


def test_states_are_the_same_memory_before_and_after_a_run(scheduler):
    tensor = scheduler.exchange.give(S)
    taken = np.from_dlpack(tensor)
    assert taken.max() == 0
    for number in range(1, 4):
        scheduler.run(GRAPH, {})
        tensor.sync()
        assert taken.tolist() == [[number] * 3] * 2


def test_states_are_written_between_runs(scheduler):
    np.from_dlpack(scheduler.exchange.give(S))[:] = 40
    assert scheduler.run(GRAPH, {})[GRAPH.outputs[0]].tolist() == [[41] * 3] * 2


def test_taking_waits_for_what_was_enqueued():
    """The simulator holds everything back until somebody waits for it."""
    world = SimWorld([SimConfig(is_host=True)], seed=11)
    with Scheduler(world.open_all(), weights=ONES) as scheduler:
        scheduler.run(GRAPH, {})
        tensor = scheduler.exchange.give(S)
        for number in range(2, 6):
            scheduler.run(GRAPH, {})
            assert np.from_dlpack(tensor).tolist() == [[number] * 3] * 2
            assert np.asarray(tensor).tolist() == [[number] * 3] * 2
    assert not world.violations


def test_of_another_device_it_is_a_copy_with_its_cost(elsewhere):
    elsewhere.run(GRAPH, {})
    tensor = elsewhere.exchange.give(S)
    assert (tensor.is_view, tensor.is_readonly) == (False, True)
    assert tensor.copied_nbytes == S.nbytes == 24
    assert tensor.copy_s > 0
    taken = np.from_dlpack(tensor)
    assert taken.tolist() == [[1] * 3] * 2
    assert not taken.flags.writeable
    elsewhere.run(GRAPH, {})
    assert np.from_dlpack(tensor).max() == 1  # of when it was made
    assert np.from_dlpack(elsewhere.exchange.give(S)).max() == 2
    with pytest.raises(InterchangeError, match="is a copy of what sim:0 holds"):
        np.from_dlpack(tensor, copy=False)


@pytest.mark.parametrize("wrap", [ByDlpack, lambda a: a, lambda a: offered(a, F32)])
def test_states_come_from_other_libraries(scheduler, elsewhere, wrap):
    value = np.arange(6, dtype=np.float32).reshape(3, 2).T
    for each in (scheduler, elsewhere):
        each.run(GRAPH, {})
        each.exchange.set_state(S, wrap(value))
        assert each.run(GRAPH, {})[GRAPH.outputs[0]].tolist() == (value + 1).tolist()


def test_what_was_released_is_refused_and_what_was_taken_stays(scheduler):
    weight, state = scheduler.exchange.give(W), scheduler.exchange.give(S)
    taken = np.from_dlpack(state)
    scheduler.reload_weights(["w"])
    for use in (weight.__dlpack__, weight.numpy, lambda: weight.__array_interface__):
        with pytest.raises(InterchangeError, match="w: (was released|is read-only)"):
            use()
    scheduler.reset()
    with pytest.raises(InterchangeError, match="s: was released"):
        state.sync()
    assert taken.tolist() == [[0] * 3] * 2


def test_after_close(scheduler):
    tensor = scheduler.exchange.give(S)
    scheduler.close()
    with pytest.raises(InterchangeError, match="was released"):
        np.from_dlpack(tensor)
    with pytest.raises(UsageError, match="not resident"):
        scheduler.exchange.give(S)


def test_misuse(scheduler):
    exchange = scheduler.exchange
    with pytest.raises(UsageError, match="not a weight or state"):
        exchange.give(GRAPH.tensors[GRAPH.outputs[0]])
    with pytest.raises(UsageError, match="is a weight, not a state"):
        exchange.set_state(W, ONES["w"])
    with pytest.raises(UsageError, match=r"float64\[2, 3\] given for float32\[2, 3\]"):
        exchange.set_state(S, np.zeros((2, 3)))
    with pytest.raises(UsageError, match=r"\[3, 2\] given"):
        exchange.set_state(S, np.zeros((3, 2), np.float32))
    with pytest.raises(InterchangeError, match="s: list is not an array"):
        exchange.set_state(S, [1.0])
    other = GraphBuilder("other")
    state = other.state("s", (9,))
    with pytest.raises(UsageError, match=r"requested f32\[9\]"):
        exchange.give(state)
    with pytest.raises(InterchangeError, match="float64 given for f32"):
        offered(np.zeros(3), F32)


def test_not_resident_yet():
    with Scheduler(["cpu:0"], weights=ONES) as scheduler, pytest.raises(UsageError) as caught:
        scheduler.exchange.give(W)
    assert "prepare or run" in str(caught.value)


def test_through_the_checked_layer():
    from ggsched.config import Settings

    settings = Settings(checked=True)
    with Scheduler(["cpu:0"], weights=ONES, settings=settings) as scheduler:
        scheduler.run(GRAPH, {})
        tensor = scheduler.exchange.give(S)
        assert np.from_dlpack(tensor).max() == 1
        scheduler.exchange.set_state(S, np.full((2, 3), 5, np.float32))
        assert np.asarray(tensor).max() == 5


def test_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    bits = np.array([0x3F80, 0xC020], np.uint16)
    floats = torch.from_dlpack(ExportedTensor(bits, BF16))
    assert floats.dtype is torch.bfloat16
    assert floats.tolist() == [1.0, -2.5]
    with Scheduler(["cpu:0"], weights={"w": torch.ones(2, 3)}) as scheduler:
        scheduler.prepare(GRAPH)
        scheduler.exchange.set_state(S, torch.full((3, 2), 4.0).T)
        assert scheduler.run(GRAPH, {})[GRAPH.outputs[0]].max() == 5
        state = torch.from_dlpack(scheduler.exchange.give(S))
        assert state.tolist() == [[5.0] * 3] * 2
        with pytest.raises(InterchangeError, match="detach"):
            scheduler.exchange.set_state(S, torch.ones(2, 3, requires_grad=True))


def test_jax():
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    floats = jnp.from_dlpack(ExportedTensor(np.array([0x3F80, 0xC020], np.uint16), BF16))
    assert floats.dtype == jnp.bfloat16
    assert floats.tolist() == [1.0, -2.5]
    assert host_array(floats).tolist() == [0x3F80, 0xC020]


def test_quantised_weights_are_their_bytes():
    from ggsched.ir.dtype import Q8_0

    g = GraphBuilder("quantised")
    graph = g.build(g.mul_mat(g.weight("q", (4, 32), dtype=Q8_0), g.input("x", (1, 32))))
    packed = np.arange(4 * 34, dtype=np.uint8).reshape(4, 34)
    with Scheduler(["cpu:0"], weights={"q": packed}) as scheduler:
        scheduler.prepare(graph)
        tensor = scheduler.exchange.give(graph.named("q"))
        assert tensor.shape == (4, 34)
        np.testing.assert_array_equal(np.from_dlpack(tensor), packed)


@pytest.mark.opencl
def test_a_copy_ends_with_its_tensor_too():
    """The device is not the host: what it gave is a copy, which stays for those who took it."""
    g = GraphBuilder("copy")
    graph = g.build(g.add(g.input("x", (4,)), g.weight("w", (4,))))
    given = np.arange(4, dtype=np.float32)
    with Scheduler(["opencl:0"], weights={"w": given}) as scheduler:
        scheduler.run(graph, {"x": given})
        offered = scheduler.exchange.give(graph.named("w"))
        assert not offered.is_view
        taken = np.from_dlpack(offered)
    for take in (lambda: np.from_dlpack(offered), offered.numpy, offered.sync):
        with pytest.raises(InterchangeError, match="w: was released"):
            take()
    np.testing.assert_array_equal(taken, given)
