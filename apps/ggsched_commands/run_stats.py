"""The ``stats`` object of ``ggsched run --json``, and its form for people."""

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from ggsched.errors import DeviceFault, SyncTimeout
from ggsched.plan.stats import plan_stats
from ggsched.units import nbytes_text as nbytes
from ggsched.units import rate_text, seconds_text

if TYPE_CHECKING:
    from ggsched.plan.bundle import Plan
    from ggsched_llm.session import Session

_LOG: Final = logging.getLogger("ggsched")


def session_stats(session: "Session") -> dict[str, Any]:
    """Return numbers about a session; bytes, milliseconds, tokens per second.

    What is said of a plan is said of the one that ran last, which after generation is that of a
    decoding step.
    """
    timing = session.timing
    cache = session.scheduler.plan_cache
    out: dict[str, Any] = {
        "prompt_tokens": timing.prompt_tokens,
        "decode_tokens": timing.decode_tokens,
        "plan_ms": round(1e3 * timing.planning_s, 3),
        "plans_made": cache.misses,
        "setup_ms": round(1e3 * timing.setup_s, 3),
        "pipelined_batches": timing.joined,
        "batches": timing.batches,
        "tokens_per_s": _rate(timing.decode_tokens, timing.decode_s),
        "prompt_tokens_per_s": _rate(timing.prompt_tokens, timing.prompt_s),
        "weight_bytes": _resident(session, "weight"),
        "state_bytes": _resident(session, "state"),
    }
    if session.draft is not None or timing.rounds:
        out["draft"] = {
            "rounds": timing.rounds,
            "drafted_tokens": timing.drafted,
            "accepted_tokens": timing.accepted,
        }
    if session.default_devices is not None:
        out["default_devices"] = asdict(session.default_devices)
    out.update(_expectation(session))
    plan = session.last_plan
    if plan is not None:
        stats = plan_stats(plan)
        tokens = plan.memory.regions[_slot(plan, "positions")].nbytes // 4
        out.update(
            {
                "nodes": stats.nodes,
                "splits": stats.splits,
                "commands": stats.commands,
                "streams": stats.streams,
                "waits": stats.waits,
                "host_syncs": stats.host_syncs,
                "host_syncs_per_token": stats.host_syncs / max(1, tokens),
                "copied_bytes": stats.copied,
                "peer_read_bytes": stats.peer_reads,
                "arena_bytes": stats.compute,
                "arena_lower_bound_bytes": stats.lower_bound,
                "arena_hinted_bound_bytes": stats.hinted_bound,
                "arena_ratio": round(stats.waste, 4),
                "host_bytes": stats.host,
            }
        )
    if experts := _expert_stats(session):
        out["experts"] = experts
    measured = session.scheduler.measured
    if measured:
        out["streams_measured"] = [asdict(m) for m in measured]
    return out


def _resident(session: "Session", kind: str) -> dict[str, int]:
    """Return resident bytes; none where a machine does not answer: the result is there already."""
    try:
        return session.scheduler.resident_nbytes(kind)
    except (DeviceFault, SyncTimeout) as error:
        _LOG.warning("the result is complete, statistics are not: %s", error.one_line())
        return {}


def _expert_stats(session: "Session") -> dict[str, Any]:
    """Return the ledger of expert weights; empty where none went to another device."""
    ledger = session.scheduler.expert_ledger
    if not ledger.accounts:
        return {}
    return {
        "id_reads": ledger.id_reads,
        "cache_bytes": session.scheduler.resident_nbytes("cache"),
        "total": asdict(ledger.total),
        "tensors": ledger.by_tensor(),
    }


def _expert_lines(stats: dict[str, Any]) -> list[str]:
    """Return the ledger for people: one line for all tensors together."""
    experts = stats.get("experts")
    if not experts:
        return []
    t = experts["total"]
    parts = []
    if t["decisions"]:
        parts.append(
            f"{t['chosen_rows']} rows chosen in {experts['id_reads']} decisions, "
            f"{nbytes(t['uploaded_nbytes'])} of them copied in {t['copies']} pieces"
        )
    if experts["cache_bytes"]:
        found = t["cached_rows"] / max(1, t["chosen_rows"])
        parts.append(f"{t['cached_rows']} ({found:.0%}) from the cache")
    if t["layers"]:
        parts.append(f"{nbytes(t['layer_nbytes'])} of whole layers, before anybody chose")
    return [f"experts: {'; '.join(parts)}"]


def measured_lines(stats: dict[str, Any]) -> list[str]:
    """Return what was counted of drafts and experts, and what ``--streams autotune`` found."""
    return [
        *_draft_lines(stats),
        *_expert_lines(stats),
        *(_measured_line(m) for m in stats.get("streams_measured", ())),
    ]


def _draft_lines(stats: dict[str, Any]) -> list[str]:
    draft = stats.get("draft")
    if draft is None:
        return []
    rounds, drafted, accepted = draft.values()
    if not rounds:
        return ["draft: not used: too few tokens, or it would gain no time"]
    steps = stats["decode_tokens"] - accepted
    share, each = accepted / max(1, drafted), stats["decode_tokens"] / steps
    return [
        f"draft: {share:.2f} accepted, {each:.1f} tokens a step; {rounds} of {steps} steps drafted"
    ]


def _measured_line(m: dict[str, Any]) -> str:
    kept = f"{m['kept']} kept" if m["kept"] else f"undecided after {m['runs']} runs"
    if m["reason"]:
        return f"{m['graph']}: {kept}: {m['reason']}"
    one, several = (
        "not timed" if m[k] is None else seconds_text(m[k]) for k in ("sequential_s", "streams_s")
    )
    return f"{m['graph']}: {kept}: one stream {one}, several {several}"


def stats_line(stats: dict[str, Any]) -> str:
    """Return the most important numbers on one line or two."""
    weights = ", ".join(f"{d} {nbytes(n)}" for d, n in stats["weight_bytes"].items())
    arenas = ", ".join(f"{d} {nbytes(n)}" for d, n in stats.get("arena_bytes", {}).items())
    prompt = rate_text(stats["prompt_tokens_per_s"], "tokens")
    decode = rate_text(stats["tokens_per_s"], "tokens")
    planned, setup = (seconds_text(stats[key] / 1e3) for key in ("plan_ms", "setup_ms"))
    return (
        f"prompt {stats['prompt_tokens']} tokens at {prompt}, "
        f"decode {stats['decode_tokens']} at {decode}; "
        f"{stats.get('splits', 0)} splits, {stats.get('waits', 0)} waits, "
        f"{stats.get('host_syncs_per_token', 0):.3g} host syncs per token; "
        f"plans {stats['plans_made']} in {planned}, with weights and kernels {setup}; "
        f"weights {weights}; arenas {arenas}{_compared(stats)}"
    )


def pipeline_line(stats: dict[str, Any], wanted: str) -> str:
    """Return what ``--pipeline`` did; empty where there is nothing to say.

    Args:
        stats: Of the session.
        wanted: What was requested: ``auto``, ``on`` or ``off``.
    """
    batches, joined = stats["batches"], stats["pipelined_batches"]
    if wanted == "on" and not batches:
        return "not pipelined: no batch had more than one micro-batch (see -ub)"
    if wanted == "off" or not batches:
        return ""
    devices = len(stats.get("streams", ()))
    where = f" over {devices} devices" if devices > 1 else ", on one device only"
    if joined:
        return f"pipelined: in {joined} of {batches} batches the micro-batches ran together{where}"
    return f"not pipelined: {batches} batches ran micro-batch by micro-batch, predicted as faster"


def _compared(stats: dict[str, Any]) -> str:
    if "predicted_step_ms" not in stats:
        return ""
    predicted, measured = stats["predicted_step_ms"], stats["fastest_step_ms"]
    best, guess = seconds_text(measured / 1e3), seconds_text(predicted / 1e3)
    return f"; a step {best} at best, predicted {guess} by {stats['rates']}"


def _expectation(session: "Session") -> dict[str, Any]:
    """Return what a decoding step was predicted to take and the fastest took, in milliseconds."""
    timing, plan = session.timing, session.last_plan
    if not timing.decode_tokens or plan is None:
        return {}
    from ggsched.passes.cost.predict import predict_step

    n_past = session.n_past - 1
    graphs = session.step_graph(n_past), session.graph(1, n_past, 1)
    graph = next((graph for graph in graphs if graph.digest == plan.graph), None)
    if graph is None:
        return {}
    prediction = predict_step(graph, plan, session.rates)
    return {
        "predicted_step_ms": round(1e3 * prediction.seconds, 4),
        "fastest_step_ms": round(1e3 * timing.fastest_step_s, 4),
        "rates": prediction.source,
    }


def _slot(plan: "Plan", name: str) -> int:
    return next((s.value for s in plan.inputs if s.name == name), plan.inputs[0].value)


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 3) if seconds > 0 else 0.0
