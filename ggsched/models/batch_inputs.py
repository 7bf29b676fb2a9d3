"""What the host sets before a micro-batch runs."""

import numpy as np

from ggsched.ir.graph import Graph


def batch_inputs(
    graph: Graph, tokens: np.ndarray, n_past: int, n_out: int, window: int
) -> dict[str, np.ndarray]:
    """Return the host inputs of a micro-batch of one sequence.

    Args:
        graph: Of ``build_model_graph``; its mask tells how many cache rows are looked at.
        tokens: int32 (T,).
        n_past: Tokens before these; token i goes to cache row ``n_past + i``.
        n_out: Tokens, counted from the end, that get logits.
        window: Sliding window in tokens, 0 for none.
    """
    n = len(tokens)
    positions = np.arange(n_past, n_past + n, dtype=np.int32)
    n_kv = graph.tensors[graph.named("mask").id].shape[1]
    rows = np.arange(n_kv, dtype=np.int32)[None, :]
    hidden = rows > positions[:, None]
    inputs = {
        "tokens": tokens,
        "positions": positions,
        "kv_rows": positions,
        "mask": np.where(hidden, np.float32(-np.inf), np.float32(0.0)),
        "out_rows": np.arange(n - n_out, n, dtype=np.int32),
    }
    if window:
        outside = hidden | (rows <= positions[:, None] - window)
        inputs["mask_window"] = np.where(outside, np.float32(-np.inf), np.float32(0.0))
    return {name: value for name, value in inputs.items() if name in graph}
