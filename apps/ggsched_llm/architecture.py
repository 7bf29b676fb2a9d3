"""What a model's architecture has to declare: its weights, its blocks, its keys."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from ggsched.ir.tensor import Tensor
from ggsched_llm.gguf_file import GgufFile
from ggsched_llm.hparams import HParams
from ggsched_llm.ignored_keys import Ignored
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed

_AXES: Final = 4


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


def check_text_sections(keys: Keys) -> None:
    """Refuse sections of a rotation that do not mean for text what there is without them.

    Text, height, width and one more: for text the first three positions are one, the last is 0.
    """
    key = "rope.dimension_sections"
    sections = keys.get(key)
    if isinstance(sections, tuple) and (len(sections) != _AXES or sections[-1] != 0):
        raise keys.fail(key, f"is {sections}", "needs 4, the last of them 0")


def with_dense_blocks(keys: Keys, hp: HParams) -> HParams:
    """Return hyperparameters with the blocks that have no experts, and the shared experts."""
    return replace(
        hp,
        n_dense=keys.count("leading_dense_block_count", 1 << 16, default=0, least=0),
        n_ff_dense=keys.count("feed_forward_length", 1 << 24),
        n_ff_shared=hp.n_ff * keys.count("expert_shared_count", 1 << 12),
    )


def plain_block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply attention and a network, or experts, to the hidden states x (T, n_embd)."""
    ffn = partial(kit.experts, router="all") if kit.hp.n_expert else kit.feed_forward
    return kit.block(x, layer, "ffn_norm", ffn)


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
        routes_by_sigmoid: Whether experts are weighted by sigmoid by default.
        softmax_of_chosen: Whether experts are chosen by logits and weighted by a softmax over the
            chosen ones, whatever the metadata say about routing.
        ignored: Keys that have no effect here, beside those of ``ignored_keys``.
        refine: Reads the keys that only this architecture has.
        adapt: Returns a file with tensors as the blocks want them, where some files differ.
        remember: Writes what attention remembers of normalised hidden states, and no more. None
            where heads that predict further tokens are not supported.
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
    routes_by_sigmoid: bool = False
    softmax_of_chosen: bool = False
    ignored: Mapping[str, Ignored] = field(default_factory=dict)
    refine: Callable[[Keys, HParams], HParams] = lambda _keys, hp: hp
    adapt: Callable[[GgufFile, HParams], GgufFile] = lambda file, _hp: file
    remember: Callable[[ModelBuilder, Tensor, int], None] | None = None
