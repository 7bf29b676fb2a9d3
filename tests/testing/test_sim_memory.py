"""Memory and capabilities of simulated devices: what is declared works, the rest is refused."""

import numpy as np
import pytest

from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched_testing.schedule_policy import EagerPolicy, LaziestPolicy
from ggsched_testing.sim import SimConfig, SimWorld
from tests.testing.sims import A, B, N, device_of, filled, fresh, program, raw, unary


class TestMemory:
    def test_fresh_memory_is_poison(self):
        d = device_of(EagerPolicy(), is_host=True)
        assert set(d.allocate(64).array) == {0xFF}
        assert set(d.allocate_host(64)) == {0xFF}

    def test_freed_memory_is_poison_at_once_and_its_users_are_named(self):
        world = SimWorld([SimConfig()], policy=LaziestPolicy())
        q = world.open(0).create_stream()
        x, y, out = filled(q, A), q.device.allocate(4 * N), fresh()
        q.copy(x, 0, y, 0, 4 * N)
        q.download(y, 0, raw(out))
        x.close()
        assert set(x.array) == {0xFF}
        (found,) = world.violations
        assert found.rule == "BUF-2"
        assert "c1 copy 32 B from sim:0 m0[0:32] to sim:0 m1[0:32]" in found.what
        q.sync(1)
        assert np.isnan(out).all()
        assert "was freed and is used by c1 copy" in world.violations[1].what

    def test_closed_buffers_are_refused(self):
        q = device_of(EagerPolicy()).create_stream()
        x = q.device.allocate(4 * N)
        x.close()
        x.close()
        for call in (
            lambda: q.upload(raw(A), x, 0),
            lambda: q.download(x, 0, raw(fresh())),
            lambda: q.copy(x, 0, q.device.allocate(4 * N), 0, 4),
            lambda: program(q, unary("silu", x, x)),
        ):
            with pytest.raises(UsageError, match="closed"):
                call()

    def test_too_much(self):
        d = device_of(EagerPolicy(), memory_nbytes=100, max_allocation_nbytes=60)
        first = d.allocate(60)
        with pytest.raises(OutOfDeviceMemory, match="requested 60 bytes, 40 of 100 are free"):
            d.allocate(60)
        first.close()
        d.allocate(60)

    def test_more_than_the_system_has(self):
        d = device_of(EagerPolicy(), memory_nbytes=1 << 62, max_allocation_nbytes=1 << 62)
        for nbytes in (1 << 55, 1 << 61):
            with pytest.raises(OutOfDeviceMemory, match=f"requested {nbytes} bytes"):
                d.allocate(nbytes)
            with pytest.raises(OutOfDeviceMemory, match=f"requested {nbytes} bytes"):
                d.allocate_host(nbytes)
        assert d.allocate(16).nbytes == 16

    def test_imported_memory_is_read_only_and_borrowed(self):
        d = device_of(EagerPolicy(), imports_host_memory=True)
        q, source, out = d.create_stream(), A.copy(), fresh()
        x = d.import_host(raw(source))
        source[:] = B
        q.download(x, 0, raw(out))
        q.sync(1)
        assert (out == B).all()
        with pytest.raises(UsageError, match="read-only"):
            q.upload(raw(A), x, 0)
        x.close()
        assert (source == B).all()

    def test_host_views_are_the_memory(self):
        q = device_of(EagerPolicy(), is_host=True).create_stream()
        x = filled(q, A)
        assert bytes(x.host_view()) == A.tobytes()
        x.close()
        with pytest.raises(UsageError, match="closed"):
            x.host_view()
