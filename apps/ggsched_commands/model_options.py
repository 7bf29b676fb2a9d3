"""Options of the subcommands that open a model, and what they become."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from ggsched.cli.console import messages
from ggsched.cli.options import (
    Override,
    RenamedOption,
    at_least,
    devices_option,
    one_of,
    option,
    overrides,
    shares,
    with_options,
)
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched_commands.expert_options import EXPERT_OPTIONS
from ggsched_commands.fit_options import FIT_OPTIONS, Margin, fit_request
from ggsched_commands.model_file import MODEL_FILE, Value, key_values

if TYPE_CHECKING:
    from ggsched.backend.protocols import Device
    from ggsched.run.store import Progress
    from ggsched.trace.recorder import Recorder
    from ggsched_llm.fit import FitRequest
    from ggsched_llm.load import Model
    from ggsched_llm.session import Session
    from ggsched_llm.spec import CacheType

F = TypeVar("F", bound=Callable[..., Any])
_LOG: Final = logging.getLogger("ggsched")
_DEFAULT_CONTEXT: Final = 4096


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What the options below say.

    Attributes:
        model: Path of the GGUF file.
        devices: Names in order of priority, or None for all.
        n_gpu_layers: ``-ngl``; None for all.
        n_cpu_moe: ``--n-cpu-moe``.
        cpu_moe: ``--cpu-moe``.
        overrides: ``-ot`` in order.
        tensor_split: ``-ts``.
        split_by: ``--split-by``.
        split_mode: ``-sm``.
        tensor_group: ``--tensor-group``; None for all devices.
        placement: ``--placement``.
        n_ctx: ``-c``; 0 for what the model was trained for, within reason.
        n_batch: ``-b``.
        n_ubatch: ``-ub``.
        pipelining: ``--pipeline``.
        pipeline_buffers: ``--pipeline-buffers``; None for the default.
        op_offload: ``--op-offload``.
        expert_staging_buffers: ``--expert-staging-buffers``.
        expert_cache: ``--expert-cache``.
        fit: ``--fit``.
        fit_margin: ``--fit-margin``.
        verify: ``--verify/--no-verify``, None for what the environment says.
        weights: ``--weights``.
        metadata: ``--override-kv`` in order.
        cache_type_k: ``--cache-type-k``.
        cache_type_v: ``--cache-type-v``.
    """

    model: str
    devices: tuple[str, ...] | None
    n_gpu_layers: int | None
    n_cpu_moe: int
    cpu_moe: bool
    overrides: tuple[tuple[Override, ...], ...]
    tensor_split: tuple[float, ...] | None
    split_by: Literal["memory", "cost", "equal"] | None
    split_mode: Literal["layer", "tensor"]
    tensor_group: int | None
    placement: Literal["auto", "ggml", "cost"]
    n_ctx: int
    n_batch: int
    n_ubatch: int
    pipelining: Literal["auto", "on", "off"]
    pipeline_buffers: int | None
    op_offload: Literal["auto", "on", "off"]
    expert_staging_buffers: int
    expert_cache: int
    fit: bool
    fit_margin: Margin
    verify: bool | None
    weights: Literal["expand", "packed"]
    metadata: tuple[tuple[tuple[str, Value], ...], ...]
    cache_type_k: "CacheType"
    cache_type_v: "CacheType"


def _layers(text: str) -> int | None:
    if text in ("all", "auto"):
        return None
    try:
        number = int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a number of layers nor 'all'") from None
    if number == -1:
        return None
    if number < 0:
        raise click.BadParameter(f"{number} layers: a number of layers is not negative")
    return number


def _slots(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is neither a number from 1 on nor 'auto'")
    return int(text)


_OPTIONS: Final = (
    *MODEL_FILE,
    devices_option,
    option(
        "-ngl --gpu-layers --n-gpu-layers n_gpu_layers",
        "Layers on accelerators, counted from the output layer. [default: all]",
        _layers,
        "all",
        metavar="N",
    ),
    option(
        "-ncmoe --n-cpu-moe n_cpu_moe",
        "Keep the experts of the first N blocks on the CPU.",
        at_least(0),
        0,
    ),
    click.option(
        "-cmoe", "--cpu-moe", "cpu_moe", is_flag=True, help="Keep all experts on the CPU."
    ),
    option(
        "-ot --override-tensor overrides",
        "Put matching weights and caches on a device. May be repeated; the first match wins.",
        overrides,
        metavar="REGEX=DEVICE,...",
        multiple=True,
    ),
    option(
        "-ts --tensor-split tensor_split",
        "Shares of the accelerators. [default: what --split-by says; equal with -sm tensor]",
        shares,
        metavar="A,B,...",
    ),
    option(
        "-sm --split-mode split_mode",
        "layer: each layer lives on one device. tensor: devices share each layer, heads and "
        "columns of its matrices, in the shares of -ts.",
        one_of("layer", "tensor"),
        "layer",
    ),
    option(
        "--tensor-group tensor_group",
        "With -sm tensor, devices that share a layer; several groups of them form a pipeline. "
        "[default: all devices]",
        at_least(2),
    ),
    option(
        "--split-by",
        "How layers are divided among accelerators, or among all devices where there are "
        "none; cost: so that the slowest has the least to do. "
        "[default: cost among accelerators of equal memory, else memory]",
        one_of("memory", "cost", "equal"),
    ),
    option(
        "--placement",
        "What decides where nodes run: ggml's rules, which follow weights and layers; or the "
        "least predicted time (cost), which also chooses where weights live. auto: cost for ONNX "
        "models, else ggml.",
        one_of("auto", "ggml", "cost"),
        "auto",
    ),
    option(
        "-c --ctx-size n_ctx",
        "Tokens that the context holds. [default: the model's, at most 4096]",
        at_least(0),
        0,
    ),
    option("-b --batch-size n_batch", "Tokens that are fed at once at most.", at_least(1), 2048),
    option(
        "-ub --ubatch-size n_ubatch",
        "Tokens of one micro-batch, which is one run of a plan.",
        at_least(1),
        512,
    ),
    option(
        "--pipeline pipelining",
        "Several devices work on the micro-batches of a batch at once; auto: where that is "
        "predicted to pay.",
        one_of("auto", "on", "off"),
        "auto",
    ),
    option(
        "--pipeline-buffers",
        "Buffers for what a pipeline hands from device to device. [default: auto, 2]",
        _slots,
        "auto",
        metavar="N",
        cls=RenamedOption,
        old="--slots",
    ),
    *EXPERT_OPTIONS,
    *FIT_OPTIONS,
    option(
        "--override-kv metadata",
        "Replace a key of the metadata; TYPE is int, float, bool or str. May be repeated.",
        key_values,
        metavar="KEY=TYPE:VALUE,...",
        multiple=True,
    ),
    click.option(
        "--verify/--no-verify",
        "verify",
        default=None,
        help="Verify each plan and check it for races before it runs. [default: as "
        "GGSCHED_VERIFY and GGSCHED_SANITIZE say, which is to do so]",
    ),
    option(
        "--weights",
        "packed: keep the file's types. expand: all weights become f32 when loaded.",
        one_of("packed", "expand"),
        "packed",
    ),
    *(
        click.option(
            f"-ct{letter}",
            f"--cache-type-{letter}",
            f"cache_type_{letter}",
            type=click.Choice(["auto", "f32", "f16", "bf16", "q8_0"]),
            default="auto",
            show_default=True,
            help=f"Type of {what} in the KV cache; keys and values have one type. auto: f16, "
            "and f32 for models in f32.",
        )
        for letter, what in (("k", "keys"), ("v", "values"))
    ),
)


def model_options(function: F) -> F:
    """Add the options, handed on as keyword arguments of ``ModelOptions``' fields."""
    return with_options(function, _OPTIONS)


memory_check_option = click.option(
    "--memory-check/--no-memory-check",
    "checks_memory",
    default=True,
    show_default=True,
    help="Before anything is loaded, refuse what exceeds the memory that is free.",
)
"""For commands that load a model."""


def open_session(
    options: ModelOptions,
    settings: Settings,
    progress: "Progress | None" = None,
    recorder: "Recorder | None" = None,
    devices: "Sequence[str] | Sequence[Device] | None" = None,
    n_parallel: int = 1,
    n_ctx: int = 0,
    expected: "Callable[[Model], tuple[int, int]] | None" = None,
) -> "Session":
    """Open model and devices: those of the options, unless others are given.

    ``n_parallel`` is how many sequences there may be at once, ``n_ctx`` the context that counts
    where the options leave it open; 0 for the model's. ``expected`` returns the tokens of the
    prompt and of the answer for which default devices are chosen.

    Raises:
        ModelError: the file is not a model that can be run.
        UsageError: options that make no sense for this model or these devices.
        BackendUnavailable: a device that is not there.
    """
    from ggsched.passes.experts.policy import ExpertPolicy
    from ggsched_llm.load import load_model
    from ggsched_llm.offload import Offload, OverrideRule
    from ggsched_llm.session import Session, SessionOptions

    metadata = dict(pair for pairs in options.metadata for pair in pairs)
    model = load_model(options.model, weights=options.weights, overrides=metadata)
    hp, n_ctx = model.hparams, 0 if options.n_ctx else n_ctx
    offload = Offload(
        n_gpu_layers=options.n_gpu_layers,
        n_cpu_moe=hp.n_layer if options.cpu_moe else options.n_cpu_moe,
        tensor_split=options.tensor_split,
        split_by=options.split_by,
        overrides=tuple(
            OverrideRule(o.pattern, o.device) for rules in options.overrides for o in rules
        ),
        experts=ExpertPolicy(
            options.op_offload, options.expert_staging_buffers, options.expert_cache
        ),
    )
    if options.verify is not None:
        settings = replace(
            settings, verify=options.verify, sanitize="plan" if options.verify else "off"
        )
    sizes = SessionOptions(
        n_ctx=n_ctx or _context(options.n_ctx, model),
        n_batch=options.n_batch,
        n_ubatch=options.n_ubatch,
        pipelining=options.pipelining,
        pipeline_buffers=options.pipeline_buffers,
        offload=offload,
        placement=options.placement,
        split_mode=options.split_mode,
        group_size=options.tensor_group,
        fit=_fit(options, model, n_ctx) if options.fit else None,
        cache_type=_cache_type(options),
        n_parallel=n_parallel,
        expected=None if expected is None else expected(model),
    )
    chosen = options.devices if devices is None else devices
    session = Session(model, chosen, sizes, settings=settings, progress=progress, recorder=recorder)
    try:
        _log_session(session)
        _remark(session, options)
    except BaseException:
        session.close()
        raise
    return session


def _fit(options: ModelOptions, model: "Model", n_ctx: int) -> "FitRequest":
    return fit_request(
        n_ctx or _context(options.n_ctx, model),
        options.fit_margin,
        is_context_given=bool(options.n_ctx or n_ctx),
        are_layers_given=options.n_gpu_layers is not None,
        are_experts_given=bool(options.cpu_moe or options.n_cpu_moe),
    )


def _cache_type(options: ModelOptions) -> "CacheType":
    """Return the one type of keys and values."""
    asked = {options.cache_type_k, options.cache_type_v} - {"auto"}
    if len(asked) > 1:
        k, v = options.cache_type_k, options.cache_type_v
        raise UsageError(
            f"--cache-type-k {k} with --cache-type-v {v}",
            why="attention takes keys and values of one type",
            hint=f"use --cache-type-k {k} --cache-type-v {k}",
        )
    return options.cache_type_v if options.cache_type_k == "auto" else options.cache_type_k


def _log_session(session: "Session") -> None:
    """Say what was chosen, and why."""
    if session.fit is not None:
        for line in session.fit.reasons:
            messages().print(line)


def _context(n_ctx: int, model: "Model") -> int:
    trained = model.hparams.n_ctx_train
    if not n_ctx:
        return min(trained, _DEFAULT_CONTEXT)
    if n_ctx > trained:
        _LOG.warning("a context (-c) of %d tokens is more than the %d of training", n_ctx, trained)
    return n_ctx


def _remark(session: "Session", options: ModelOptions) -> None:
    """Say what was requested and has no effect."""
    from ggsched_llm.offload import check_caches, stages

    if session.homes.unused:
        raise UsageError(
            f"-ot {session.homes.unused[0]} matches no tensor",
            hint="ggsched plan MODEL --verbose lists the tensors and where they live",
        )
    if (options.cpu_moe or options.n_cpu_moe) and not session.model.hparams.n_expert:
        _LOG.warning("--n-cpu-moe has no effect: the model has no experts")
    devices = session.scheduler.topology.devices
    if options.n_gpu_layers and not stages(devices, session.options.offload):
        names = ", ".join(d.name for d in devices)
        _LOG.warning("-ngl has no effect: %s: no accelerator among the devices", names)
    if remark := check_caches(session.homes, session.spec, devices):
        _LOG.warning("-ngl: %s", remark)
