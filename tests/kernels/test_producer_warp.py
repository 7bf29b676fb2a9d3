"""Matrix-vector kernels with a producer warp, which only newer GPUs can run."""

import pytest

from ggsched_kernels import SOURCES
from ggsched_kernels.calls import Launch
from tests.kernels.nvrtc import ARCHS, COMMON, NEEDS_BINDINGS, RELEASES, compiler
from tests.kernels.ptx import BULK, address_of, before_wait, kernels_of, parameters_behind
from tests.kernels.test_nvrtc import ptx
from tests.kernels.tile_configs import PRODUCER

pytestmark = NEEDS_BINDINGS

FIRST_ARCH = 90


def defines(weight):
    every = {**COMMON, **PRODUCER, f"W_{weight.upper()}": 1}
    return tuple(sorted((key, str(value)) for key, value in every.items()))


CASES = [
    pytest.param(
        weight, arch, launch,
        marks=() if arch == FIRST_ARCH and (weight == "q8_0" or launch is Launch.AT_HEAD)
        else pytest.mark.slow,
    )
    for weight in SOURCES["matvec_blocks"]
    for arch in ARCHS
    if arch >= FIRST_ARCH
    for launch in (Launch.AT_HEAD, Launch.IN_TURN)
]  # fmt: skip
"""Each weight is compiled once; of one the PTX is read below. ``make test-long`` has every GPU and
way of launching."""


@pytest.mark.parametrize(("weight", "arch", "launch"), CASES)
def test_compiles(weight, arch, launch):
    from ggsched_cuda_kernels.sources import options_for, text_of

    text = text_of("matvec_blocks", "on", launch)
    compiled = compiler().machine_code if weight == "q8_0" else compiler().compiles
    assert compiled(text, options_for(arch, defines(weight)))


def test_the_producer_waits_for_predecessors_too():
    """Those of experts start when their predecessor has ended, so that they need not wait."""
    for launch in (Launch.AT_HEAD, Launch.IN_TURN):
        entries = ptx("matvec_blocks", defines("q8_0"), "on", launch)
        assert set(entries) == {"matvec_blocks", "matvec_blocks_id"}
        for code in entries.values():
            if launch is Launch.AT_HEAD:
                assert "cp.async.bulk" in code.partition("griddepcontrol.wait")[2]
            else:
                assert "cp.async.bulk" in code
                assert "griddepcontrol" not in code


W, X, Y = {"0", "1"}, "2", "4"
"""Numbers of parameters."""


@pytest.mark.parametrize("release", RELEASES)
def test_constant_weights_are_asked_for_before_the_predecessor_has_ended(release):
    from ggsched_cuda_kernels.sources import options_for, text_of

    def early(mode):
        text = text_of("matvec_blocks", mode, Launch.WAITS_FIRST)
        flags = options_for(FIRST_ARCH, (*defines("q8_0"), ("CONSTANT_W", "1")))
        kernel = kernels_of(compiler(release).ptx(text, flags))["matvec_blocks"]
        made = parameters_behind(kernel)
        found = [s for s in before_wait(kernel) if s.is_access]
        return [(s, set().union(*(made.get(r, set()) for r in address_of(s)))) for s in found]

    found = early("on")
    assert found
    for statement, behind in found:
        assert statement.op.startswith(BULK), statement.text
        assert behind & W, statement.text
        assert not behind & {X, Y, "memory"}, statement.text
    every = set().union(*(behind for _, behind in early("broken")))
    assert every >= {X, Y}, "without the wait the walk finds more"
