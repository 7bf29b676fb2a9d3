"""What a session is to be like."""

from dataclasses import dataclass, field
from typing import Literal

from ggsched.errors import UsageError
from ggsched.passes.place import PlacementPolicy
from ggsched.passes.placement.automatic import Automatic
from ggsched.passes.placement.ggml import GgmlRules
from ggsched.passes.placement.named import placement_policy
from ggsched_llm.batches import Pipelining
from ggsched_llm.fit import FitRequest
from ggsched_llm.offload import Offload
from ggsched_llm.spec import CACHE_DTYPES, CacheType

SplitMode = Literal["layer", "tensor"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Sizes of a session.

    Attributes:
        n_ctx: Rows of the KV cache: the maximum number of tokens of the sequence.
        n_batch: Maximum number of tokens that are fed at once.
        n_ubatch: Maximum number of tokens of one micro-batch, which is one run of a plan.
        offload: Where weights and caches live.
        pipelining: Whether the micro-batches of a batch run as one graph, so that several devices
            work at once; ``auto`` where that is predicted to pay.
        pipeline_buffers: Buffers for each tensor that a stage passes to the next; None for the
            default.
        plans_kept: Number of plans whose memory is kept.
        fit: Which options to choose so that everything fits into free memory; the chosen values
            replace those given here. None chooses nothing.
        placement: Decides where nodes run: ``"ggml"``, ``"cost"`` or a policy. All but ``"ggml"``
            also choose homes of weights and caches, for a decoding step with a full context, and
            use only the overrides and experts of ``offload``.
        cache_type: Element type of the KV cache; ``auto`` is f16, and f32 for models in f32.
        split_mode: ``layer``: a layer lives on one device; ``tensor``: devices share each layer, in
            shares of ``offload.tensor_split`` (see ``ggsched_llm.tensor_split``).
        group_size: With ``tensor``, how many devices share a layer; several groups of them form a
            pipeline. None for all devices.
        n_parallel: Maximum number of sequences, see ``Session.sequences``; each has
            ``n_ctx // n_parallel`` rows of the cache.
        expected: Tokens of the prompt and of the answer for which default devices are compared, as
            far as the context holds them; None for 512 and 128.

    Examples:
        >>> from ggsched_llm.session import SessionOptions
        >>> options = SessionOptions(n_ctx=256, cache_type="f16")
    """

    n_ctx: int = 512
    n_batch: int = 2048
    n_ubatch: int = 512
    offload: Offload = field(default_factory=Offload)
    pipelining: Pipelining = "auto"
    pipeline_buffers: int | None = None
    plans_kept: int = 16
    fit: FitRequest | None = None
    placement: PlacementPolicy | str = "ggml"
    cache_type: CacheType = "auto"
    split_mode: SplitMode = "layer"
    group_size: int | None = None
    n_parallel: int = 1
    expected: tuple[int, int] | None = None

    @property
    def step(self) -> int:
        """Tokens of one micro-batch at most."""
        return min(self.n_ubatch, self.n_batch)

    def check(self) -> None:
        """Refuse sizes that make no sense, and options that others would ignore.

        Raises:
            UsageError: a size below 1; layers or ``--fit`` beside a policy that chooses homes, or
                beside devices that share layers.

        Examples:
            >>> options.check()
        """
        for name, value in (("-c", self.n_ctx), ("-b", self.n_batch), ("-ub", self.n_ubatch)):
            if value < 1:
                raise UsageError(f"{name} {value}", why="it must be at least 1")
        if not 1 <= self.n_parallel <= self.n_ctx:
            raise UsageError(
                f"{self.n_parallel} sequences in a cache of {self.n_ctx} rows",
                why="each has at least one row",
            )
        if self.pipelining not in ("auto", "on", "off"):
            raise UsageError(f"pipelining {self.pipelining!r}", hint="use auto, on or off")
        if self.pipeline_buffers is not None and self.pipeline_buffers < 1:
            raise UsageError(f"{self.pipeline_buffers} pipeline buffers", why="it needs at least 1")
        if self.cache_type not in ("auto", *CACHE_DTYPES):
            known = ", ".join(("auto", *CACHE_DTYPES))
            raise UsageError(f"a KV cache of {self.cache_type!r}", hint=f"use one of {known}")
        if self.split_mode not in ("layer", "tensor"):
            raise UsageError(f"-sm {self.split_mode}", hint="use layer or tensor")
        if self.group_size is not None and self.split_mode != "tensor":
            raise UsageError(
                f"--tensor-group {self.group_size} with -sm layer",
                why="a layer lives on one device then",
                hint="add -sm tensor",
            )
        if self.is_by_layers:
            return
        given = self.offload
        said = [
            name
            for name, is_said in (
                ("-ngl", given.n_gpu_layers is not None or given.stage_layers is not None),
                ("--n-cpu-moe", given.n_cpu_moe > 0),
                ("-ts", given.tensor_split is not None),
                ("--split-by", given.split_by is not None),
                ("--fit", self.fit is not None),
            )
            if is_said
        ]
        if said:
            raise UsageError(
                f"{', '.join(said)} with --placement {placement_policy(self.placement).key}",
                why="that policy chooses the homes of weights itself",
                hint="leave one of them out; -ot fixes single tensors with every policy",
            )

    @property
    def leaves_devices_open(self) -> bool:
        """Whether nothing is said that divides the model over several devices."""
        given = self.offload
        said = (
            given.n_gpu_layers,
            given.tensor_split,
            given.split_by,
            given.stage_layers,
            self.fit,
        )
        is_divided = given.n_cpu_moe > 0 or bool(given.overrides) or self.pipelining == "on"
        is_divided = is_divided or self.split_mode == "tensor"
        return self.is_by_layers and not is_divided and all(part is None for part in said)

    @property
    def is_by_layers(self) -> bool:
        """Whether homes follow the rules for layers (``-ngl`` and others)."""
        return isinstance(placement_policy(self.placement), GgmlRules | Automatic)
