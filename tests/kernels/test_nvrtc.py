"""The kernels compile for every GPU that is named, and early launch is safe in what comes out."""

import re

import pytest

from ggsched_cuda.programmatic_launch import (
    ENROLLED,
    FIRST_ARCH,
    OWN_WAIT,
    is_enrolled,
    with_early_start,
)
from tests.kernels.nvrtc import ARCHS, COMMON, DECODE, NEEDS_BINDINGS, compiler, label, programs
from tests.kernels.ptx import before_wait, kernels_of

pytestmark = NEEDS_BINDINGS

ALL = list(programs())
# Of each source one program: the others differ in how a weight is unpacked.
FEW = list({name: (name, defines) for name, defines in reversed(ALL)}.values())
ENTRY = re.compile(r"\.visible \.entry (\w+)\(.*?\n}", re.DOTALL)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "program", [p if p in FEW else pytest.param(p, marks=pytest.mark.slow) for p in ALL], ids=label
)
def test_compiles(program, arch):
    from ggsched_cuda.programs import options_for, text_of

    name, defines = program
    mode = "on" if arch >= FIRST_ARCH else "off"
    assert compiler().compile_text(text_of(name, mode), options_for(arch, defines))


@pytest.mark.parametrize(
    "program", [p if p in FEW else pytest.param(p, marks=pytest.mark.slow) for p in ALL], ids=label
)
def test_nothing_is_read_before_the_wait(program):
    """In each enrolled kernel the wait stands before the first access to global memory."""
    entries = ptx(*program, "on")
    for kernel, code in entries.items():
        if kernel in OWN_WAIT:
            early = [s.op for s in before_wait(kernels_of(code)[kernel]) if s.is_access]
            assert set(early) <= {"prefetch.global.L2"}, kernel  # which reads nothing
            continue
        if kernel not in ENROLLED:
            assert "griddepcontrol" not in code
            continue
        before, wait, _ = code.partition("griddepcontrol.wait")
        assert wait, f"{kernel} does not wait"
        assert "griddepcontrol.launch_dependents" in before
        assert not re.search(r"\b(ld|st|atom|red|cp|ldu|prefetch)\.(?!param)", before), kernel


def test_a_kernel_without_the_wait_is_noticed():
    name, defines = FEW[0]
    entries = ptx(name, defines, "broken")
    assert entries
    assert not any("griddepcontrol.wait" in code for code in entries.values())


def ptx(name, defines, mode):
    from ggsched_cuda.programs import options_for, text_of

    flags = [o.replace("sm_90a", "compute_90") for o in options_for(FIRST_ARCH, defines)]
    text = compiler().compile_text(text_of(name, mode), flags, virtual=True).decode()
    return {match[1]: match[0] for match in ENTRY.finditer(text)}


# In the section .nv.info: EIATTR_REGCOUNT, its size, the kernel's symbol, and how many.
REGISTERS = re.compile(rb"\x04\x2f\x08\x00.{4}(.{4})", re.DOTALL)
OF_A_GROUP = 1 << 16


@pytest.mark.parametrize("arch", ARCHS)
def test_groups_of_many_lanes_have_registers_enough(arch):
    from ggsched_cuda.programs import options_for, text_of

    for name, defines in (p for p in ALL if p[0] == "route"):
        code = compiler().compile_text(text_of(name), options_for(arch, defines))
        counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
        assert counts
        assert max(counts) * int(dict(defines)["LANES"]) <= OF_A_GROUP


LEFT_BY_TWO = OF_A_GROUP - 2 * 288 * 72
"""What two groups of ``fed_rows`` leave of a multiprocessor: one of attention has to fit in."""


FORMS = [("attention", {}), ("heads_attention", {"TOKENS": 1}),
         ("heads_attention", {"TOKENS": 1, "READS_EARLY": 1})]  # fmt: skip
OF_ANGLES = 28
"""Bytes of local memory in which a sine reduces its argument if that is large."""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join([form[0], *form[1]]))
@pytest.mark.parametrize("cut", DECODE, ids=lambda cut: str(cut["WIDTH"]))
def test_attention_leaves_room_for_the_next_kernel(form, cut):
    """And arrays are in registers: one that is not made a step of llama 1B a sixth slower."""
    from ggsched_cuda.programs import options_for, text_of

    name, more = form
    defines = tuple((k, str(v)) for k, v in {**COMMON, **cut, **more, "W_F16": 1}.items())
    flags = options_for(FIRST_ARCH, defines)
    code = compiler().compile_text(text_of(name, "on"), flags)
    counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
    assert 0 < max(counts) * cut["LANES"] <= LEFT_BY_TWO
    for tokens in sorted({more.get("TOKENS", 1), 4}):
        some = {**dict(defines), **({"TOKENS": str(tokens)} if more else {})}
        flags = options_for(FIRST_ARCH, tuple(some.items()))
        text = compiler().compile_text(text_of(name, "on"), flags, virtual=True).decode()
        spilled = re.findall(r"__local_depot\d+\[(\d+)\]", text)
        assert all(int(nbytes) <= OF_ANGLES for nbytes in spilled), tokens


def test_every_enrolled_kernel_exists():
    from ggsched_cuda.programs import text_of

    heads = set()
    for name, _ in FEW:
        heads |= set(re.findall(r"^KERNEL\((\w+)\)", text_of(name), re.MULTILINE))
    assert heads >= ENROLLED - LATER


LATER = frozenset({"matvec_rows", "matvec_rows_id", "matvec_blocks", "matvec_blocks_id"})


def test_modes():
    source = "KERNEL(rope)(int a,\n            int b) {\n  int c;\n}\nKERNEL(other)(int a) {\n}\n"
    text = with_early_start(source, "on")
    assert "int b) { EARLY_START();\n  int c;" in text
    assert text.count("EARLY_START();") == 1
    assert with_early_start(source, "off") == source
    assert not is_enrolled("rope", 80, "on")
    assert not is_enrolled("rope", 90, "off")
    assert is_enrolled("rope", 90, "late")
