"""Tests of importers need what is imported from."""

import pickle
import warnings
from importlib.util import find_spec

import numpy as np
import pytest

from ggsched.whole_file import write_whole

collect_ignore_glob = [] if find_spec("onnx") else ["test_onnx_*.py"]


@pytest.fixture(scope="session")
def node_cases(compiled_kernels):
    """ONNX's own tests of its ops; collecting them computes their references, 8 s, and is kept."""
    import onnx

    kept = compiled_kernels.parent / f"onnx-{onnx.__version__}-numpy-{np.__version__}.pickle"
    if not kept.exists():
        from onnx.backend.test.case.node import collect_testcases

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the references divide by zero on purpose
            made = [c for c in collect_testcases(None) if c.data_sets]
        write_whole(kept, pickle.dumps(made, protocol=5))
    return pickle.loads(kept.read_bytes())


@pytest.fixture
def cases(node_cases):
    """Those of them that must pass where a device has the kernels."""
    from tests.importers.onnx_nodes import covered, excluded

    patterns = excluded()
    return [c for c in node_cases if covered(c, patterns)]
