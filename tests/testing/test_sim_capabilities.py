"""What a simulated device declares works, and what it does not declare is refused (TRU-1)."""

import pytest

from ggsched.errors import UsageError
from ggsched_testing.sim import SimConfig, SimWorld
from tests.support.errors import refused
from tests.testing.sims import A, N, content, filled, program, raw, unary


def test_what_is_not_declared_is_refused():
    few = {"has_events": False, "max_streams": 1, "ops": frozenset(), "copies": frozenset()}
    world = SimWorld([SimConfig(**few), SimConfig(**few)])
    a, b = world.open_all()
    q = a.create_stream()
    x, y = filled(q, A), b.allocate(4 * N)
    for call in (
        a.create_event,
        a.create_stream,
        x.host_view,
        lambda: a.import_host(raw(A)),
        lambda: q.copy(x, 0, y, 0, 4),
        lambda: program(q, unary("silu", x, x)),
    ):
        with pytest.raises(UsageError):
            call()
    assert not a.copies_with(b.facts)
    assert a.wait_path(b.facts) == "host"
    q.close()
    a.create_stream()


def test_one_end_copies_both_ways():
    world = SimWorld([SimConfig(copies=frozenset()), SimConfig(copies=frozenset({0}))])
    a, b = world.open_all()
    assert (a.copies_with(b.facts), b.copies_with(a.facts)) == (False, True)
    q = b.create_stream()
    x, y = a.allocate(4 * N), filled(q, A)
    q.copy(y, 0, x, 0, 4 * N)
    q.sync(1)
    assert (content(x) == A).all()
    with refused("CPY-6"):
        a.create_stream().copy(x, 0, y, 0, 4)
