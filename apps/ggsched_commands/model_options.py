"""Options of the subcommands that open a model, and what they become."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ggsched.cli.console import messages
from ggsched.cli.options import (
    OwnOption,
    devices_option,
    one_of,
    option,
    record_of,
    record_options,
    switch,
    verified,
    with_options,
)
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.flags import HOMES
from ggsched_commands.model_file import MODEL_FILE, key_values, path_of
from ggsched_llm.draft_options import DraftOptions
from ggsched_llm.fit import LEAST_CONTEXT, FitRequest
from ggsched_llm.session_options import SessionOptions

if TYPE_CHECKING:
    from ggsched.backend.protocols import Device
    from ggsched.run.store import Progress
    from ggsched.trace.recorder import Recorder
    from ggsched_llm.load import Model
    from ggsched_llm.session import Session
    from ggsched_llm.spec import CacheType

F = TypeVar("F", bound=Callable[..., Any])
_LOG: Final = logging.getLogger("ggsched")
_DEFAULT_CONTEXT: Final = 4096

_OPTIONS: Final = (
    *MODEL_FILE,
    devices_option,
    *record_options(SessionOptions),
    click.option(
        "-cmoe",
        "--cpu-moe",
        "cpu_moe",
        is_flag=True,
        help="Keep all experts on the CPU.",
        cls=OwnOption,
        heading=HOMES,
    ),
    option(
        "--fit",
        "Choose what is not given of -ngl, --n-cpu-moe and -c so that everything fits the "
        "memory that is free, the fastest way by the cost model, and say why; --fit alone is on.",
        switch,
        "off",
        metavar="on|off",
        cls=OwnOption,
        heading=HOMES,
    ),
    *record_options(FitRequest),
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
    """Add the options, whose values ``open_session`` takes by the names of their parameters."""
    return with_options(function, _OPTIONS)


def draft_options(function: F) -> F:
    """Add options of drafts, which ``open_session`` takes where they are given."""
    return with_options(function, [*record_options(DraftOptions)])


memory_check_option = click.option(
    "--memory-check/--no-memory-check",
    "checks_memory",
    default=True,
    show_default=True,
    help="Before anything is loaded, refuse what exceeds the memory that is free.",
)
"""For commands that load a model."""


def open_session(
    given: Mapping[str, Any],
    settings: Settings,
    progress: "Progress | None" = None,
    recorder: "Recorder | None" = None,
    devices: "Sequence[str] | Sequence[Device] | None" = None,
    n_parallel: int = 1,
    n_ctx: int = 0,
    expected: "Callable[[Model], tuple[int, int]] | None" = None,
) -> "Session":
    """Open model and devices: those of the options' values, unless others are given.

    ``n_parallel`` is how many sequences there may be at once, ``n_ctx`` the context that counts
    where the options leave it open; 0 for the model's. ``expected`` returns the tokens of the
    prompt and of the answer for which default devices are chosen.

    Raises:
        ModelError: the file is not a model that can be run.
        UsageError: options that make no sense for this model or these devices.
        BackendUnavailable: a device that is not there.
    """
    from ggsched_llm.load import load_model
    from ggsched_llm.session import Session

    metadata = dict(pair for pairs in given["metadata"] for pair in pairs)
    drafts = record_of(DraftOptions, given) if "draft_model" in given else DraftOptions()
    drafts.check()
    has_head = drafts.spec_type == "draft-mtp"
    model = load_model(given["model"], weights=given["weights"], overrides=metadata, head=has_head)
    draft = model if has_head else None
    if drafts.draft_model is not None:
        path = path_of(drafts.draft_model, click.get_current_context())
        draft = load_model(path, weights=given["weights"])
    n_ctx = given["n_ctx"] or n_ctx
    fit = record_of(FitRequest, given, least_ctx=None if n_ctx else LEAST_CONTEXT)
    options = record_of(
        SessionOptions,
        given,
        n_ctx=_context(given["n_ctx"], model) if given["n_ctx"] or not n_ctx else n_ctx,
        fit=fit if given["fit"] else None,
        cache_type=_cache_type(given["cache_type_k"], given["cache_type_v"]),
        n_parallel=n_parallel,
        expected=None if expected is None else expected(model),
    )
    if given["cpu_moe"]:
        n_blocks = model.hparams.n_layer + model.hparams.predicts
        all_of_them = replace(options.offload, n_cpu_moe=n_blocks)
        options = replace(options, offload=all_of_them)
    session = Session(
        model,
        given["devices"] if devices is None else devices,
        options,
        settings=verified(settings, given["verify"]),
        progress=progress,
        recorder=recorder,
        draft=None if draft is None else (draft, drafts),
    )
    try:
        _log_session(session)
        _remark(session, given)
    except BaseException:
        session.close()
        raise
    return session


def _cache_type(k: "CacheType", v: "CacheType") -> "CacheType":
    """Return the one type of keys and values."""
    if len({k, v} - {"auto"}) > 1:
        raise UsageError(
            f"--cache-type-k {k} with --cache-type-v {v}",
            why="attention takes keys and values of one type",
            hint=f"use --cache-type-k {k} --cache-type-v {k}",
        )
    return v if k == "auto" else k


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


def _remark(session: "Session", given: Mapping[str, Any]) -> None:
    """Say what was requested and has no effect."""
    from ggsched_llm.offload import check_caches, stages

    if session.homes.unused:
        raise UsageError(
            f"-ot {session.homes.unused[0]} matches no tensor",
            hint="ggsched plan MODEL --verbose lists the tensors and where they live",
        )
    if (given["cpu_moe"] or given["n_cpu_moe"]) and not session.model.hparams.n_expert:
        _LOG.warning("--n-cpu-moe has no effect: the model has no experts")
    devices = session.scheduler.topology.devices
    if given["n_gpu_layers"] and not stages(devices, session.options.offload):
        names = ", ".join(d.name for d in devices)
        _LOG.warning("-ngl has no effect: %s: no accelerator among the devices", names)
    if remark := check_caches(session.homes, session.spec, devices):
        _LOG.warning("-ngl: %s", remark)
    if "draft_model" in given and session.draft is None:
        for field in fields(DraftOptions):
            if given[field.name] not in (field.default, "none"):
                name, *_ = field.metadata["flag"].names.split()
                _LOG.warning("%s has no effect without -md", name)
