"""Warp-specialised kernels compile for GPUs that run them, spill nothing, and read nothing early.

Weights that nobody writes may be fetched before the predecessor has ended; all else stands behind
a wait on every path, and the walk through the machine-independent code says so.
"""

import re

import pytest

from ggsched_cuda_kernels.programmatic_launch import FIRST_ARCH
from ggsched_kernels.calls import Launch
from tests.kernels.nvrtc import ARCHS, RELEASES, compiler, launch_of
from tests.kernels.ptx import BULK, WAIT, address_of, before_wait, kernels_of, parameters_behind
from tests.kernels.warp_specialized_programs import (
    WARP_SPECIALIZED,
    label,
    warp_specialized_programs,
)

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")


def of_type(program):
    return next(key for key, _ in program[1] if key.startswith("W_"))


ALL = warp_specialized_programs()
# Of each source one program of every type, and one with every norm and gate.
FEW = list({(p[0], of_type(p)): p for p in ALL}.values())
FORMS = list({(p[0], *(dict(p[1])[key] for key in ("NORM", "GATED"))): p for p in ALL}.values())


def some(few):
    return [p if p in few else pytest.param(p, marks=pytest.mark.slow) for p in ALL]


NORM_WEIGHT = {"2", "3"}
"""Parameters of ``warp_specialized_rows``: where the norm's weight is."""

# In the section .nv.info: EIATTR_FRAME_SIZE, its size, the kernel's symbol, and how many bytes.
FRAME = re.compile(rb"\x04\x11\x08\x00.\x00{3}(..)\x00{2}", re.DOTALL)


def frames_of(source, defines, arch, groups=1):
    """Return the bytes that lanes keep in memory, because registers do not suffice.

    Args:
        groups: How many are to share the registers of a multiprocessor.
    """
    from ggsched_cuda_kernels.sources import options_for, text_of

    bounds = "__launch_bounds__(LANES + 32, %d)"
    text = text_of(source, "on", Launch.WAITS_FIRST)
    assert bounds % 1 in text
    text = text.replace(bounds % 1, bounds % groups)
    code = compiler().machine_code(text, options_for(arch, defines))
    return [int.from_bytes(found, "little") for found in FRAME.findall(code)]


def test_there_are_programs_of_all_types():
    assert len(FEW) == 2 * 6
    assert {source for source, _ in ALL} == WARP_SPECIALIZED
    assert {launch_of(source) for source in WARP_SPECIALIZED} == {Launch.WAITS_FIRST}


@pytest.mark.parametrize(
    "arch",
    [FIRST_ARCH, *(pytest.param(a, marks=pytest.mark.slow) for a in ARCHS if a > FIRST_ARCH)],
)
@pytest.mark.parametrize("program", some(FEW), ids=label)
def test_compiles_without_spills(program, arch):
    frames = frames_of(*program, arch)
    assert frames
    assert not any(frames)


def test_spills_are_noticed():
    program = next(p for p in FEW if of_type(p) == "W_MXFP4")
    lanes = int(dict(program[1])["LANES"]) + 32
    assert any(frames_of(*program, FIRST_ARCH, groups=2048 // lanes))


def ptx(source, defines, mode, release="installed", **others):
    from ggsched_cuda_kernels.sources import options_for, text_of

    defines = tuple(sorted({**dict(defines), **others}.items()))
    flags = options_for(FIRST_ARCH, defines)
    text = compiler(release).ptx(text_of(source, mode, Launch.WAITS_FIRST), flags)
    (kernel,) = kernels_of(text).values()
    assert BULK in kernel
    return kernel


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("program", some(FORMS), ids=label)
def test_only_constants_are_read_before_the_wait(program, release):
    source, defines = program
    kernel = ptx(source, defines, "on", release)
    early = [s for s in before_wait(kernel) if s.is_access]
    if dict(defines)["CONSTANT_W"] == "0":
        assert early == []
        return
    made = parameters_behind(kernel)
    for statement in early:
        if statement.op.startswith(BULK):
            continue
        assert dict(defines)["NORM"] == "1"
        assert statement.op.startswith("ld.global"), statement.text
        (register,) = address_of(statement)
        assert made[register], statement.text
        assert made[register] <= NORM_WEIGHT, statement.text
    assert any(s.op.startswith(BULK) for s in early), "weights are what is fetched early"


def over_gpus(program, gpus):
    """Return a program of rows for GPUs that add up rows: it begins with a sum, or is added up."""
    source, defines = program
    is_sum = dict(defines)["NORM"] == "1"
    more = {"ADDENDS": gpus, "PEERS_MET": gpus - 1} if is_sum else {"ALSO": 4}
    return source, tuple(sorted({**dict(defines), **{k: str(v) for k, v in more.items()}}.items()))


OVER_GPUS = [
    pytest.param(
        over_gpus(p, gpus),
        marks=() if p in FORMS else pytest.mark.slow,
        id=f"{label(p)}-{gpus}",
    )
    for p in ALL
    for gpus in (2, 4)
    if p[0] == "warp_specialized_rows"
    and (dict(p[1])["NORM"], dict(p[1])["ADDENDS"]) in (("1", "0"), ("0", "0"))
]


@pytest.mark.parametrize("program", OVER_GPUS)
def test_rows_over_gpus(program):
    """Sums in front of products spill nothing either, and what they read is behind the wait."""
    assert not any(frames_of(*program, FIRST_ARCH))
    kernel = ptx(*program, "on")
    made = parameters_behind(kernel)
    for statement in (s for s in before_wait(kernel) if s.is_access):
        if not statement.op.startswith(BULK):
            (register,) = address_of(statement)
            assert made[register] <= NORM_WEIGHT, statement.text


@pytest.mark.parametrize("program", some(FORMS), ids=label)
def test_weights_leave_the_second_cache_first(program):
    """All copies say so: weights that stayed would drive out what every kernel reads."""
    kernel = ptx(*program, "on")
    copies = [line for line in kernel.splitlines() if BULK in line]
    assert copies
    assert all("L2::cache_hint" in line for line in copies)
    assert "createpolicy.fractional.L2::evict_first" in kernel


@pytest.mark.parametrize("program", some(FORMS), ids=label)
def test_nothing_is_read_before_the_wait_if_weights_may_be_written(program):
    kernel = ptx(*program, "on", CONSTANT_W="0")
    early = before_wait(kernel)
    assert not [s.text for s in early if s.is_access]
    assert not [s.text for s in early if "launch_dependents" in s.text], "let in before it may run"


@pytest.mark.parametrize("source", sorted(WARP_SPECIALIZED))
def test_modes(source):
    program = next(p for p in FEW if p[0] == source)
    for constant in "01":
        off = ptx(*program, "off", CONSTANT_W=constant)
        assert "griddepcontrol" not in off
        broken = ptx(*program, "broken", CONSTANT_W=constant)
        assert WAIT not in broken
        assert "griddepcontrol.launch_dependents" in broken
        late = ptx(*program, "late", CONSTANT_W=constant)
        assert WAIT in late
        found = [s for s in before_wait(broken) if s.is_access and not s.op.startswith(BULK)]
        assert found, "without the wait the walk finds what is read"
