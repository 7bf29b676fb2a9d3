"""What a model's architecture has to declare: its weights, its blocks, its keys."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from ggsched.ir.tensor import Tensor
from ggsched_llm.hparams import HParams
from ggsched_llm.ignored_keys import Ignored
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed


def own_width(keys: Keys, used: int) -> int:
    """Return the width of an expert, which the file must say."""
    return keys.count("expert_feed_forward_length", 1 << 24)


def split_width(keys: Keys, used: int) -> int:
    """Return the width of an expert; the experts in use share that of a network by default."""
    if keys.get("expert_feed_forward_length") is None:
        return max(1, keys.count("feed_forward_length", 1 << 24) // used)
    return own_width(keys, used)


def whole_width(keys: Keys, used: int) -> int:
    """Return the width of an expert, by default that of a network."""
    width = keys.count("expert_feed_forward_length", 1 << 24, default=0, least=0)
    return width or keys.count("feed_forward_length", 1 << 24)


def shared_width(keys: Keys) -> int:
    """Return the width of the shared expert, by default that of a network."""
    width = keys.get("feed_forward_length")
    default = width if type(width) is int and width > 0 else None
    return keys.count("expert_shared_feed_forward_length", 1 << 24, default)


def plain_block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply attention and a network, or experts, to the hidden states x (T, n_embd)."""
    ffn = partial(kit.experts, router="all") if kit.hp.n_expert else kit.feed_forward
    return kit.block(x, layer, "ffn_norm", ffn)


def _unchanged(keys: Keys, hp: HParams) -> HParams:
    return hp


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture.

    Attributes:
        name: Value of ``general.architecture``, and first part of its keys.
        needs: The weights of all blocks.
        block: Adds one block to a graph.
        pairing: Elements of a head that are rotated together.
        experts: Whether blocks have experts; ``some``: if ``expert_count`` says so.
        expert_width: Width of an expert, from the metadata and the experts per token.
        scalings: Further values of ``rope.scaling.type`` that need no factor.
        has_latent: Whether keys and values share a latent row, of other widths than heads.
        has_attention: Whether blocks attend and have a network; if not, their keys are not read.
        windows: Which blocks a sliding window holds for: ``all``, those that ``refine`` reads
            (``own``), or those that the file lists.
        renormalises: Whether the weights of the chosen experts add up to one by default.
        softmax_of_chosen: Whether experts are chosen by logits and weighted by a softmax over the
            chosen ones, whatever the metadata say about routing.
        ignored: Keys that have no effect here, beside those of ``ignored_keys``.
        refine: Reads the keys that only this architecture has.
    """

    name: str
    needs: Callable[[HParams], Iterator[WeightNeed]]
    block: Callable[[ModelBuilder, Tensor, int], Tensor] = plain_block
    pairing: Literal["adjacent", "halves"] = "halves"
    experts: Literal["none", "some", "all"] = "none"
    expert_width: Callable[[Keys, int], int] = own_width
    scalings: frozenset[str] = frozenset()
    has_latent: bool = False
    has_attention: bool = True
    windows: Literal["all", "own", "listed"] = "listed"
    renormalises: bool = True
    softmax_of_chosen: bool = False
    ignored: Mapping[str, Ignored] = field(default_factory=dict)
    refine: Callable[[Keys, HParams], HParams] = _unchanged
