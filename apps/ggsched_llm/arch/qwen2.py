"""The ``qwen2`` architecture: Qwen2 and Qwen2.5, with biases on Q, K and V."""

from typing import Final

from ggsched_llm.architecture import Architecture
from ggsched_llm.spec import block_needs

ARCHITECTURE: Final = Architecture("qwen2", block_needs)
