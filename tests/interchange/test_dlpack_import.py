"""Arrays of other libraries come over the same memory, or are refused on one line."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggsched.errors import InterchangeError, UsageError
from ggsched.interchange.dlpack_export import ExportedTensor
from ggsched.interchange.dlpack_import import host_array, host_arrays, host_weights
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32
from ggsched.scheduler import Scheduler
from tests.interchange.foreign import Both, ByDescription, ByDlpack, strided

DTYPES = st.sampled_from(["<f4", "<f2", "<i4", "u1", "<u2", "<f8", "<i8", "?"]).map(np.dtype)


@st.composite
def arrays(draw, dtypes=DTYPES):
    """Draw an array with any strides: permuted, reversed, skipping, broadcast, of no elements."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    values = draw(hnp.arrays(draw(dtypes), shape))
    if not shape or draw(st.booleans()):
        return values
    axes = draw(st.permutations(range(len(shape))))
    turned = strided(values, axes, draw(st.lists(st.booleans(), max_size=len(shape))))
    if draw(st.booleans()):
        turned = turned[draw(st.integers(0, 1)) :: draw(st.integers(1, 3))]
    return np.broadcast_to(turned, (2, *turned.shape)) if draw(st.booleans()) else turned


def is_same_memory(a, b):
    return not a.size or (a.ctypes.data, a.strides) == (b.ctypes.data, b.strides)


@given(array=arrays(), offer=st.sampled_from([ByDlpack, ByDescription, lambda a: a]))
def test_any_type_and_strides(array, offer):
    taken = host_array(offer(array))
    assert taken.dtype == array.dtype
    assert taken.shape == array.shape
    np.testing.assert_array_equal(taken, array)
    if min(array.shape, default=1) > 1:  # DLPack does not say strides of axes of one element
        assert is_same_memory(taken, array)


@given(bits=arrays(st.just(np.dtype("<u2"))))
def test_bfloat16_of_dlpack(bits):
    taken = host_array(ExportedTensor(bits, BF16))
    assert taken.dtype == np.uint16
    np.testing.assert_array_equal(taken, bits)
    if min(bits.shape, default=1) > 1:
        assert is_same_memory(taken, bits)


def test_bfloat16_of_ml_dtypes():
    array = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    taken = host_array(array)
    assert taken.tolist() == [0x3F80, 0xC020]
    assert is_same_memory(taken, array)


def test_memory_lives_as_long_as_the_array_and_no_longer():
    class Owner(np.ndarray):
        pass

    array = np.arange(6, dtype=np.float32).view(Owner)
    alive = weakref.ref(array)
    taken = host_array(ByDlpack(array))
    del array
    gc.collect()
    assert taken.tolist() == [0, 1, 2, 3, 4, 5]
    assert alive() is not None
    del taken
    gc.collect()
    assert alive() is None


def test_capsules_of_refused_tensors_are_released():
    array = np.zeros(3, np.complex64)
    before = weakref.ref(array)
    offered = Both(np.zeros(3, np.float32), None)
    offered.handed = array.__dlpack__(max_version=(1, 0))
    del array
    host_array(offered)  # complex is a type that numpy takes
    del offered
    gc.collect()
    assert before() is None


def test_old_producers_are_asked_the_old_way():
    offered = ByDlpack(np.arange(3.0), is_old=True)
    assert host_array(offered).tolist() == [0, 1, 2]
    assert offered.asked == [{}]


def test_no_stream_is_asked_of_the_host():
    offered = ByDlpack(np.arange(3.0))
    host_array(offered)
    assert all(options.get("stream") is None for options in offered.asked)


def test_read_only_arrays_are_taken():
    array = np.arange(3.0)
    array.flags.writeable = False
    for offered in (ByDlpack(array), ByDescription(array), array):
        taken = host_array(offered)
        assert taken.tolist() == [0, 1, 2]
        assert not taken.flags.writeable


def test_what_dlpack_refuses_may_be_described():
    offered = Both(np.arange(3.0), BufferError("not today"))
    assert host_array(offered).tolist() == [0, 1, 2]


class Raises:
    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        raise RuntimeError("on\nfire")


class Odd:
    @property
    def __array_interface__(self):
        return {"version": 3, "typestr": "<x9", "shape": (3,), "data": (0, True)}


class Objects:
    __array_interface__ = np.array([object()]).__array_interface__


def capsule_of(array):
    return array.__dlpack__(max_version=(1, 0))


def consumed():
    capsule = capsule_of(np.arange(3.0))
    host_array(Both(np.arange(3.0), capsule))
    offered = ByDlpack(np.arange(3.0))
    offered.array = Both(None, capsule)
    return offered


BAD = {
    "a list": ([1.0], "list is not an array"),
    "a number": (3.0, "float is not an array"),
    "nothing": (None, "NoneType is not an array"),
    "bytes": (b"1234", "bytes is not an array"),
    "on a GPU": (ByDlpack(np.arange(3.0), device=(2, 1)), r"lives on CUDA 1.*x\.cpu\(\)"),
    "somewhere": (ByDlpack(np.arange(3.0), device=(77, 0)), "lives on kind 77"),
    "on a GPU, described": (Both(np.arange(3.0), None, device=(2, 0)), "lives on CUDA 0"),
    "on no device": (ByDlpack(np.arange(3.0), device=None), "DLPack of ByDlpack fails"),
    "a producer that fails": (Raises(), "RuntimeError: on fire"),
    "no capsule": (ByDlpack(Both(None, 3)), "int is not an unused DLPack capsule"),
    "a description of nothing": (Odd(), "__array_interface__ of Odd fails"),
    "objects": (Objects(), "fails"),
    "masked": (np.ma.masked_array([1.0, 2.0], [0, 1]), "masked array"),
}


@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD)
def test_refused(value, message):
    with pytest.raises(InterchangeError, match=message) as caught:
        host_arrays({"x": value})
    assert str(caught.value).startswith("x: ")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, BufferError)


def test_a_capsule_is_taken_once():
    with pytest.raises(InterchangeError, match="not an unused DLPack capsule"):
        host_array(consumed())


def lie(**fields):
    """Return a producer whose capsule says something else than its array is."""
    import ctypes

    from ggsched.interchange.capsule import tensor_of

    array = np.arange(3, dtype=np.float32)
    capsule = capsule_of(array)
    tensor = tensor_of(capsule)
    for name, value in fields.items():
        if name == "extent":
            tensor.shape[0] = value
        else:
            setattr(tensor, name, ctypes.c_void_p(value) if name == "data" else value)
    return ByDlpack(Both(array, capsule))


LIES = [
    ({"data": None}, "without memory"),
    ({"ndim": -1}, "of -1 axes"),
    ({"ndim": 1000}, "of 1000 axes"),
    ({"extent": -3}, "of shape"),
    ({"lanes": 4}, "4 lanes"),
    ({"device_kind": 2}, "its capsule says otherwise"),
    ({"code": 9}, "fails"),
    ({"bits": 7}, "fails"),
]


@pytest.mark.parametrize(("fields", "message"), LIES, ids=lambda v: str(v))
def test_capsules_that_cannot_be_are_refused_before_numpy_looks(fields, message):
    with pytest.raises(InterchangeError, match=message):
        host_array(lie(**fields))


def test_another_version_of_dlpack():
    import ctypes

    capsule = capsule_of(np.arange(3.0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    ctypes.c_uint32.from_address(pointer(capsule, b"dltensor_versioned")).value = 7
    with pytest.raises(InterchangeError, match="DLPack version 7"):
        host_array(ByDlpack(Both(None, capsule)))


def doubled():
    g = GraphBuilder("sum")
    x, n, w = g.input("x", (2, 3)), g.input("n", (2,), dtype=I32), g.weight("w", (2, 3))
    return g.build(g.add(x, w), g.op("get_rows", w, n))


@settings(max_examples=20)
@given(offer=st.sampled_from([ByDlpack, ByDescription, lambda a: a]))
def test_a_scheduler_takes_them(offer):
    graph = doubled()
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T
    ids = np.array([1, 0], np.int32)[::-1]
    weights = {"w": offer(np.ones((2, 3), np.float32))}
    with Scheduler(["cpu:0"], weights=weights) as scheduler:
        out = scheduler.run(graph, {"x": offer(x), "n": offer(ids)})
    np.testing.assert_array_equal(out[graph.outputs[0]], x + 1)


def test_a_scheduler_refuses_and_goes_on():
    graph = doubled()
    good = {"x": np.zeros((2, 3), np.float32), "n": np.zeros(2, np.int32)}
    with Scheduler(["cpu:0"], weights={"w": np.ones((2, 3), np.float32)}) as scheduler:
        for bad in ([[0.0] * 3] * 2, ByDlpack(good["x"], device=(2, 0))):
            with pytest.raises(InterchangeError, match="^x: "):
                scheduler.run(graph, {**good, "x": bad})
        with pytest.raises(UsageError, match="float64"):
            scheduler.run(graph, {**good, "x": ByDlpack(np.zeros((2, 3)))})
        assert scheduler.run(graph, good)[graph.outputs[0]].tolist() == [[1.0] * 3] * 2


def test_weights_are_taken_when_they_are_needed():
    seen = []

    def source(name):
        seen.append(name)
        return ByDlpack(np.ones(3, np.float32))

    weights = host_weights(source)
    assert not seen
    assert weights("w").tolist() == [1, 1, 1]
    assert seen == ["w"]
    with pytest.raises(KeyError):
        host_weights({})("w")
    with pytest.raises(InterchangeError, match="^w: list"):
        host_weights({"w": [1.0]})("w")


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [
        (F16, np.array([[1, 2]], ml_dtypes.bfloat16)),
        (BF16, np.array([[1, 2]], np.float16)),
        (F32, np.array([[1, 2]], np.int32)),
        (F32, np.array([[1]], np.float64)),
    ],
)
def test_weights_of_the_right_length_and_another_type_are_refused(dtype, weight):
    g = GraphBuilder("typed")
    graph = g.build(g.mul_mat(g.weight("w", (1, 2), dtype=dtype), g.input("x", (1, 2))))
    for offered in (weight, ByDescription(weight)):
        if weight.dtype.kind == "V" and offered is not weight:
            continue  # numpy describes it as bytes without a meaning
        x = np.ones((1, 2), np.float32)
        scheduler = Scheduler(["cpu:0"], weights={"w": offered})
        with (
            scheduler,
            pytest.raises(UsageError, match=rf"given for .*declares weight {dtype}\[1, 2\]"),
        ):
            scheduler.run(graph, {"x": x})


def test_inputs_are_borrowed_until_run_returns_and_no_longer():
    g = GraphBuilder("copy")
    graph = g.build(g.scale(g.input("x", (4,)), scale=2.0))
    x = np.ones(4, np.float32)
    with Scheduler(["cpu:0"]) as scheduler:
        first = scheduler.run(graph, {"x": ByDlpack(x)})[graph.outputs[0]]
        x[:] = 5
        assert first.tolist() == [2, 2, 2, 2]
        assert scheduler.run(graph, {"x": ByDlpack(x)})[graph.outputs[0]].tolist() == [10] * 4


def test_dtype_of_f32_is_not_touched():
    array = np.arange(3, dtype=np.float32)
    assert host_array(ExportedTensor(array, F32)).dtype == np.float32
