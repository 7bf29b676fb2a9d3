"""The ``qwen3moe`` architecture: Qwen3 with experts, and norms on each head of Q and K."""

from functools import partial
from typing import Final

from ggsched_llm.architecture import Architecture, split_width
from ggsched_llm.ignored_keys import NO_DENSE
from ggsched_llm.spec import block_needs

ARCHITECTURE: Final = Architecture(
    "qwen3moe",
    partial(block_needs, has_head_norms=True),
    experts="all",
    expert_width=split_width,
    ignored={"feed_forward_length": NO_DENSE},
)
