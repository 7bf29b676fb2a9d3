"""Arrays with the bytes of a tensor in another shape or type: refused, never reinterpreted."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_0, Q8_0
from ggsched.scheduler import Scheduler
from ggsched_testing.sim import SimConfig, SimWorld

A = np.arange(12, dtype=np.float32).reshape(3, 4)


class Foreign:
    """An array of a library that offers DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class Described(Foreign):
    """An array of a library that offers ``__array_interface__`` only."""

    __dlpack__ = __dlpack_device__ = property()

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


def plus(role, shape=(3, 4), dtype=F32, name="t"):
    """Return a graph whose output is a row of an input, weight or state; all of an i32 one."""
    g = GraphBuilder(f"{role} {dtype}{list(shape)}")
    t = getattr(g, role)(name, shape, dtype)
    ids = g.input("ids", (1,), I32)
    return g.build(g.get_rows(t, ids) if dtype is not I32 else t)


def run(scheduler, graph, **inputs):
    zero = np.zeros(1, np.int32)
    found = scheduler.run(graph, {"ids": zero, **inputs} if "ids" in graph else inputs)
    return found[graph.outputs[0]]


def scheduler_with(**weights):
    return Scheduler(["cpu:0"], weights=weights, settings=Settings())


WRONG = {
    "transposed": (A.T, "float32[4, 3] given for float32[3, 4]", "transpose it: a.T"),
    "flat": (A.reshape(-1), "float32[12] given", "a.reshape([3, 4])"),
    "more axes": (A[None], "float32[1, 3, 4] given", "a.reshape([3, 4])"),
    "other rows": (A.reshape(2, 6), "float32[2, 6] given", "a.reshape([3, 4])"),
    "longer": (np.zeros((4, 4), np.float32), "float32[4, 4] given", "an array of shape [3, 4]"),
    "bytes": (A.view(np.uint8).reshape(-1), "uint8[48] given for float32[3, 4]", "a.view(np.float"),
    "rows of bytes": (A.view(np.uint8), "uint8[3, 16] given", "for quantised types only"),
    "ids": (A.view(np.int32), "int32[3, 4] given", "a.astype(np.float32)"),
    "halves": (A.view(np.float16), "float16[3, 8] given", "a.astype(np.float32)"),
    "byte order": (A.astype(">f4"), ">f4[3, 4] given", "a.astype(np.float32)"),
}
OFFERS = [lambda a: a, Foreign, Described]


@pytest.mark.parametrize("role", ["weight", "input"])
@pytest.mark.parametrize(
    ("name", "offer"),
    [(n, o) for n in WRONG for o in OFFERS if (n, o) != ("byte order", Foreign)],
)
def test_arrays_that_do_not_have_the_form_of_their_tensor(name, role, offer):
    """DLPack has no byte order; all else reaches a scheduler in every way."""
    array, what, remedy = WRONG[name]
    graph = plus(role)
    given = {"t": offer(array)}
    with scheduler_with(**given) as scheduler:
        with pytest.raises(UsageError) as caught:
            run(scheduler, graph, **(given if role == "input" else {}))
        assert str(caught.value).startswith(f"t: {what}")
        assert f"the graph declares {role} f32[3, 4]" in str(caught.value)
        assert remedy in str(caught.value)
        assert scheduler.resident_nbytes("weight") == {}


@pytest.mark.parametrize("offer", OFFERS)
def test_a_strided_weight_of_the_right_shape_is_taken(offer):
    with scheduler_with(t=offer(np.asfortranarray(A))) as scheduler:
        assert run(scheduler, plus("weight")).tolist() == [A[0].tolist()]


def test_a_function_of_weights_is_held_to_it_too():
    scheduler = Scheduler(["cpu:0"], weights=lambda name: A.T, settings=Settings())
    with scheduler, pytest.raises(UsageError, match=r"^t: float32\[4, 3\] given"):
        scheduler.prepare(plus("weight"))


def test_weights_of_every_device():
    """On devices that copy weights as on those that read host memory as it is."""
    graph = plus("weight")
    for imports in (False, True):
        world = SimWorld([SimConfig(imports_host_memory=imports)])
        scheduler = Scheduler(world.open_all(), weights={"t": A.T}, settings=Settings())
        with scheduler, pytest.raises(UsageError, match=r"^t: float32\[4, 3\] given"):
            scheduler.prepare(graph)


class TestRawBlocks:
    """Quantised types are uint8 (.., bytes of a row), and nothing else."""

    @pytest.mark.parametrize("dtype", [Q8_0, Q4_0, MXFP4])
    @pytest.mark.parametrize("role", ["weight", "input"])
    def test_taken(self, dtype, role):
        graph = plus(role, (2, 64), dtype)
        raw = np.zeros((2, dtype.row_nbytes(64)), np.uint8)
        for given in (raw, Foreign(raw), Described(raw)):
            with scheduler_with(t=given) as scheduler:
                found = run(scheduler, graph, **({"t": given} if role == "input" else {}))
            assert found.tolist() == [[0.0] * 64]

    @pytest.mark.parametrize("role", ["weight", "input"])
    def test_refused(self, role):
        graph = plus(role, (2, 64), Q8_0)
        raw = np.zeros((2, 68), np.uint8)
        wrong = [raw.reshape(-1), raw.reshape(4, 34), raw.T, raw.view(np.int8), raw.view("<f4")]
        wrong += [raw.reshape(2, 2, 34), np.zeros((2, 64), np.float32)]
        for array in wrong:
            with scheduler_with(t=array) as scheduler, pytest.raises(UsageError) as caught:
                run(scheduler, graph, **({"t": array} if role == "input" else {}))
            assert "given for uint8[2, 68]" in str(caught.value)
            assert f"declares {role} q8_0[2, 64]" in str(caught.value)

    def test_the_remedy(self):
        scheduler = scheduler_with(t=np.zeros((2, 64), np.float32))
        with scheduler, pytest.raises(UsageError, match=r"raw blocks as uint8\[2, 68\], the byte"):
            scheduler.prepare(plus("weight", (2, 64), Q8_0))


def test_bits_of_bf16_are_uint16_and_not_bytes():
    bits = np.full((3, 4), 0x3F80, np.uint16)
    graph = plus("weight", dtype=BF16)
    with scheduler_with(t=bits) as scheduler:
        assert run(scheduler, graph).tolist() == [[1.0] * 4]
    for wrong in (bits.view(np.uint8), bits.view(np.int16), bits.view(np.float16)):
        with scheduler_with(t=wrong) as scheduler, pytest.raises(UsageError) as caught:
            scheduler.prepare(graph)
        assert "given for uint16[3, 4]: the graph declares weight bf16[3, 4]" in str(caught.value)


def test_tensors_without_axes():
    g = GraphBuilder("scalar")
    graph = g.build(g.add(g.input("x", ()), g.weight("t", ())))
    two = np.array(2, np.float32)
    with scheduler_with(t=two) as scheduler:
        assert scheduler.run(graph, {"x": two})[graph.outputs[0]] == 4
    with scheduler_with(t=two[None]) as scheduler, pytest.raises(UsageError) as caught:
        scheduler.run(graph, {"x": two})
    assert str(caught.value).startswith("t: float32[1] given for float32[]")


class TestOneNameInTwoGraphs:
    """A name is one tensor in all graphs of a scheduler."""

    OTHERS = (((4, 3), F32), ((6, 2), F32), ((3, 8), F16), ((3, 8), BF16), ((3, 4), I32))

    @pytest.mark.parametrize(("shape", "dtype"), OTHERS)
    def test_weights(self, shape, dtype):
        first, second = plus("weight"), plus("weight", shape, dtype)
        with scheduler_with(t=A) as scheduler:
            run(scheduler, first)
            with pytest.raises(UsageError) as caught:
                run(scheduler, second)
            self.check(caught.value, "weight", shape, dtype)
            assert run(scheduler, first).tolist() == [A[0].tolist()]

    @pytest.mark.parametrize(("shape", "dtype"), OTHERS)
    def test_states(self, shape, dtype):
        first, second = plus("state"), plus("state", shape, dtype)
        with scheduler_with() as scheduler:
            run(scheduler, first)
            scheduler.exchange.set_state(first.named("t"), A)
            with pytest.raises(UsageError) as caught:
                run(scheduler, second)
            self.check(caught.value, "state", shape, dtype)
            assert run(scheduler, first).tolist() == [A[0].tolist()]

    def check(self, error, role, shape, dtype):
        text = str(error)
        assert text.startswith(f"t: is resident as {role} of 48 bytes on cpu:0, f32[3, 4]: ")
        assert f"this plan wants a {role} of 48 bytes on cpu:0, {dtype}{list(shape)}" in text
        assert "rename one of them, or use another scheduler" in text

    def test_after_its_weights_were_read_again(self):
        first, second = plus("weight"), plus("weight", (4, 3))
        weights = {"t": A}
        with Scheduler(["cpu:0"], weights=weights, settings=Settings()) as scheduler:
            run(scheduler, first)
            scheduler.reload_weights(["t"])
            weights["t"] = A.T
            assert run(scheduler, second).tolist() == [A.T[0].tolist()]


class TestExchange:
    """What is exported and what is set is the tensor that is resident."""

    def scheduler(self, role):
        scheduler = scheduler_with(t=A)
        scheduler.prepare(plus(role))
        return scheduler

    @pytest.mark.parametrize("role", ["weight", "state"])
    def test_export_under_another_shape_or_type(self, role):
        with self.scheduler(role) as scheduler:
            for shape, dtype in TestOneNameInTwoGraphs.OTHERS:
                with pytest.raises(UsageError) as caught:
                    scheduler.exchange.give(plus(role, shape, dtype).named("t"))
                text = str(caught.value)
                assert text.startswith("t: is resident as f32[3, 4]: requested ")
                assert f"{dtype}{list(shape)}" in text

    def test_a_state_under_another_shape(self):
        other = plus("state", (4, 3)).named("t")
        scheduler = self.scheduler("state")
        with scheduler, pytest.raises(UsageError, match=r"resident as f32\[3, 4\]"):
            scheduler.exchange.set_state(other, A.T)

    @pytest.mark.parametrize("offer", [lambda a: a, Foreign])
    def test_a_state_from_an_array_of_another_form(self, offer):
        tensor = plus("state").named("t")
        with self.scheduler("state") as scheduler:
            for array in (A.T, A.reshape(-1), A.view(np.uint8), A.view(np.int32)):
                with pytest.raises(UsageError, match=r"^t: .* declares state f32\[3, 4\]"):
                    scheduler.exchange.set_state(tensor, offer(array))
            scheduler.exchange.set_state(tensor, offer(np.asfortranarray(A)))
            assert run(scheduler, plus("state")).tolist() == [A[0].tolist()]


def test_the_case_of_the_report():
    g = GraphBuilder("linear")
    graph = g.build(g.mul_mat(g.weight("w", (3, 4)), g.input("x", (1, 4))))
    x = np.ones((1, 4), np.float32)
    with scheduler_with(w=A) as scheduler:
        found = scheduler.run(graph, {"x": x})[graph.outputs[0]]
    np.testing.assert_array_equal(found, x @ A.T)
    for wrong in (A.T, A.reshape(-1), A.view(np.uint8).reshape(-1), Foreign(A.T.copy())):
        with scheduler_with(w=wrong) as scheduler, pytest.raises(UsageError, match="^w: "):
            scheduler.run(graph, {"x": x})
