"""Complex numbers, special functions and equations on several devices, without PyTorch."""

import numpy as np
import pytest

from ggsched.topology.caps import offers
from ggsched_kernels import supported_ops
from tests.importers.test_torch_special import FUNCTIONS
from tests.importers.torch_calls import called, converted

RNG = np.random.default_rng(5)
X = RNG.uniform(-9, 40, 20).astype(np.float32)
I = RNG.integers(-99, 99, 20)  # noqa: E741
A = (RNG.standard_normal((2, 3, 3)) + 3 * np.eye(3)).astype(np.float32)
Z = (RNG.standard_normal((2, 4)) + 1j * RNG.standard_normal((2, 4))).astype(np.complex64)

CALLS = [
    *((op, *args, X) for op, (args, _) in FUNCTIONS.items()),
    ("nextafter.default", X, X[::-1].copy()), ("frexp.Tensor", X), ("lcm.default", I, I[::-1]),
    ("linalg_inv_ex.default", A), ("_linalg_solve_ex.default", A, A[:, :, :1].copy()),
    ("linalg_cholesky_ex.default", A @ A.transpose(0, 2, 1)), ("_linalg_slogdet.default", A),
    ("cholesky_solve.default", A, A), ("polar.default", X, X), ("sqrt.default", Z),
    ("div.Tensor", Z, Z[:, ::-1].copy()), ("mm.default", Z, Z.T.copy()), ("sum.default", Z),
    ("_fft_c2c.default", Z, [0, 1], 0, True), ("_fft_r2c.default", Z.real.copy(), [1], 0, True),
    ("_fft_c2r.default", Z, [1], 2, 6),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["opencl", "cuda"])
def test_all_ops_that_they_become_have_kernels_on_gpus(backend):
    ops = supported_ops(backend, has_f64=True)
    for op, *args in CALLS:
        graph = converted(op, args, {})[0].graph
        kinds = {(n.op, graph.tensors[n.inputs[0]].dtype.name) for n in graph.nodes}
        assert {kind for kind in kinds if not offers(ops, *kind)} == set(), op


@pytest.mark.parametrize("op", ["nextafter.default", "_fft_c2c.default", "linalg_inv_ex.default"])
def test_two_devices_compute_what_the_oracle_does(op):
    _, *args = next(c for c in CALLS if c[0] == op)
    found, wanted = (called(op, *args, devices=d) for d in (["cpu:0", "cpu:1"], ()))
    found, wanted = (v[:1] if isinstance(v, list) else [v] for v in (found, wanted))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0 if op[0] == "n" else 1e-4, atol=1e-5)
