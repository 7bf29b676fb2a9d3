"""The ring that shows what racecheck sees compiles, in every variant."""

import pytest

from tests.kernels.nvrtc import compiler

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")


@pytest.mark.parametrize("variant", ["one", "two", "expect", "gates", "torn"])
def test_compiles(variant):
    compiler()
    from benchmarks.gpu.racecheck_ring import VARIANTS, compiled

    assert variant in VARIANTS
    assert compiled(variant, "sm_90a")
