"""Products of few rows by clusters, to be run under racecheck or memcheck.

As ``compute-sanitizer --tool racecheck --racecheck-report all python -m
benchmarks.gpu.racecheck_products``. Each product runs three times, launched and as a captured
graph, and is compared with the oracle. The first case is the weight of 4,096 rows of 14,336
elements of an 8B, whose thread blocks have the longest sums. The exit code is 1 where a result is
wrong; what the sanitizer finds it reports itself.
"""

import sys
from collections.abc import Iterator

from benchmarks.gpu.prefill import ALL_BY_TILES, _agree, _changed
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, Q4_0, Q4_K, Q6_K, Q8_0, DType
from ggsched.ir.graph import Graph

LONG = 14336
ROWS = (3, 16, 32, 60)
DTYPES = (Q8_0, Q4_0, Q4_K, Q6_K, BF16)


def product(dtype: DType, rows: int, sizes: tuple[int, ...], k: int) -> Graph:
    """Return products of the same rows with weights of some sizes."""
    g = GraphBuilder("products")
    x = g.input("x", (rows, k))
    weights = [g.weight(f"w{n}", (size, k), dtype) for n, size in enumerate(sizes)]
    return g.build(*(g.mul_mat(w, x) for w in weights))


def cases() -> Iterator[tuple[str, Graph]]:
    """Yield the products."""
    yield f"{Q8_0} 32 rows, 4096 x {LONG}", product(Q8_0, 32, (4096,), LONG)
    for dtype in DTYPES:
        for rows in ROWS:
            yield f"{dtype} {rows} rows, 512 x {2 * LONG}", product(dtype, rows, (512,), 2 * LONG)
        yield f"{dtype} 17 rows, three weights", product(dtype, 17, (256, 64, 64), 4096)


def main() -> int:
    """Run all products."""
    with _changed(**ALL_BY_TILES):
        found = _agree(cases(), "auto")
    sys.stdout.write(f"{found}\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
