"""Compiled kernels of the library for elements, conversions and indices against the oracle."""

import numpy as np
import pytest

from ggsched import GraphBuilder, Scheduler
from ggsched_cpu.kernels.casts import ELEMENTS, is_converted
from ggsched_cpu.kernels.elementwise import FORMULAS
from ggsched_cpu.native import library
from tests.backends.test_cpu_cells import check_and_tell

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels")

SPECIAL = np.array(
    [-np.inf, -90.0, -2.5, -1.0, -0.5, -1e-4, -1e-9, -0.0, 0.0, 1e-9, 1e-4, 0.5, 1.5, 20.0, np.inf,
     np.nan, 3e38],
    np.float32,
)  # fmt: skip
PARAMS = {"alpha": 0.3, "gamma": 1.5, "inner": 0.7}
OF_LIBRARY = sorted(op for op in FORMULAS if op.startswith("nd."))


@pytest.mark.parametrize("op", OF_LIBRARY)
def test_formulas_of_special_numbers(op):
    """Also where the second operand has one element in each row."""
    count, names, _ = FORMULAS[op]
    a = np.repeat(SPECIAL, len(SPECIAL)).reshape(len(SPECIAL), -1)
    b = np.tile(SPECIAL, len(SPECIAL)).reshape(a.shape)
    params = {n: PARAMS.get(n, 0.25) for n in names}
    g = GraphBuilder()
    x = g.input("a", a.shape)
    others = [(g.input("b", b.shape),), (g.input("c", (len(b), 1)),)] if count == 2 else [()]
    graph = g.build(*(g.op(op, x, *other, **params) for other in others))
    assert check_and_tell(graph, {"a": a, "b": b, "c": b[:1].T.copy()}, 1e-6)


def test_expm1_near_zero():
    x = np.array([[-1e-2, 3e-5, 1e-7, -1e-20]], np.float32)
    g = GraphBuilder()
    graph = g.build(g.op("nd.expm1", g.input("x", x.shape)))
    with Scheduler(["cpu:0"]) as scheduler:
        (found,) = scheduler.run(graph, {"x": x}).values()
    np.testing.assert_allclose(found, np.expm1(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("kind", ELEMENTS)
def test_conversions(kind):
    """Of numbers beyond every type, between its limits, and of rests of vectors."""
    g = GraphBuilder()
    host = g.input("kind", (1,), kind).dtype.host
    wide = [3e9, -3e9, 7e18, -7e18, 65520.0, 1e-8, *SPECIAL]
    with np.errstate(all="ignore"):
        values = np.array(wide, np.float32).astype(host)
    if kind[0] in "iu":
        values = np.array([np.iinfo(host).min, np.iinfo(host).max, 1, 0, 77], host)
    x = np.resize(values, 53)
    g = GraphBuilder()
    given_x = g.input("x", x.shape, kind)
    others = [to for to in ELEMENTS if is_converted(kind, to)]
    graph = g.build(*(g.op("nd.cast", given_x, to=to) for to in others))
    assert check_and_tell(graph, {"x": x}, 0)
