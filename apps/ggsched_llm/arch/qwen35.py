"""The ``qwen35`` architecture: Qwen3.5, as ``qwen35moe`` with a dense network in each block."""

from typing import Final

from ggsched_llm.arch import qwen35moe
from ggsched_llm.architecture import Architecture

ARCHITECTURE: Final = Architecture(
    "qwen35", qwen35moe.needs, qwen35moe.block, refine=qwen35moe.refine
)
