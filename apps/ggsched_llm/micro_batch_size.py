"""How many tokens a micro-batch has where nobody says it.

A GPU that has all layers reads each weight once for a micro-batch, and larger products keep it
busier: prompts of 8,192 tokens took 0.91 of the time with 2,048 instead of 512 tokens (8B bf16,
H100), 0.82 (gpt-oss 20B) and 0.87 (8B over two GPUs that share layers); a prompt of 4,096 tokens in
one took 0.97 of two of 2,048 (8B bf16, H200). Elsewhere several
micro-batches of a batch are under way at once, on a pipeline or beside experts of a CPU, or nothing
is gained.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.topology.caps import DeviceFacts
from ggsched_llm.memory_need import MemoryNeed
from ggsched_llm.offload import EMBEDDING, Homes
from ggsched_llm.session_options import DEFAULT_STEP, SessionOptions
from ggsched_llm.token_inputs import NEXT_TOKEN

_SIZES: Final = (4096, 2048, 1024)
_SHARE: Final = 0.9
"""Of the memory that was free, which weights, caches and results may take together."""


def larger_steps(
    options: SessionOptions, devices: Sequence[DeviceFacts], homes: Homes, lanes: int
) -> tuple[int, ...]:
    """Return the sizes that are worth considering, the largest first; empty for the default.

    Args:
        devices: Those that homes count.
        homes: Where weights and caches live.
        lanes: Micro-batches that devices which share layers work on at once; 1 for one device.
    """
    used = {d for name, d in homes.devices.items() if name not in (EMBEDDING, NEXT_TOKEN)}
    is_shared = options.split_mode == "tensor"
    if options.n_ubatch is not None or any(devices[d].kind != "gpu" for d in used):
        return ()
    if len(used) > 1 and not is_shared:
        return ()
    most = min(options.n_batch // lanes, options.n_ctx)
    return tuple(n for n in _SIZES if DEFAULT_STEP < n <= most)


def has_room(need: MemoryNeed, logits_nbytes: int, free: Sequence[int]) -> bool:
    """Whether devices have memory for a micro-batch.

    Args:
        need: Of a prompt of that size, weights and caches included.
        logits_nbytes: What logits of each token would take, which some calls ask for.
        free: Bytes of each device before anything of the session was there.
    """
    return all(
        need.least[d].total + logits_nbytes <= _SHARE * nbytes for d, nbytes in enumerate(free)
    )
