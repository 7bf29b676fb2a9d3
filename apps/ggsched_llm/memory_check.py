"""Whether a run fits, before anything is loaded; if not, what would."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

from ggsched.errors import GgschedError, OutOfDeviceMemory
from ggsched.plan.splits import HOST
from ggsched_llm.fit import LEAST_CONTEXT, Fit, FitRequest, lacking_text, shortage
from ggsched_llm.homes import fit_options
from ggsched_llm.load import load_model
from ggsched_llm.offload import source_name
from ggsched_llm.sampling import Sampling
from ggsched_llm.session import Session
from ggsched_llm.spec import ModelSpec
from ggsched_shard.names import part_of

_FIRST_STEPS: Final = 2
"""Tokens that are looked at after the prompt: later steps need little more."""


def check_memory(
    session: Session,
    n_prompt: int,
    *,
    all_logits: bool = False,
    sampling: Sampling | None = None,
) -> None:
    """Raise if weights, KV cache, and the results of a prompt and a step exceed free memory.

    Weights that a device uses where the file is mapped take no memory of their own. The plans that
    are made for this are those that the run uses.

    Args:
        session: Nothing of it need be loaded.
        n_prompt: Tokens of the prompt.
        all_logits: Whether each token of the prompt gets logits.
        sampling: Greedy where not given.

    Raises:
        OutOfDeviceMemory: it does not fit; the hint names options with which it would.
    """
    n_prompt = min(n_prompt, session.options.n_ctx)
    missing = memory_shortage(session, n_prompt, all_logits=all_logits, sampling=sampling)
    if not missing:
        _check_draft(session, n_prompt, all_logits=all_logits, sampling=sampling)
        return
    raise OutOfDeviceMemory(
        "the model does not fit the memory that is free",
        where=session.model.file.path,
        why=f"{lacking_text(missing)} are missing",
        hint=_advice(session, all_logits)
        if session.sharing is None
        else "let --fit choose, or take more devices, a smaller -c or other shares (-ts)",
    )


def memory_shortage(
    session: Session, n_prompt: int, *, all_logits: bool, sampling: Sampling | None = None
) -> dict[str, int]:
    """Return by device the bytes that are missing for a prompt and a step; empty if it fits."""
    used = _used(session, n_prompt, all_logits=all_logits, sampling=sampling)
    return shortage(session.scheduler.topology, session.scheduler.free_nbytes(), used, {})


def _check_draft(
    session: Session, n_prompt: int, *, all_logits: bool, sampling: Sampling | None
) -> None:
    """Raise if a draft model does not fit beside the session's model, which fits alone."""
    if session.draft is None or session.draft.session is session:
        return
    draft = cast(Session, session.draft.session)
    used = _used(draft, n_prompt, all_logits=False, sampling=sampling)
    ours = _used(session, n_prompt, all_logits=all_logits, sampling=sampling)
    names = {facts.name: d for d, facts in enumerate(session.scheduler.topology.devices)}
    for d, facts in enumerate(draft.scheduler.topology.devices):
        used[d] = used.get(d, 0) + ours.get(names.get(facts.name, -2), 0)
    used[HOST] = used.get(HOST, 0) + ours.get(HOST, 0)
    scheduler = draft.scheduler
    if missing := shortage(scheduler.topology, scheduler.free_nbytes(), used, {}):
        raise OutOfDeviceMemory(
            "the draft model does not fit beside the model",
            where=draft.model.file.path,
            why=f"{lacking_text(missing)} are missing",
            hint="use a smaller -c, other --draft-devices or no draft",
        )


def _used(
    session: Session, n_prompt: int, *, all_logits: bool, sampling: Sampling | None
) -> dict[int, int]:
    """Return the bytes of each device for a prompt and a step, without files that are mapped."""
    need = session.memory_need(n_prompt, _FIRST_STEPS, all_logits=all_logits, sampling=sampling)
    mapped = _mapped_nbytes(session)
    return {d: n.total - mapped.get(d, 0) for d, n in need.least.items()}


def _mapped_nbytes(session: Session) -> dict[int, int]:
    """Return by device the bytes of weights that it uses where the file is mapped."""
    mapped: dict[int, int] = {}
    devices, file = session.scheduler.topology.devices, session.model.file
    spec, shared = session.spec, session.sharing
    for name, home in session.homes.devices.items():
        source = name if shared is None else part_of(name)[0]
        weight = spec.weights.get(source)
        if weight is None or not devices[home].imports_host_memory:
            continue
        stored = file.tensors[source_name(spec, source)]
        is_stored = weight.dtype is stored.dtype and stored.is_mapped
        if is_stored and (shared is None or shared.is_mapped(name)):
            nbytes = weight.nbytes if shared is None else shared.nbytes(name)
            mapped[home] = mapped.get(home, 0) + nbytes
    return mapped


def _advice(session: Session, all_logits: bool) -> str:
    """Return options with which the model would fit."""
    options = session.options
    found: tuple[int, str] | None = None
    closest = ""
    for words, spec in _specs(session):
        try:
            fit = _fit(session, spec, all_logits)
        except GgschedError as error:
            closest = f"{error.why}{words and f' with{words}'}"
            continue
        if found is None or fit.n_ctx > found[0]:
            found = (fit.n_ctx, f"--fit -c {fit.n_ctx}{words}")
            if fit.n_ctx == options.n_ctx:
                break
    if found is not None:
        chosen_by_fit = ("-ngl", "--n-cpu-moe", "-ts", "--placement")
        words = ", ".join(name for name in options.said if name in chosen_by_fit)
        return f"it would fit with: {found[1]}{words and f' instead of {words}'}"
    return f"nothing fits: {closest}; take a smaller model or more devices"


def _specs(session: Session) -> Iterator[tuple[str, ModelSpec]]:
    """Yield the model as it is to be loaded, then with the file's types."""
    yield "", session.model.spec
    own = session.model.spec
    packed = load_model(session.model.file.path, head=own.hparams.predicts).spec
    if packed.weights != own.weights:
        yield " --weights packed", packed


def _fit(session: Session, spec: ModelSpec, all_logits: bool) -> Fit:
    """Return what ``--fit`` would choose.

    Raises:
        OutOfDeviceMemory: nothing fits.
    """
    options = session.options
    offload = replace(
        options.offload, n_gpu_layers=None, n_cpu_moe=0, tensor_split=None, stage_layers=None
    )
    n_draft = session.batches.n_draft
    request = FitRequest(LEAST_CONTEXT, all_logits=all_logits, n_draft=n_draft)
    wanted = replace(options, fit=request, offload=offload, placement="ggml")
    return fit_options(spec, session.scheduler, session.rates, wanted)[1]
