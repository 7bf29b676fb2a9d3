"""ONNX models as graphs; see ``docs/how-to/run-an-onnx-model.md``."""

from ggsched_import.common.bound import BoundModel, Port
from ggsched_import.onnx.model import OnnxModel, from_onnx

__all__ = ["BoundModel", "OnnxModel", "Port", "from_onnx"]
