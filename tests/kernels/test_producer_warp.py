"""Matrix-vector kernels with a warp that feeds the others, which only newer GPUs can run."""

import pytest

from ggsched_cuda.programmatic_launch import ENROLLED
from ggsched_kernels import SOURCES
from tests.kernels.nvrtc import ARCHS, COMMON, NEEDS_BINDINGS, compiler
from tests.kernels.test_nvrtc import ptx
from tests.kernels.tile_configs import FEEDER

pytestmark = NEEDS_BINDINGS

FIRST_ARCH = 90


def defines(weight):
    every = {**COMMON, **FEEDER, f"W_{weight.upper()}": 1}
    return tuple(sorted((key, str(value)) for key, value in every.items()))


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch >= FIRST_ARCH])
@pytest.mark.parametrize("weight", SOURCES["matvec_blocks"])
def test_compiles(weight, arch):
    from ggsched_cuda.programs import options_for, text_of

    text = text_of("matvec_blocks", "on")
    assert compiler().compile_text(text, options_for(arch, defines(weight)))


def test_the_feeder_waits_for_predecessors_too():
    entries = ptx("matvec_blocks", defines("q8_0"), "on")
    assert set(entries) == {"matvec_blocks", "matvec_blocks_id"}
    for name, code in entries.items():
        if name in ENROLLED:
            assert "cp.async.bulk" in code.partition("griddepcontrol.wait")[2]
        else:  # starts when its predecessor has ended, so there is nothing to wait for
            assert "cp.async.bulk" in code
            assert "griddepcontrol" not in code
