"""The kernels that show what racecheck sees compile, in every variant."""

import pytest

from tests.kernels.nvrtc import compiler

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")


@pytest.mark.parametrize("name", ["racecheck_ring", "racecheck_cluster"])
def test_every_variant_compiles(name):
    compiler()
    from importlib import import_module

    kernel = import_module(f"benchmarks.gpu.{name}").KERNEL
    assert "torn" in kernel.variants
    for variant in kernel.variants:
        assert kernel.compiled(variant, "sm_90a")
