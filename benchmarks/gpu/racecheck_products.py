"""Products of few rows by clusters, to be run under racecheck or memcheck.

As ``compute-sanitizer --tool racecheck --racecheck-report all python -m
benchmarks.gpu.racecheck_products``. Each product runs three times, launched and as a captured
graph, and is compared with the oracle. Weights have few rows, so that a case takes seconds, and a
thread block of a cluster sums up 3,584 elements. The exit code is 1 where a result is wrong; the
sanitizer reports what it finds itself.
"""

import sys
from collections.abc import Iterator

from benchmarks.gpu.prefill import ALL_BY_TILES, _agree, _changed
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, Q4_0, Q4_K, Q6_K, Q8_0, DType
from ggsched.ir.graph import Graph

LONG = 28672
ROWS = (16, 32, 60)
DTYPES = (Q8_0, Q4_0, Q4_K, Q6_K, BF16)


def product(dtype: DType, rows: int, sizes: tuple[int, ...], k: int) -> Graph:
    """Return products of the same rows with weights of some sizes."""
    g = GraphBuilder("products")
    x = g.input("x", (rows, k))
    weights = [g.weight(f"w{n}", (size, k), dtype) for n, size in enumerate(sizes)]
    return g.build(*(g.mul_mat(w, x) for w in weights))


def cases() -> Iterator[tuple[str, Graph]]:
    """Yield the products."""
    for dtype in DTYPES:
        for rows in ROWS[:2] if dtype is BF16 else ROWS:  # others of bf16 are by cuBLAS
            yield f"{dtype} {rows} rows, 128 x {LONG}", product(dtype, rows, (128,), LONG)
        yield f"{dtype} 17 rows, three weights", product(dtype, 17, (128, 64, 64), 4096)


def main() -> int:
    """Run all products."""
    wrong = 0
    with _changed(**ALL_BY_TILES):
        for name, graph in cases():
            found = _agree([(name, graph)], "auto")
            wrong += len(found["wrong"])
            sys.stdout.write(f"{name}: {found['wrong'] or 'ok'}\n")
            sys.stdout.flush()
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
