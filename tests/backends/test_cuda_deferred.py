"""What a captured stream hands to the driver, and when: transfers in a row, launches that send."""

import ctypes

import numpy as np
import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16
from ggsched_testing.eager import bound_nodes
from tests.backends.fake_cuda import FakeDriver, fake_device, fake_gpu, install

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched_cuda.deferred import MAX_MOVES, DeferredCommands, MirroredLaunch, Move

RESULT, NBYTES, HOST = 0x1000, 64, 0x9000


class FakeStream:
    """Writes down what is handed over."""

    def __init__(self):
        self.given, self.faults, self.code = [], [], 0
        self.place = ctypes.c_uint64(0)

    def transfer(self, moves):
        self.given.append(tuple(moves))

    def launch(self):
        self.given.append(self.place.value)
        return (self.code,)

    def failed(self, label, error):
        self.faults.append((label, str(error)))

    def sending(self):
        return MirroredLaunch((self.launch, ()), (self.place,), RESULT, NBYTES, "n7 mul_mat")


@pytest.fixture
def stream():
    return FakeStream()


@pytest.fixture
def put_off(stream):
    return DeferredCommands(stream.transfer, stream.failed)


SENT = Move(HOST, RESULT, NBYTES)
OTHERS = [
    Move(HOST, RESULT, NBYTES - 4),
    Move(HOST, RESULT + 4, NBYTES),
    Move(HOST, RESULT + 4, NBYTES - 4),
    Move(RESULT, HOST, NBYTES),
]


def test_a_result_is_written_where_it_is_sent(stream, put_off):
    put_off.launch(stream.sending())
    assert stream.given == []
    put_off.move(SENT)
    assert stream.given == [HOST]
    put_off.flush()
    assert (stream.given, stream.place.value) == ([HOST], 0)


@pytest.mark.parametrize("move", OTHERS)
def test_anything_else_comes_behind(stream, put_off, move):
    put_off.launch(stream.sending())
    put_off.move(move)
    assert stream.given == [0]
    put_off.move(SENT._replace(to=HOST + 4096))
    put_off.flush()
    assert stream.given[0] == 0
    assert [m for moves in stream.given[1:] for m in moves] == [
        move, SENT._replace(to=HOST + 4096)
    ]  # fmt: skip


def test_once_only(stream, put_off):
    """What is sent to a second place of the host is copied: the kernel is on its way."""
    put_off.launch(stream.sending())
    put_off.move(SENT)
    put_off.move(SENT._replace(to=HOST + 4096))
    put_off.flush()
    assert stream.given == [HOST, (SENT._replace(to=HOST + 4096),)]


def test_nothing_is_sent_where_nobody_asks(stream, put_off):
    put_off.launch(stream.sending())
    put_off.flush()
    put_off.flush()
    assert stream.given == [0]


def test_transfers_that_are_apart_go_together(stream, put_off):
    moves = [Move(HOST + 64 * i, RESULT + 64 * i, 64) for i in range(MAX_MOVES + 1)]
    for move in moves:
        put_off.move(move)
    assert stream.given == [tuple(moves[:-1])]
    put_off.move(Move(RESULT, moves[-1].to, 64))
    put_off.flush()
    assert stream.given[1:] == [(moves[-1],), (Move(RESULT, moves[-1].to, 64),)]


def test_a_launch_that_fails_is_a_fault_of_its_node(stream, put_off):
    stream.code = 700
    put_off.launch(stream.sending())
    put_off.move(SENT)
    ((label, why),) = stream.faults
    assert label == "n7 mul_mat"
    assert "cuLaunchKernel" in why
    assert stream.place.value == 0


# --- with the stream of a device --------------------------------------------------------------

ROWS = 16384


class Launches(FakeDriver):
    """Keeps the last argument of each product, and the transfers."""

    def __init__(self):
        super().__init__()
        self.sent, self.moved, self.count = [], [], 0

    def launch_configured(self, config, function, params, extra):
        pointers = (ctypes.c_void_p * self.count).from_address(params)
        self.sent.append(ctypes.c_uint64.from_address(pointers[-1]).value)
        return (0,)

    def launch_kernel(self, function, *arguments):
        self.moved.append(arguments[1])
        return (0,)


@pytest.fixture
def launches(monkeypatch):
    made = install(Launches(), monkeypatch)
    monkeypatch.setattr("ggsched_cuda.driver.launch_config", lambda *args, **kwargs: None)
    return made


def test_logits_are_sent_by_the_product(launches):
    device = fake_device(fake_gpu(), "cuda:0")
    stream = device.create_stream()
    g = GraphBuilder("logits")
    graph = g.build(g.mul_mat(g.weight("w", (ROWS, 64), BF16), g.input("x", (1, 64))))
    memory = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    program = device.compile(bound_nodes(graph, memory, constant_weights=True), stream)
    assert len(program.steps) == 1
    launches.count = len(program._params[-1][1])
    out, y = device.allocate_host(4 * ROWS), memory[graph.outputs[0]]
    address = np.frombuffer(out, np.uint8).ctypes.data

    stream.launch(program)
    stream.download(y, 0, out)
    assert launches.sent == [0], "the driver makes transfers that nobody captures"
    capture = device.begin_capture([stream])
    stream.launch(program)
    stream.download(y, 0, out)
    capture.end().close()
    assert (launches.sent, launches.moved) == ([0, address], [])
    capture = device.begin_capture([stream])
    stream.launch(program)
    stream.download(y, 0, out[: 2 * ROWS])
    capture.end().close()
    assert (launches.sent, len(launches.moved)) == ([0, address, 0], 1)
    stream.launch(program)
    assert launches.sent == [0, address, 0, 0]
    program.close()
    device.close()


def for_gpus(stream, seen=None):
    """Return a launch whose result may go to four GPUs; it says where to, if asked."""
    places = (stream.place, *(ctypes.c_uint64(0) for _ in range(3)))

    def launch():
        (seen if seen is not None else []).append([p.value for p in places])
        return stream.launch()

    return stream.sending()._replace(places=places, step=(launch, ()))


def test_a_row_for_gpus_is_not_written_to_the_host(stream, put_off):
    """Its other places are in memory of GPUs, and it is short: a transfer is as quick."""
    put_off.launch(for_gpus(stream))
    assert put_off.producer is not None
    put_off.move(SENT)
    put_off.flush()
    assert stream.given == [0, (SENT,)]
    assert put_off.producer is None


def test_a_row_goes_to_several_gpus(stream, put_off):
    seen = []
    sending = for_gpus(stream, seen)
    put_off.launch(sending)
    put_off.launch_now([7, 8])
    assert seen == [[7, 8, 0, 0]]
    assert [p.value for p in sending.places] == [0, 0, 0, 0]
