"""The architectures that ggsched runs, one file for each.

To add one, write its file and name it here; see docs/how-to/add-an-architecture.md.
"""

from collections.abc import Mapping
from typing import Final

from ggsched_llm.arch import (
    deepseek2,
    gemma2,
    gemma3,
    glm4moe,
    gptoss,
    llama,
    mamba2,
    minimax_m2,
    phi3,
    qwen2,
    qwen2moe,
    qwen3,
    qwen3moe,
    qwen3next,
    qwen35,
    qwen35moe,
)
from ggsched_llm.architecture import Architecture

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    module.ARCHITECTURE.name: module.ARCHITECTURE
    for module in (
        *(llama, qwen3moe, gptoss, qwen2, qwen3, qwen2moe, gemma2, gemma3, phi3, deepseek2),
        *(qwen3next, qwen35moe, qwen35, mamba2, glm4moe, minimax_m2),
    )
}
