"""ONNX models as graphs; see ``docs/how-to/run-an-onnx-model.md``."""

from ggsched.importers.common.bound import BoundModel, Port
from ggsched.importers.onnx.model import OnnxModel, from_onnx

__all__ = ["BoundModel", "OnnxModel", "Port", "from_onnx"]
