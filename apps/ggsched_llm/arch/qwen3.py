"""The ``qwen3`` architecture: norms on each head of Q and K."""

from functools import partial
from typing import Final

from ggsched_llm.architecture import Architecture
from ggsched_llm.spec import block_needs

ARCHITECTURE: Final = Architecture("qwen3", partial(block_needs, has_head_norms=True))
