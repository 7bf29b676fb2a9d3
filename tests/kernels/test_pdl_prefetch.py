"""What attention reads before it waits, where it may: nothing that a predecessor computes."""

from itertools import product

import pytest

from ggsched_kernels.calls import Launch
from tests.kernels.nvrtc import (
    COMMON,
    DECODE,
    FLASH,
    NEEDS_BINDINGS,
    compiler,
    few_rows_program,
)
from tests.kernels.ptx import address_of, before_wait, kernels_of, parameters_behind

pytestmark = NEEDS_BINDINGS

POSITIONS, FACTORS, IDS, FREQUENCIES = (2, 3), (4, 5), (8, 9), (10,)
CACHES_AND_MASK = tuple(range(28, 34))
BOUNDS = (36, 37)
EXTENTS = (11, 13, 26, 40, 42, 43)
"""Numbers of parameters; see the kernel's heading."""
READ = (*POSITIONS, *FACTORS, *IDS, *FREQUENCIES, *CACHES_AND_MASK, *BOUNDS)
ALLOWED = {str(n) for n in (*READ, *EXTENTS)}
WRITTEN_BEFORE = {str(n) for n in (0, 6, 16, 18, 20, 22, 24, 38)}
"""The addresses of what the predecessor computes, and of all that attention writes."""


def statements(mode, cut, tokens, kind, release="installed"):
    from ggsched_cuda_kernels.programmatic_launch import FIRST_ARCH
    from ggsched_cuda_kernels.sources import options_for, text_of

    more = {"TOKENS": tokens, kind: 1, "READS_EARLY": 1}
    defines = tuple(sorted((k, str(v)) for k, v in {**COMMON, **cut, **more}.items()))
    flags = options_for(FIRST_ARCH, defines)
    source = text_of("heads_attention", mode, Launch.BY_ITSELF)
    text = compiler(release).ptx(source, flags)
    kernel = kernels_of(text)["heads_attention"]
    return kernel, [s for s in before_wait(kernel) if s.is_access]


def by_release(*axes):
    """Return the cases of axes: all for the installed compiler, the first for the oldest.

    The others of the oldest one are slow.
    """
    cases = []
    for i, case in enumerate(product(*axes)):
        cases.append(pytest.param(*case, "installed"))
        cases.append(pytest.param(*case, "oldest", marks=pytest.mark.slow if i else ()))
    return cases


@pytest.mark.parametrize(
    ("cut", "tokens", "kind", "release"), by_release(DECODE, [1, 4], ["W_F16", "W_F32"])
)
def test_only_what_was_there_before(cut, tokens, kind, release):
    kernel, early = statements("on", cut, tokens, kind, release)
    made = parameters_behind(kernel)
    found = set()
    for statement in early:
        assert statement.op.startswith(("ld.global", "prefetch.global.L2")), statement.text
        assert ".nc" not in statement.op
        (register,) = address_of(statement)
        assert made[register], statement.text
        # What is loaded early is allowed itself, so an address may depend on it (bounds).
        assert made[register] <= {*ALLOWED, "memory"}, statement.text
        assert made[register] != {"memory"}, statement.text
        found |= made[register]
    assert not found & WRITTEN_BEFORE
    assert {str(n) for n in (2, 8, 10, 28, 30, 32)} <= found, "this is what it is for"


def test_without_the_wait_the_walk_finds_more():
    kernel, early = statements("broken", DECODE[0], 1, "W_F16")
    made = parameters_behind(kernel)
    found = set().union(*(made.get(r, set()) for s in early for r in address_of(s)))
    assert found & WRITTEN_BEFORE


@pytest.mark.parametrize(("kind", "release"), by_release(["W_F16", "W_Q8_0"]))
def test_flash_attention_reads_bounds_early_and_asks_for_rows(kind, release):
    from ggsched_cuda_kernels.programmatic_launch import FIRST_ARCH
    from ggsched_cuda_kernels.sources import options_for, text_of

    given = {**COMMON, "LANES": 128, **FLASH[1], kind: 1, "READS_EARLY": 1}
    defines = tuple(sorted((k, str(v)) for k, v in given.items()))
    source = text_of("flash_attention", "on", Launch.BY_ITSELF)
    text = compiler(release).ptx(source, options_for(FIRST_ARCH, defines))
    kernel = kernels_of(text)["flash_attention"]
    early = [s for s in before_wait(kernel) if s.is_access]
    made = parameters_behind(kernel)
    loads = [s for s in early if s.op.startswith("ld.global")]
    assert {s.op for s in early} - {s.op for s in loads} == {"prefetch.global.L2"}
    assert loads
    for statement in loads:
        (register,) = address_of(statement)
        # The first loads of bounds depend on extents; a range of rows on what was loaded.
        assert "10" in made[register], statement.text
        assert not made[register] & {"0", "4", "12", "14"}, statement.text


W_OF_TILES, X_OF_TILES, Y_OF_TILES = {"0", "1"}, "2", "8"
"""Numbers of parameters of ``tile_product``."""


@pytest.mark.parametrize(("splits", "release"), by_release([1, 4]))
def test_tile_product_asks_for_constant_weights_early_and_for_nothing_else(splits, release):
    from ggsched_cuda_kernels.tiles import FEW

    def early(*more, mode="on"):
        from ggsched_cuda_kernels.programmatic_launch import FIRST_ARCH
        from ggsched_cuda_kernels.sources import options_for, text_of

        defines = (*few_rows_program("q8_0", FEW[16]["q8_0"][0], 16, splits=splits), *more)
        source = text_of("tile_product", mode, Launch.WAITS_FIRST)
        flags = options_for(FIRST_ARCH, tuple(sorted(defines)))
        text = compiler(release).ptx(source, flags)
        kernel = kernels_of(text)["tile_product"]
        return [s for s in before_wait(kernel) if s.is_access], parameters_behind(kernel)

    assert not early()[0], "weights that somebody may write"
    some, made = early(("CONSTANT_W", "1"))
    assert some
    for statement in some:
        assert statement.op.startswith("cp.async"), statement.text
        behind = set().union(*(made.get(r, set()) for r in address_of(statement)))
        assert behind & W_OF_TILES, statement.text
        assert not behind & {X_OF_TILES, Y_OF_TILES, "memory"}, statement.text
    all_of_it, made = early(("CONSTANT_W", "1"), mode="broken")
    found = set().union(*(made.get(r, set()) for s in all_of_it for r in address_of(s)))
    assert found >= {X_OF_TILES, Y_OF_TILES}, "without the wait the walk finds more"
