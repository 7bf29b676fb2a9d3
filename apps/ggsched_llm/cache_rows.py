"""Graphs of a model that differ in the rows of the cache alone: one is built, others follow.

Attention looks at the first rows of its caches, rounded up (``kv_bucket``); with as many tokens and
outputs nothing else of a graph changes. Building one takes as long as planning it.
"""

from dataclasses import dataclass, replace

from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, span_nbytes


@dataclass(frozen=True, slots=True)
class CacheRows:
    """A graph that stands for those of other numbers of rows.

    Attributes:
        n_kv: Its rows.
        windows: Ids of the tensors that are windows on a number of rows of a cache.
    """

    graph: Graph
    n_kv: int
    windows: frozenset[int]

    @classmethod
    def of(cls, graph: Graph, n_kv: int) -> "CacheRows | None":
        """Return what stands for others; None where another extent has the same length.

        Args:
            graph: Of ``build_model_graph``, perhaps in parts.
            n_kv: Its rows.
        """
        found = set()
        for t in graph.tensors:
            if n_kv in t.shape:
                is_window = t.role is Role.STATE and t.is_view and t.shape[0] == n_kv
                if not is_window or n_kv in t.shape[1:]:
                    return None
                found.add(t.id)
        return cls(graph, n_kv, frozenset(found)) if found else None

    def with_rows(self, n_kv: int) -> Graph:
        """Return the graph that looks at ``n_kv`` rows, fewer than the cache has."""
        tensors = list(self.graph.tensors)
        for tid in self.windows:
            t = tensors[tid]
            shape = (n_kv, *t.shape[1:])
            nbytes = span_nbytes(t.dtype, shape, t.strides)
            tensors[tid] = replace(t, shape=shape, nbytes=nbytes)
        name = f"{self.graph.name.removesuffix(f'N{self.n_kv}')}N{n_kv}"
        return replace(self.graph, name=name, tensors=tuple(tensors))
