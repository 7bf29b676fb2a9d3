"""``ggsched plan --memory``: what a run takes on each device, before anything is loaded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ggsched.cli.console import output, write_json
from ggsched.cli.options import at_least, option, tokens_to_generate, with_options
from ggsched.errors import UsageError
from ggsched.plan.splits import HOST

if TYPE_CHECKING:
    from ggsched_llm.memory_need import MemoryNeed
    from ggsched_llm.session import Session

F = TypeVar("F", bound=Callable[..., Any])
_KINDS: Final = ("weights", "states", "caches", "arenas", "slots", "staging")
_LABELS: Final = {"states": "KV cache", "caches": "cached weights"}
_LINE, _LABEL, _WIDTH = 80, 16, 16
"""Columns of a line, of a row's label, and of a number at least."""

_OPTIONS: Final = (
    click.option(
        "--memory",
        is_flag=True,
        help="Print what a run takes on each device, in bytes; nothing is loaded.",
    ),
    option(
        "--prompt-tokens",
        "For --memory: tokens of the prompt. [default: what fills the context]",
        at_least(1),
    ),
    option(
        "-n --predict --n-predict n_predict",
        "For --memory: tokens that are generated greedily; -1 or -2: what fills the context.",
        tokens_to_generate,
        "32",
        metavar="N",
    ),
)


def memory_options(function: F) -> F:
    """Add the options, as ``memory``, ``prompt_tokens`` and ``n_predict``."""
    return with_options(function, _OPTIONS)


def print_memory(
    session: "Session", prompt_tokens: int | None, n_predict: int, *, as_json: bool
) -> None:
    """Print what the run of a prompt takes; end with exit code 1 where a device has less.

    Raises:
        UsageError: a prompt that the context does not hold.
    """
    n_ctx = session.options.n_ctx
    if n_predict < 0:
        prompt_tokens = prompt_tokens or 1
        n_predict = max(0, n_ctx - prompt_tokens) + 1
    if prompt_tokens is None:
        prompt_tokens = max(1, n_ctx - max(0, n_predict - 1))
    if prompt_tokens > n_ctx:
        raise UsageError(
            f"{prompt_tokens} tokens do not fit the context",
            why=f"it holds {n_ctx}",
            hint="use a larger -c, or fewer --prompt-tokens",
        )
    need = session.memory_need(prompt_tokens, n_predict)
    free = session.scheduler.free_nbytes()
    drafts = _drafts(session)
    taken = {d: need.least[d].total + drafts.get(name, 0) for d, name in _names(session)}
    short = [name for d, name in _names(session) if d != HOST and taken[d] > free[d]]
    if as_json:
        write_json({"fits": not short, **_json(session, need, free, prompt_tokens, n_predict)})
    else:
        console = output()
        for line in _lines(session, need, free, prompt_tokens, n_predict):
            console.print(line)
        console.print(
            f"does not fit: {', '.join(short)} (--fit looks for a way)"
            if short
            else "fits: plans that are kept give way where memory is short"
        )
    if short:
        click.get_current_context().exit(1)


def _json(
    session: "Session", need: "MemoryNeed", free: Sequence[int], prompt: int, n_predict: int
) -> dict[str, Any]:
    devices = {}
    drafts = _drafts(session)
    for d, name in _names(session):
        peak = need.peak[d]
        devices[name] = {
            **{kind: getattr(peak, kind) for kind in _KINDS},
            "total": peak.total,
            "one_plan_at_a_time": need.least[d].total,
            "largest_buffer": need.largest[d],
            **({"draft": drafts.get(name, 0)} if drafts else {}),
        }
        if d != HOST:
            facts = session.scheduler.topology.devices[d]
            devices[name]["memory"] = facts.memory_nbytes
            devices[name]["free"] = free[d]
    return {
        "devices": devices,
        "n_ctx": session.options.n_ctx,
        "n_ubatch": session.batches.step,
        "plans": need.plans,
        "plans_kept": need.kept,
        "prompt_tokens": prompt,
        "predict": n_predict,
        "rates": session.rates.source,
    }


def _lines(
    session: "Session", need: "MemoryNeed", free: Sequence[int], prompt: int, n_predict: int
) -> Iterator[str]:
    options = session.options
    yield (
        f"context {options.n_ctx}, micro-batches of {session.batches.step}: "
        f"a prompt of {prompt} tokens and {n_predict} generated"
    )
    yield f"{need.plans} plans, {need.kept} of them kept at once at most"
    names, drafts = _names(session), _drafts(session)
    digits = max(len(f"{n:,}") for n in (*free, *(need.peak[d].total for d, _ in names)))
    width = max(_WIDTH, digits + 1)
    columns = (_LINE - _LABEL) // width
    for start in range(0, len(names), columns):
        yield ""
        yield from _table(need, free, names[start : start + columns], width, drafts)
    yield ""


def _table(
    need: "MemoryNeed",
    free: Sequence[int],
    columns: Sequence[tuple[int, str]],
    width: int,
    drafts: Mapping[str, int],
) -> Iterator[str]:
    def row(label: str, cells: Sequence[str]) -> str:
        return (f"{label:<{_LABEL}}" + "".join(f"{cell:>{width}}" for cell in cells)).rstrip()

    yield row("bytes", [name for _, name in columns])
    for kind in _KINDS:
        if kind == "caches" and not any(need.peak[d].caches for d, _ in columns):
            continue
        label = _LABELS.get(kind, kind)
        yield row(label, [f"{getattr(need.peak[d], kind):,}" for d, _ in columns])
    yield row("total", [f"{need.peak[d].total:,}" for d, _ in columns])
    yield row("one plan at once", [f"{need.least[d].total:,}" for d, _ in columns])
    if drafts:
        yield row("draft model", [f"{drafts.get(name, 0):,}" for _, name in columns])
    yield row("free", ["" if d == HOST else f"{free[d]:,}" for d, _ in columns])


def _drafts(session: "Session") -> Mapping[str, int]:
    """Return the bytes that a draft model takes beside, by device; none without one."""
    return {} if session.draft is None else session.draft.nbytes()


def _names(session: "Session") -> list[tuple[int, str]]:
    """Return device indices with names, and host memory last."""
    devices = session.scheduler.topology.devices
    return [*((i, facts.name) for i, facts in enumerate(devices)), (HOST, "host memory")]
