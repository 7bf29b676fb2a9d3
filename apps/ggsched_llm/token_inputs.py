"""The inputs of one token of one sequence, in memory that is written anew for each token."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ggsched.ir.graph import Graph

NEXT_TOKEN: Final = "next_token"
"""The state, i32 (1,), in which a step that chooses leaves its token to the one behind it."""


class TokenInputs:
    """What ``span_inputs`` returns for a token, without an array made for any of it.

    Attributes:
        arrays: By name, those that the graph has; they change with ``at``.
    """

    def __init__(self, graph: Graph, window: int) -> None:
        """Take a graph.

        Args:
            graph: Of ``build_model_graph`` for one token.
            window: Sliding window in tokens, 0 for none.
        """
        self._window = window
        self._numbers = numbers = np.zeros(7, np.int32)
        pairs = numbers[3:].reshape(2, 1, 2)
        views = {
            "tokens": numbers[:1],
            "positions": numbers[1:2],
            "slots": numbers[2:3],
            "kv_rows": numbers[1:2],
            "bounds": pairs[0],
            "out_rows": numbers[2:3],
        }
        if window:
            views["bounds_window"] = pairs[1]
        self.arrays: Mapping[str, np.ndarray] = {n: a for n, a in views.items() if n in graph}

    def at(self, token: int, n_past: int) -> Mapping[str, np.ndarray]:
        """Return the inputs of a token that follows ``n_past`` others, until the next call."""
        end = n_past + 1
        self._numbers[:] = token, n_past, 0, 0, end, max(0, end - self._window), end
        return self.arrays
