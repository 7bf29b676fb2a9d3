"""Models that packages ship as ONNX, where they are installed, compared with onnxruntime.

pip install --no-deps onnxruntime rapidocr-onnxruntime silero-vad magika
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ggsched
from tests.backends.opencl_devices import opencl_device

RNG = np.random.default_rng(0)
ATOL = 1e-4


def image(height, width):
    return {"x": RNG.standard_normal((1, 3, height, width)).astype(np.float32)}


def chunk(**state):
    return {"input": 0.1 * RNG.standard_normal((1, 576)).astype(np.float32), **state}


VAD = "silero_vad", "data/silero_vad"
STATE = {"state": np.zeros((2, 1, 128), np.float32)}
RATE = {"sr": np.array(16000)}
HIDDEN = {name: np.zeros((1, 1, 128), np.float32) for name in "hc"}

MODELS = {
    "detector": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer", image(160, 160), {}),
    "recogniser": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer", image(48, 160), {}),
    "classifier": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer",
                   image(48, 192), {}),
    "file types": ("magika", "models/standard_v3_3/model",
                   {"bytes": RNG.integers(0, 256, (1, 2048)).astype(np.int32)}, {}),
    "speech": (*VAD, chunk(**STATE), RATE),
    "speech without branches": (VAD[0], "data/silero_vad_op18_ifless", chunk(**STATE), RATE),
    "speech in 16 kHz": (VAD[0], "data/silero_vad_16k_op15", chunk(**STATE), RATE),
    "speech in f16": (VAD[0], "data/silero_vad_half", chunk(**STATE), RATE),
    "recurrent": (VAD[0], "data/silero_vad_16k_sequence",
                  {"input": 0.1 * RNG.standard_normal((4, 576)).astype(np.float32), **HIDDEN}, {}),
}  # fmt: skip
"""Package, file, inputs, constants."""


def path_of(package, file):
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / f"{file}.onnx"
        if path.exists():
            return path
    return pytest.skip(f"{package} is not installed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["cpu", "opencl", "both by cost"])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_onnxruntime(name, where):
    runtime = pytest.importorskip("onnxruntime")
    package, file, inputs, constants = MODELS[name]
    path = path_of(package, file)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    constants = {n: v for n, v in constants.items() if n in known}
    wanted = session.run(None, {**inputs, **constants})
    model = ggsched.from_onnx(path, constants=constants)
    cpu = ggsched.open_devices(["cpu:0"])
    devices = cpu if where == "cpu" else [opencl_device(), *cpu]
    placement = "cost" if where == "both by cost" else "ggml"
    try:
        with ggsched.Scheduler(devices, weights=model.weight, placement=placement) as scheduler:
            found = model.run(scheduler, inputs)
    finally:
        for device in devices:
            device.close()
    for output, value in zip(session.get_outputs(), wanted, strict=True):
        np.testing.assert_allclose(found[output.name], value, atol=ATOL, rtol=0)
