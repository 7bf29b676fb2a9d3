"""What transfers need of the host is released behind them, not before; in software."""

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched.backend.host_borrow import address_of
from ggsched_cuda import driver
from ggsched_cuda.queue import MAX_STAGED, OFTEN, CudaQueue
from tests.backends.cuda_devices import cuda_parts
from tests.backends.software_kernels import in_software
from tests.kernels.test_fibers import NEEDS, Runner

pytestmark = NEEDS
NBYTES = 5000


@pytest.fixture
def device(compiled_kernels):
    with in_software(Runner(compiled_kernels)):
        (made,) = cuda_parts(1)
        yield made
        made.close()


@pytest.fixture
def early(monkeypatch):
    """Host memory that a marker was put behind before its transfer was enqueued."""
    sent, found = set(), []

    def noting(name, host):
        plain = getattr(driver, name)

        def enqueue(*args):
            sent.add(args[host])
            return plain(*args)

        monkeypatch.setattr(driver, name, enqueue)

    noting("enqueue_upload", 1)
    noting("enqueue_download", 0)
    plain = CudaQueue.behind

    def behind(queue, marker):
        held = queue._now
        needed = [*(b.address for b in held.blocks), *(address_of(m) for m in held.memory)]
        found.extend(address for address in needed if address not in sent)
        for block in held.blocks:
            sent.discard(block.address)  # the next transfer that takes it is another one
        return plain(queue, marker)

    monkeypatch.setattr(CudaQueue, "behind", behind)
    return found


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("way", ["upload", "download"])
def test_markers_stand_behind_the_transfers_whose_memory_they_release(
    device, early, way, is_pinned
):
    """The eighth staging block was released before its copy; a weight was read into it."""
    stream, buffer = device.create_stream(), device.allocate(NBYTES)
    count = 2 * (OFTEN if is_pinned else MAX_STAGED) + 3
    for i in range(count):
        memory = device.allocate_host(NBYTES) if is_pinned else memoryview(bytearray(NBYTES))
        np.frombuffer(memory, np.uint8)[:] = i
        if way == "upload":
            stream.upload(memory, buffer, 0)
        else:
            stream.download(buffer, 0, memory)
    stream.sync(60.0)
    stream.close()
    assert not early
