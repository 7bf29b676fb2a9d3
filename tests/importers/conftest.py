"""Tests of importers need what is imported from."""

import pickle
import warnings
from importlib.util import find_spec

import numpy as np
import pytest

from ggsched.whole_file import write_whole
from tests.support.profile import NIGHTLY

collect_ignore_glob = [] if find_spec("onnx") else ["test_onnx_*.py"]


@pytest.fixture(scope="session")
def node_cases(compiled_kernels):
    """ONNX's own tests of its ops; collecting them computes their references, and is kept.

    Three quarters of the time are three cases of pools over volumes of 32 elements a side.
    """
    import onnx

    side = 32 if NIGHTLY else 9
    versions = f"onnx-{onnx.__version__}-numpy-{np.__version__}"
    kept = compiled_kernels.parent / f"{versions}-{side}.pickle"
    if not kept.exists():
        from onnx.backend.test.case.node import collect_testcases

        draw = np.random.randn

        def randn(*shape):
            return draw(*((1, 3, *3 * [side]) if shape == (1, 3, 32, 32, 32) else shape))

        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")  # the references divide by zero on purpose
            patch.setattr(np.random, "randn", randn)
            made = [c for c in collect_testcases(None) if c.data_sets]
        write_whole(kept, pickle.dumps(made, protocol=5))
    return pickle.loads(kept.read_bytes())


@pytest.fixture
def cases(node_cases):
    """Those of them that must pass where a device has the kernels."""
    from tests.importers.onnx_nodes import covered, excluded

    patterns = excluded()
    return [c for c in node_cases if covered(c, patterns)]
