"""The plug-in ``ggml``: what is known of a library, and how nodes become nodes of ggml."""

import ctypes
import re
import threading
from functools import partial

import numpy as np
import pytest

from ggsched.backend.base_issuing import HostWrites, Worker
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.backend.progress import Progress
from ggsched.backend.registry import discover, open_devices
from ggsched.errors import BackendUnavailable, UsageError
from ggsched.ir.dtype import F16, F32, I32, dtype_by_name
from ggsched.ir.ops import BUILT_IN
from ggsched.ir.tensor import contiguous_strides, span_nbytes
from ggsched_ggml import backend, driver
from ggsched_ggml.device import GgmlDevice, supported_ops
from ggsched_ggml.lowering import LOWERINGS, OTHERWISE, GraphMaker, Unlowered
from tests.backends.fake_ggml import DEVICE, KIND, FakeGgml, harness

Q4_0 = dtype_by_name("q4_0")


def one_line(error):
    text = error.value.one_line()
    assert "\n" not in text
    return text


# --- the library ---------------------------------------------------------------------------------


def test_a_library_is_found_where_it_is_named_first(tmp_path, monkeypatch):
    for part in ("named/lib", "packages/llama_cpp/lib", "packages/ggml/lib", "system"):
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "libggml.so").touch()
    for package in ("llama_cpp", "ggml"):
        (tmp_path / "packages" / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    environ = {"GGSCHED_GGML": str(tmp_path / "named"), "LD_LIBRARY_PATH": f"{tmp_path}/system"}
    order = ["named/lib", "packages/llama_cpp/lib", "packages/ggml/lib", "system"]
    for where in order:
        found = driver.find_library(environ)
        assert found == tmp_path / where / "libggml.so"
        environ.pop("GGSCHED_GGML", None)
        found.unlink()
    with pytest.raises(BackendUnavailable, match="no library of ggml is installed") as error:
        driver.find_library({})
    assert "make ggml" in one_line(error)


def test_a_wrong_folder_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("GGSCHED_GGML", str(tmp_path))
    with pytest.raises(BackendUnavailable) as error:
        open_devices(["ggml:CPU"])
    assert "no libggml.so is in" in one_line(error)
    (status,) = discover(allow=["ggml"])[:1]
    assert (status.name, status.state) == ("ggml", "unavailable")
    assert str(tmp_path) in status.reason


def test_a_file_that_is_no_library_is_one_line(tmp_path):
    (tmp_path / "libggml.so").write_text("text")
    with pytest.raises(BackendUnavailable) as error:
        driver.load(driver.find_library({"GGSCHED_GGML": str(tmp_path)}))
    assert "the library cannot be loaded" in one_line(error)


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ({"version": b"0.9.4"}, r"ggml 0\.9\.4 is not supported.*only 0\.15 to 0\.25 are"),
        ({"version": b"1.0.0-dirty"}, r"ggml 1\.0\.0-dirty is not supported"),
        ({"lacks": "ggml_backend_view_init"}, "lacks the function ggml_backend_view_init"),
        ({"layout": 16}, r"lays struct ggml_tensor out in another way"),
    ],
)
def test_another_library_is_refused_in_one_line(flaw, words):
    with pytest.raises(BackendUnavailable) as error:
        driver.Library(FakeGgml(**flaw), "/lib/libggml.so")
    assert re.search(words, one_line(error))


@pytest.mark.parametrize("member", ["ne", "nb", "data", "view_src", "name"])
def test_each_member_of_tensors_is_probed(monkeypatch, member):
    """A library that has a member elsewhere is refused."""
    fields = [(n, t) for n, t in driver.Tensor._fields_]
    i = next(i for i, (name, _) in enumerate(fields) if name == member)
    fields.insert(i, ("more", ctypes.c_int64))
    fields[-1] = ("padding", ctypes.c_char * 1)  # the size stays
    moved = type("Moved", (ctypes.Structure,), {"_fields_": tuple(fields)})
    monkeypatch.setattr("tests.backends.fake_ggml.Tensor", moved)
    with pytest.raises(BackendUnavailable, match="lays .* out in another way"):
        driver.Library(FakeGgml(), "lib")


def test_an_op_that_the_library_lacks_costs_that_op_only():
    library = driver.Library(FakeGgml(ops=True, lacks="ggml_softplus"), "lib")
    facts = GgmlDevice(library, DEVICE, "ggml:F").facts
    assert "softplus" in facts.reference_ops
    assert {"silu:f32", "mul_mat:f32", "attention:f32"} <= facts.ops


# --- names ---------------------------------------------------------------------------------------


@pytest.fixture
def named(monkeypatch):
    """Let the plug-in find a fake library with two devices."""
    library = driver.Library(FakeGgml(), "lib")
    monkeypatch.setattr(driver, "find_library", lambda: "lib")
    monkeypatch.setattr(driver, "load", lambda path, servers: library)
    monkeypatch.setattr(
        driver, "device_handles", lambda library: {"CPU": DEVICE, "RPC[10.0.0.2:50052]": DEVICE}
    )
    monkeypatch.setattr(
        backend, "device_names", lambda path, servers: ("CPU", "RPC[10.0.0.2:50052]")
    )


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("ggml:CPU", "ggml:CPU"),
        ("ggml:0", "ggml:CPU"),
        ("ggml:CPU/1", "ggml:CPU/1"),
        ("ggml:RPC[10.0.0.2:50052]", "ggml:RPC[10.0.0.2:50052]"),
    ],
)
@pytest.mark.usefixtures("named")
def test_devices_are_named_as_in_ggml(spec, name):
    (device,) = open_devices([spec])
    assert device.facts.name == name
    device.close()


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["ggml:Vulkan0"], r"there is no device ggml:Vulkan0.*there are: CPU, RPC"),
        (["ggml:CP"], r"did you mean CPU\?"),
        (["ggml:7"], r"there is no device 7 of ggml.*there are 2"),
        (["ggml:CPU", "ggml:0"], "named twice"),
        (["ggml"], r"write ggml:CPU or ggml:RPC"),
        (["cpu:zero"], "'cpu:zero' is not a device"),
    ],
)
@pytest.mark.usefixtures("named")
def test_wrong_names_are_one_line(specs, words):
    with pytest.raises((UsageError, BackendUnavailable)) as error:
        open_devices(specs)
    assert re.search(words, one_line(error))


def test_a_library_that_ends_the_process_is_one_line(tmp_path):
    """The process that lists the devices ends; this one goes on."""
    with pytest.raises(BackendUnavailable) as error:
        backend.device_names(tmp_path / "libggml.so", "")
    assert "cannot be loaded" in one_line(error)


# --- nodes ---------------------------------------------------------------------------------------


def operand(*shape, dtype=F32, strides=None, offset=0):
    strides = strides or contiguous_strides(dtype, shape)
    return Operand(None, offset, span_nbytes(dtype, shape, strides), dtype, shape, strides)


def lowered(op, inputs, output, *, behind=0, **params):
    """Return the names of the nodes that an op becomes."""
    fake = FakeGgml(ops=True, behind=behind)
    maker = GraphMaker(driver.Library(fake, "lib"), DEVICE, KIND)
    maker.add(BoundNode(0, op, tuple(inputs), output, full_params(op, params), op))
    assert len(maker.nodes) == len(fake.made)
    return fake.made


GAP, TURNED = (32, 4), (4, 12)


@pytest.mark.parametrize(
    ("op", "inputs", "output", "nodes"),
    [
        ("add", [operand(3, 4), operand(4)], operand(3, 4), ["add"]),
        ("add", [operand(3, 4, strides=GAP), operand(4)], operand(3, 4), ["add"]),
        ("add", [operand(3, 4, strides=TURNED), operand(4)], operand(3, 4), ["cont", "add"]),
        ("add", [operand(3, 4), operand(4)], operand(3, 4, strides=GAP), ["add", "cpy"]),
        ("silu", [operand(3, 4, strides=GAP)], operand(3, 4), ["cont", "silu"]),
        ("mul_mat", [operand(5, 32, dtype=Q4_0), operand(3, 32)], operand(3, 5), ["mul_mat"]),
        ("mul_mat", [operand(3, 4, strides=TURNED), operand(2, 4)], operand(2, 3),
         ["cont", "mul_mat"]),
        ("cpy", [operand(3, 32, dtype=Q4_0), operand(3, 32, dtype=F16)],
         operand(3, 32, dtype=F16), ["cast", "cpy"]),
        ("get_rows", [operand(9, 4), operand(2, 3, dtype=I32)], operand(2, 3, 4), ["get_rows"]),
        ("soft_max", [operand(2, 3, 4), operand(1, 4)], operand(2, 3, 4),
         ["repeat_4d", "soft_max_ext"]),
        ("attention", [operand(6, 2, 8), operand(6, 2, 8), operand(3, 4, 8),
                       operand(3, 2, dtype=I32)], operand(3, 4, 8), ["flash_attn_ext"]),
    ],
)  # fmt: skip
def test_nodes_get_operands_that_ggml_does_not_abort_on(op, inputs, output, nodes):
    params = {"soft_max": {"mask": True}, "attention": {"bounds": True}}.get(op, {})
    assert lowered(op, inputs, output, **params) == nodes


@pytest.mark.parametrize(
    ("op", "inputs", "params", "words"),
    [
        ("mul_mat", [operand(3, 0), operand(2, 0)], {}, "an operand is empty"),
        ("gelu", [operand(4)], {}, "table of f16"),
        ("mul_mat_id", [operand(2, 3, 4), operand(2, 1, 4), operand(2, 1, dtype=I32)],
         {"first": 1, "of": 5}, "needs all experts"),
        ("argsort", [operand(4)], {}, "equal elements"),
        ("attention", [operand(6, 2, 8)] * 3 + [operand(3, 6)], {"mask": True}, "masks to f16"),
    ],
)  # fmt: skip
def test_nodes_that_ggml_computes_otherwise_are_not_given_to_it(op, inputs, params, words):
    with pytest.raises(Unlowered, match=words):
        lowered(op, inputs, operand(2, 3), **params)


def test_results_that_need_more_memory_are_copied():
    """Some backends compute in memory behind a result, which is of others in an arena."""
    node = [operand(3, 4)], operand(3, 4)
    assert lowered("silu", *node, behind=0) == ["silu"]
    assert lowered("silu", *node, behind=64) == ["silu", "cpy"]


def test_packed_rows_behind_which_a_device_reads_are_not_given_to_it():
    node = [operand(5, 32, dtype=Q4_0), operand(3, 32)], operand(3, 5)
    with pytest.raises(Unlowered, match="reads behind packed rows"):
        lowered("mul_mat", *node, behind=64)


def test_a_device_that_pads_packed_rows_supports_rows_of_usual_lengths():
    """CUDA's backend pads them to 512: samples of 256 had it refuse every packed weight."""
    library = driver.Library(FakeGgml(ops=True, padding=512), "lib")
    assert {"mul_mat:q4_0", "mul_mat_id:q4_0", "get_rows:q4_0"} <= supported_ops(library, DEVICE)


def test_each_built_in_op_has_a_lowering_or_a_reason():
    assert set(LOWERINGS) | set(OTHERWISE) == set(BUILT_IN)
    assert not set(LOWERINGS) & set(OTHERWISE)


def test_a_result_is_the_operand_of_the_next_node_until_its_bytes_are_written():
    """So backends see which nodes depend on each other."""
    maker = GraphMaker(driver.Library(FakeGgml(ops=True), "lib"), DEVICE, KIND)
    x, y = (operand(4, offset=i * 64) for i in range(2))
    maker.add(BoundNode(0, "silu", (x,), y, full_params("silu", {}), ""))
    (first,) = maker.nodes
    assert maker.leaf(y).handle == first
    maker.add(BoundNode(1, "silu", (x,), operand(2, offset=72), full_params("silu", {}), ""))
    assert maker.leaf(y).handle != first


@pytest.mark.parametrize("activations", ["auto", "f32"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_0"])
def test_products_are_of_f32_where_ggml_would_round_further_than_is_allowed(
    monkeypatch, dtype, activations
):
    """With weights of bf16 the request would have CUDA convert the weights for each product."""
    monkeypatch.setenv("GGSCHED_ACTIVATIONS", activations)
    fake, asked = FakeGgml(ops=True), []
    library = driver.Library(fake, "lib")
    monkeypatch.setattr(library, "ggml_mul_mat_set_prec", lambda *args: asked.append(args))
    maker = GraphMaker(library, DEVICE, KIND)
    inputs = operand(4, 32, dtype=dtype_by_name(dtype)), operand(3, 32)
    maker.add(BoundNode(0, "mul_mat", inputs, operand(3, 4), full_params("mul_mat", {}), ""))
    assert len(asked) == (dtype != "bf16" or activations == "f32")


# --- the order of transfers ----------------------------------------------------------------------


def test_an_upload_waits_for_the_download_that_writes_its_source():
    """ggml's RPC reads the source when it is called, and the download is in the queue."""
    writes, at = HostWrites(), threading.Event()
    writes.add(1, 1000, 100)
    writes.add(2, 5000, 100)
    assert writes.writers(1099, 10) == [1]
    assert writes.writers(1100, 10) == []

    def wait():
        writes.wait(1000, 10)
        at.set()

    thread = threading.Thread(target=wait)
    thread.start()
    writes.clear(2)
    assert not at.is_set()
    writes.clear(1)
    thread.join(30)
    assert at.is_set()


class Idle:
    """A queue that is always done."""

    borrowed = ()

    def synchronize(self):
        pass

    def wait(self, point):
        pass


def test_what_is_behind_a_wait_counts_after_what_was_waited_for():
    """Both are done in the library; two threads count them (EVT-5)."""
    (device,) = harness().open(1, 0)
    first, second = (Worker(device, Idle(), Progress(name), is_async=True) for name in "ab")
    second.points[1] = object()
    second.issued.finish_one()
    first._run_one("wait for an event", partial(first.wait_for, second, 1))
    thread = threading.Thread(target=first.settle)
    thread.start()
    with second.progress._condition:  # it looks at the count before it waits for more
        assert first.progress.done == 0
    second.progress.finish_one()
    thread.join(30)
    assert (first.progress.done, thread.is_alive()) == (1, False)
    device.close()


def test_a_stream_is_done_once_its_last_event_is():
    """The record is a command of the stream, and the event stands for it too (EVT-5)."""
    (device,) = harness().open(1, 0)
    stream, event = device.create_stream(), device.create_event()
    stream.record(event)
    assert event.recorded_at == (stream.progress, stream.progress.enqueued)
    event.sync(30)
    assert stream.is_done
    device.close()


def test_a_source_is_read_behind_what_writes_it():
    """Two commands of one stream: a download into host memory, and an upload from there."""
    (device,) = harness().open(1, 0)
    stream, buffer = device.create_stream(), device.allocate(4096)
    host = np.arange(4096, dtype=np.uint8)
    between = np.zeros(4096, np.uint8)
    stream.upload(host.data, buffer, 0)
    stream.download(buffer, 0, between.data)
    stream.upload(between.data, buffer, 0)
    found = np.zeros(4096, np.uint8)
    stream.download(buffer, 0, found.data)
    stream.sync(30)
    np.testing.assert_array_equal(found, host)
    device.close()
