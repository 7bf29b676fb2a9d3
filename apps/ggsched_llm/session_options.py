"""What a session is to be like."""

from dataclasses import dataclass, field
from typing import Final, Literal

from ggsched.errors import UsageError
from ggsched.flags import HOMES, PIPELINES, check_values, flag
from ggsched.passes.place import PlacementPolicy
from ggsched.passes.placement.automatic import Automatic
from ggsched.passes.placement.ggml import GgmlRules
from ggsched.passes.placement.named import placement_policy
from ggsched_llm.batches import Pipelining
from ggsched_llm.expert_sharing import ExpertOptions
from ggsched_llm.fit import FitRequest
from ggsched_llm.offload import Offload
from ggsched_llm.spec import CACHE_DTYPES, CacheType

SplitMode = Literal["layer", "tensor"]

DEFAULT_STEP: Final = 512
"""Tokens of a micro-batch where nothing is said; see ``ggsched_llm.micro_batch_size``."""


def _number(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is neither a number from 1 on nor 'auto'")
    return int(text)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Sizes of a session.

    Attributes:
        n_ctx: Rows of the KV cache.
        offload: Where weights and caches live.
        n_ubatch: None for as many as are predicted to pay.
        pipeline_buffers: For each tensor that a stage passes to the next; None for the default.
        plans_kept: Number of plans whose memory is kept.
        fit: Which options to choose so that everything fits into free memory; the chosen values
            replace those given here. None chooses nothing.
        placement: ``"ggml"``, ``"cost"`` or a policy. All but ``"ggml"`` also choose homes of
            weights and caches, for a decoding step with a full context, and use only the overrides
            and experts of ``offload``.
        cache_type: Element type of the KV cache; ``auto`` is f16, and f32 for models in f32.
        split_mode: See ``ggsched_llm.tensor_split``.
        experts: How devices that share layers divide their experts.
        group_size: None for all devices.
        n_parallel: Maximum number of sequences, see ``Session.sequences``; each has
            ``n_ctx // n_parallel`` rows of the cache.
        expected: Tokens of the prompt and of the answer for which default devices are compared, as
            far as the context holds them; None for 512 and 128.

    Examples:
        >>> from ggsched_llm.session import SessionOptions
        >>> options = SessionOptions(n_ctx=256, cache_type="f16")
    """

    n_ctx: int = flag(
        512, "-c --ctx-size", 0,
        "Tokens that the context holds. [default: the model's, at most 4096]",
        heading="Sizes", unset=0,
    )  # fmt: skip
    n_batch: int = flag(
        2048, "-b --batch-size", 1, "Tokens that are fed at once at most.", heading="Sizes",
    )  # fmt: skip
    n_ubatch: int | None = flag(
        None, "-ub --ubatch-size", _number,
        "Tokens of one micro-batch, which is one run of a plan. [default: auto, 512; up to 4096, "
        "but no more than --batch-size, where GPUs have all layers and memory for it]",
        heading="Sizes", metavar="N",
    )  # fmt: skip
    offload: Offload = field(default_factory=Offload)
    pipelining: Pipelining = flag(
        "auto", "--pipeline", ("auto", "on", "off"),
        "Several devices work on the micro-batches of a batch at once; auto: where that is "
        "predicted to pay.",
        heading=PIPELINES,
    )  # fmt: skip
    pipeline_buffers: int | None = flag(
        None, "--pipeline-buffers", _number,
        "Buffers for what a pipeline hands from device to device. [default: auto, 2]",
        heading=PIPELINES, metavar="N", old="--slots",
    )  # fmt: skip
    plans_kept: int = 16
    fit: FitRequest | None = None
    placement: PlacementPolicy | str = flag(
        "ggml", "--placement", ("auto", "ggml", "cost", "autotune"),
        "What decides where nodes run: ggml's rules, which follow weights and layers; or the "
        "least predicted time (cost), which also chooses where weights live. auto: cost for ONNX "
        "models, else ggml; autotune: auto, and the first run of an ONNX model measures each "
        "device alone.",
        heading=HOMES, unset="auto",
    )  # fmt: skip
    cache_type: CacheType = "auto"
    split_mode: SplitMode = flag(
        "layer", "-sm --split-mode", ("layer", "tensor"),
        "layer: each layer lives on one device. tensor: devices share each layer, heads and "
        "columns of its matrices, in the shares of -ts.",
        heading=HOMES,
    )  # fmt: skip
    experts: ExpertOptions = field(default_factory=ExpertOptions)
    group_size: int | None = flag(
        None, "--tensor-group", 2,
        "With -sm tensor, devices that share a layer; several groups of them form a pipeline. "
        "[default: all devices]",
        heading=HOMES,
    )  # fmt: skip
    n_parallel: int = 1
    expected: tuple[int, int] | None = None

    @property
    def step(self) -> int:
        """Tokens of one micro-batch at most; where nothing is said, before more are considered."""
        return min(self.n_ubatch or DEFAULT_STEP, self.n_batch)

    def check(self) -> None:
        """Refuse sizes that make no sense, and options that others would ignore.

        Raises:
            UsageError: a size below 1; layers or ``--fit`` beside a policy that chooses homes, or
                beside devices that share layers.

        Examples:
            >>> options.check()
        """
        check_values(self)
        check_values(self.experts)
        if self.n_ctx < 1:
            raise UsageError(f"-c {self.n_ctx}", why="it must be at least 1")
        if not 1 <= self.n_parallel <= self.n_ctx:
            raise UsageError(
                f"{self.n_parallel} sequences in a cache of {self.n_ctx} rows",
                why="each has at least one row",
            )
        if self.n_ubatch is not None and self.n_ubatch < 1:
            raise UsageError(f"-ub {self.n_ubatch}", why="it must be at least 1")
        if self.pipeline_buffers is not None and self.pipeline_buffers < 1:
            raise UsageError(f"{self.pipeline_buffers} pipeline buffers", why="it needs at least 1")
        if self.cache_type not in ("auto", *CACHE_DTYPES):
            known = ", ".join(("auto", *CACHE_DTYPES))
            raise UsageError(f"a KV cache of {self.cache_type!r}", hint=f"use one of {known}")
        if self.group_size is not None and self.split_mode != "tensor":
            raise UsageError(
                f"--tensor-group {self.group_size} with -sm layer",
                why="a layer lives on one device then",
                hint="add -sm tensor",
            )
        if self.experts.said and self.split_mode != "tensor":
            raise UsageError(
                f"{' and '.join(self.experts.said)} with -sm layer",
                why="a layer lives on one device then, with its experts",
                hint="add -sm tensor, or name tensors and devices with -ot",
            )
        said = [name for name in self.said if name not in ("-ot", "--placement")]
        if said and not self.is_by_layers:
            raise UsageError(
                f"{', '.join(said)} with --placement {placement_policy(self.placement).key}",
                why="that policy chooses the homes of weights itself",
                hint="leave one of them out; -ot fixes single tensors with every policy",
            )

    @property
    def said(self) -> tuple[str, ...]:
        """The options by which the caller decides where layers and experts live."""
        given = self.offload
        is_counted = given.stage_layers is not None and not given.stage_reasons
        said = {
            "-ngl": given.n_gpu_layers is not None or is_counted,
            "--n-cpu-moe": given.n_cpu_moe > 0,
            "-ts": given.tensor_split is not None,
            "-ot": bool(given.overrides),
            "--split-by": given.split_by is not None,
            "--placement": not self.is_by_layers,
            "--fit": self.fit is not None,
        }
        return tuple(name for name, is_said in said.items() if is_said)

    @property
    def leaves_devices_open(self) -> bool:
        """Whether nothing is said that divides the model over several devices."""
        return not self.said and self.pipelining != "on" and self.split_mode == "layer"

    @property
    def is_by_layers(self) -> bool:
        """Whether homes follow the rules for layers (``-ngl`` and others)."""
        return isinstance(placement_policy(self.placement), GgmlRules | Automatic)
