"""What llama-bench writes, and ``ggsched bench`` after it."""

import json


def best_rates(text: str) -> dict[str, float]:
    """Return the best tokens per second by test, such as ``pp512`` and ``tg32 @ d4096``."""
    found = {}
    for row in json.loads(text):
        name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        depth = f" @ d{row['n_depth']}" if row.get("n_depth") else ""
        found[name + depth] = max(row["samples_ts"])
    return found
