"""Experts in the ``stats`` of ``ggsched run``: what was copied to other devices, and from where."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ggsched.units import nbytes_text as nbytes

if TYPE_CHECKING:
    from ggsched_llm.session import Session


def expert_stats(session: "Session") -> dict[str, Any]:
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


def expert_lines(stats: dict[str, Any]) -> list[str]:
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
