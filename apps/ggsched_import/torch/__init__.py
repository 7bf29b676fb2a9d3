"""Programs of PyTorch as graphs; see ``docs/how-to/run-a-pytorch-model.md``."""

from ggsched_import.torch.call import Call, converts
from ggsched_import.torch.model import BoundProgram, TorchModel, from_torch

__all__ = ["BoundProgram", "Call", "TorchModel", "converts", "from_torch"]
