"""Tests of importers need what is imported from."""

import warnings
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("onnx") else ["test_onnx_*.py"]


@pytest.fixture(scope="session")
def node_cases():
    """ONNX's own tests of its ops; collecting them computes their references, some seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the references divide by zero on purpose
        return [c for c in collect_testcases(None) if c.data_sets]


@pytest.fixture
def cases(node_cases):
    """Those of them that must pass where a device has the kernels."""
    from tests.importers.onnx_nodes import covered, excluded

    patterns = excluded()
    return [c for c in node_cases if covered(c, patterns)]
