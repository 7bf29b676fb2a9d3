"""Tests of importers need what is imported from."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("onnx") else ["test_onnx_*.py"]
