"""ONNX's own tests of its ops, all in one process."""

from fnmatch import fnmatch

import onnx
import pytest
from onnx import TensorProto

from ggsched import GgschedError, Scheduler, open_devices
from tests.importers.onnx_nodes import check, covered, excluded, types

USUAL = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL}

TESTED = "1.23."
"""With other versions of onnx, whose set differs, 95 % must pass; with this one all of it."""


@pytest.mark.filterwarnings("ignore")
def test_ops_do_what_onnx_says(node_cases):
    patterns = excluded()
    wanted = [c for c in node_cases if covered(c, patterns)]
    failed = []
    devices = open_devices(["cpu:0"])
    with Scheduler(devices, plan_limit=1) as shared:
        for case in wanted:
            try:
                check(case, devices, shared)
            except (GgschedError, AssertionError) as error:
                failed.append(f"{case.name}: {' '.join(str(error).split())[:200]}")
    for device in devices:
        device.close()
    allowed = 0 if onnx.__version__.startswith(TESTED) else len(wanted) // 20
    assert len(failed) <= allowed, "\n".join(failed)
    assert len(wanted) > 1000


def test_most_of_all_tests_of_the_usual_types_are_run(node_cases):
    """Whatever the ops: nothing that only these types need is left out beyond 5 %."""
    patterns = excluded()
    usual = [c for c in node_cases if set(types(c.model.graph)) <= USUAL]
    run = [c for c in usual if covered(c, patterns)]
    assert len(usual) > 1000
    assert len(run) >= 0.95 * len(usual)


def test_each_exclusion_is_needed(node_cases):
    if not onnx.__version__.startswith(TESTED):
        pytest.skip("the list is for another version")
    for pattern, why in excluded().items():
        assert why, pattern
        assert any(fnmatch(c.name, pattern) for c in node_cases), pattern
