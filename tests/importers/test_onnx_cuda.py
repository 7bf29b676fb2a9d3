"""ONNX's own tests of its ops on a GPU, those whose ops have kernels there."""

import pytest

from ggsched.errors import DeviceFault
from tests.backends.cuda_devices import cuda_parts
from tests.importers.onnx_nodes import FEW, gather, is_new, run

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def device():
    (made,) = cuda_parts(1)
    yield made
    made.close()


def test_one_of_each_kind(device, cases):
    some = [c for c in cases if c.name in FEW]
    assert run(device, some, lambda keys, seen: True) == len(FEW)


def test_one_of_each_op(device, cases):
    assert run(device, cases, is_new) > 30


@pytest.mark.slow
def test_all_that_have_kernels(device, cases):
    assert run(device, cases, lambda keys, seen: True) > 1000


@pytest.mark.parametrize("bad", [-6, 5])
def test_an_index_out_of_range_is_a_fault(device, bad):
    with pytest.raises(DeviceFault, match="5 rows"):
        gather(device, [-5, bad])
