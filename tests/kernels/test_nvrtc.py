"""The kernels compile for every GPU that is named, and PDL is safe in the PTX."""

import re
from collections import Counter
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, Q8_0
from ggsched_cuda_kernels.programmatic_launch import FIRST_ARCH, starts_early, with_early_start
from ggsched_kernels.calls import KernelCall, Launch
from ggsched_testing.eager import bound_nodes
from tests.backends.test_cuda_rope_attention import H200, step_of
from tests.kernels.nvrtc import (
    ARCHS,
    COMMON,
    DECODE,
    NEEDS_BINDINGS,
    RELEASES,
    compiler,
    few_rows_program,
    has_oldest,
    label,
    launch_of,
    programs,
)
from tests.kernels.ptx import before_wait, kernels_of
from tests.kernels.warp_specialized_programs import Memory
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B

pytestmark = NEEDS_BINDINGS

MAKEFILE = Path(__file__).parents[2] / "Makefile"
ALL = list(programs())
# Of each source one program: the others differ in how a weight is unpacked.
FEW = list({name: (name, defines) for name, defines in reversed(ALL)}.values())
ENTRY = re.compile(r"\.visible \.entry (\w+)\(.*?\n}", re.DOTALL)


SOME = (ARCHS[0], FIRST_ARCH, ARCHS[-1])
"""The oldest, the first with PDL, and the newest: sources have no other branches."""


def archs_of(program):
    """Return architectures that a program is compiled for by default: all in turn, and 9.0."""
    ends = SOME[0], SOME[-1]
    return (FIRST_ARCH, ends[FEW.index(program) % 2]) if program in FEW else ()


@pytest.mark.parametrize(
    ("program", "arch"),
    [
        pytest.param(p, a, marks=() if a in archs_of(p) else pytest.mark.slow)
        for p in ALL
        for a in ARCHS
    ],
    ids=lambda v: label(v) if isinstance(v, tuple) else str(v),
)
def test_compiles(program, arch):
    """For the oldest architecture the oldest NVRTC compiles, where it is there."""
    from ggsched_cuda_kernels.sources import options_for, text_of

    name, defines = program
    mode = "on" if arch >= FIRST_ARCH else "off"
    text = text_of(name, mode, launch_of(name))
    made = compiler("oldest" if arch == ARCHS[0] and has_oldest() else "installed")
    assert made.compiles(text, options_for(arch, defines))


@pytest.mark.parametrize(
    "program", [p if p in FEW else pytest.param(p, marks=pytest.mark.slow) for p in ALL], ids=label
)
def test_nothing_is_read_before_the_wait(program):
    """In each kernel that is launched early the wait stands before the first access to memory."""
    entries, launch = ptx(*program, "on"), launch_of(program[0])
    for kernel, code in entries.items():
        if launch in (Launch.BY_ITSELF, Launch.WAITS_FIRST):
            if kernel != program[0]:
                continue  # of a header: it is not launched from here
            early = [s.op for s in before_wait(kernels_of(code)[kernel]) if s.is_access]
            assert set(early) <= {"prefetch.global.L2"}, kernel  # which reads nothing
            continue
        if launch is Launch.IN_TURN:
            assert "griddepcontrol" not in code
            continue
        before, wait, _ = code.partition("griddepcontrol.wait")
        assert wait, f"{kernel} does not wait"
        assert "griddepcontrol.launch_dependents" in before
        assert not re.search(r"\b(ld|st|atom|red|cp|ldu|prefetch)\.(?!param)", before), kernel


ROTATING = [p for p in FEW if p[0] in ("rope", "rope_kv_write", "heads_attention")]
BEHIND_OTHERS = [p for p in FEW if launch_of(p[0]) in (Launch.BY_ITSELF, Launch.WAITS_FIRST)]


@pytest.mark.parametrize(
    "program",
    [p if p in ROTATING else pytest.param(p, marks=pytest.mark.slow) for p in BEHIND_OTHERS],
    ids=label,
)
def test_nothing_is_read_before_the_wait_with_the_oldest_compiler(program):
    """Where instructions stand in front of the wait, a compiler may move others there."""
    source = program[0]
    code = ptx(*program, "on", release="oldest")[source]
    early = [s.op for s in before_wait(kernels_of(code)[source]) if s.is_access]
    assert set(early) <= {"prefetch.global.L2"}


def test_the_oldest_compiler_is_that_of_the_declared_range():
    (spec,) = {
        text.partition(";")[0]
        for text in requires("ggsched")
        if text.startswith("nvidia-cuda-nvrtc")
    }
    oldest = re.search(r">=([\d.]+)", spec)[1]
    assert f'"nvidia-cuda-nvrtc=={oldest}.*"' in MAKEFILE.read_text()
    assert compiler("oldest").version.startswith(f"{oldest} ")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("program", ROTATING, ids=label)
def test_sines_of_angles_within_a_turn_take_no_local_memory_and_no_table(program, release):
    """The reduction of large angles reads a table in global memory, before the wait as well."""
    for kernel, code in ptx(*program, "on", release=release).items():
        assert "__local_depot" not in code, kernel
        assert "i2opi" not in code, kernel


def test_a_kernel_without_the_wait_is_noticed():
    name, defines = FEW[0]
    entries = ptx(name, defines, "broken")
    assert entries
    assert not any("griddepcontrol.wait" in code for code in entries.values())


SEVERAL = [p for p in FEW if p[0] in ("rows", "norm", "rope_kv_write", "attention_blocks")]
"""Programs of sources with several kernels."""


@pytest.mark.parametrize(
    "program", [p if p in SEVERAL else pytest.param(p, marks=pytest.mark.slow) for p in FEW],
    ids=label,
)  # fmt: skip
def test_a_kernel_is_compiled_alone_as_with_others(program):
    """Nothing else is in its machine code, and it is what the whole source gives."""
    whole = ptx(*program, "on")
    for kernel, code in whole.items():
        alone = ptx(*program, "on", kernel=kernel)
        if launch_of(program[0]) is Launch.AT_HEAD:
            assert list(alone) == [kernel]
        assert Counter(INSTRUCTION.findall(alone[kernel])) == Counter(INSTRUCTION.findall(code))


INSTRUCTION = re.compile(r"^\t(?:@!?%p\d+ )?([a-z][\w.]*)", re.MULTILINE)


def ptx(name, defines, mode, launch=None, kernel="", release="installed"):
    from ggsched_cuda_kernels.sources import options_for, text_of

    flags = options_for(FIRST_ARCH, defines)
    source = text_of(name, mode, launch or launch_of(name), kernel)
    text = compiler(release).ptx(source, flags)
    return {match[1]: match[0] for match in ENTRY.finditer(text)}


# In the section .nv.info: EIATTR_REGCOUNT, its size, the kernel's symbol, and how many.
REGISTERS = re.compile(rb"\x04\x2f\x08\x00..\x00\x00(.\x00\x00\x00)", re.DOTALL)
OF_A_GROUP = 1 << 16


@pytest.mark.parametrize(
    "arch", [a if a in SOME else pytest.param(a, marks=pytest.mark.slow) for a in ARCHS]
)
def test_groups_of_many_lanes_have_registers_enough(arch):
    from ggsched_cuda_kernels.sources import options_for, text_of

    for name, defines in (p for p in ALL if p[0] == "moe_router"):
        code = compiler().machine_code(text_of(name), options_for(arch, defines))
        counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
        assert counts
        assert max(counts) * int(dict(defines)["LANES"]) <= OF_A_GROUP


@pytest.mark.parametrize("rows", [16, *(pytest.param(n, marks=pytest.mark.slow) for n in (32, 64))])
@pytest.mark.parametrize("which", [0, 1], ids=["many columns", "few columns"])
@pytest.mark.parametrize("name", ["q8_0", pytest.param("mxfp4", marks=pytest.mark.slow)])
def test_products_of_few_rows_are_in_registers(name, which, rows):
    """With clusters, and as many groups on a multiprocessor as the cut says."""
    from ggsched_cuda_kernels.sources import options_for, text_of
    from ggsched_cuda_kernels.tiles import FEW

    cut = FEW[rows][name][which]
    flags = options_for(FIRST_ARCH, few_rows_program(name, cut, rows, splits=4))
    source = text_of("tile_product")
    code = compiler().machine_code(source, flags)
    counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
    assert 0 < max(counts) * 32 * cut.warps * cut.resident <= OF_A_GROUP
    text = compiler().ptx(source, flags)
    assert "__local_depot" not in text
    assert "barrier.cluster" in text


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(
    "name", ["q8_0", *(pytest.param(n, marks=pytest.mark.slow) for n in ("q4_k", "mxfp4"))]
)
def test_products_by_groups_are_in_registers(name, rows):
    """Those under way, and the sums: nothing may be kept in memory while tensor cores write it."""
    from ggsched_cuda_kernels.sources import options_for, text_of
    from ggsched_cuda_kernels.tiles import GROUP_CUTS

    cut = GROUP_CUTS[rows]
    defines = few_rows_program(name, cut, rows, splits=4)
    flags, source = options_for(FIRST_ARCH, defines), text_of("tile_product")
    code = compiler().machine_code(source, flags)
    counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
    assert 0 < max(counts) * 32 * cut.warps * cut.resident <= OF_A_GROUP
    text = compiler().ptx(source, flags)
    assert "__local_depot" not in text
    assert text.count("wgmma.mma_async") == 2 * cut.blocks * rows // 64


@pytest.mark.parametrize("width", [64, 128])
def test_attention_by_groups_is_in_registers(width):
    from ggsched_cuda_kernels.flash_attention import GROUPS
    from ggsched_cuda_kernels.sources import options_for, text_of

    numbers = {
        **COMMON, "LANES": 32 * GROUPS.warps, "MT": 1, "BN": GROUPS.keys, "WIDTH": width,
        "ACROSS": width, "PLANES": 1, "RESIDENT": 1, "ALONG": 0, "SKIPS": 0, "MASKED": 0,
        "CAPPED": 0, "GROUP_MMA": 1, "HALVES": 1, "W_BF16": 1,
    }  # fmt: skip
    flags = options_for(FIRST_ARCH, tuple((name, str(n)) for name, n in numbers.items()))
    source = text_of("flash_attention", "on", Launch.BY_ITSELF)
    code = compiler().machine_code(source, flags)
    counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
    assert 0 < max(counts) * 32 * GROUPS.warps <= OF_A_GROUP
    text = compiler().ptx(source, flags)
    assert "__local_depot" not in text
    tiles = GROUPS.keys // 64 * (width // 16) + GROUPS.keys // 16 * (width // 64)
    assert text.count("wgmma.mma_async") == tiles


@pytest.mark.parametrize(
    ("heads", "width"), [(32, 128), (32, 64), (16, 256), (32, 256), (20, 80)], ids=str
)
def test_groups_of_whole_rows_fit_a_multiprocessor(heads, width):
    """Attention of some tokens in front of a product of packed weights, and a gated product."""
    from ggsched_cuda_kernels.kernel_selection import lower
    from ggsched_cuda_kernels.sources import options_for, text_of

    g, n = GraphBuilder("rows"), heads * width
    q = g.input("q", (20, heads, width))
    k, v = (g.input(name, (8192, heads, width), F16) for name in ("k", "v"))
    made = g.reshape(g.attention(q, k, v, scale=0.25), 20, n)
    gate, up = g.input("gate", (20, 3 * n)), g.input("up", (20, 3 * n))
    graph = g.build(
        g.mul_mat(g.weight("o", (4096, n), Q8_0), made),
        g.mul_mat(g.weight("down", (4096, 3 * n), Q8_0), g.swiglu(gate, up)),
    )
    memory = {t.id: Memory(0) for t in graph.tensors if not t.is_view}
    calls, _ = lower(bound_nodes(graph, memory), replace(H200, activations="auto"))
    writers = [c for c in calls if ("HALVES", "2") in c.defines]
    assert [c.kernel for c in writers] == ["flash_join", "gated_rows"]
    for call in writers:
        source = text_of(call.source, "on", call.launch)
        code = compiler().machine_code(source, options_for(FIRST_ARCH, call.defines))
        counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
        assert 0 < max(counts) * call.lanes <= OF_A_GROUP, call.kernel
        text = compiler().ptx(source, options_for(FIRST_ARCH, call.defines))
        assert "__local_depot" not in text, call.kernel


LEFT_BY_TWO = OF_A_GROUP - 2 * 288 * 72
"""What two groups of ``warp_specialized_rows`` leave of a multiprocessor: one of attention fits."""


FORMS = [("attention", {}), ("heads_attention", {"TOKENS": 1}),
         ("heads_attention", {"TOKENS": 1, "READS_EARLY": 1})]  # fmt: skip
OF_ANGLES = 28
"""Bytes of local memory in which a sine reduces its argument if that is large."""


@pytest.mark.parametrize(
    ("form", "cut"),
    [
        pytest.param(f, cut, marks=() if (i + k) % 2 == 0 else pytest.mark.slow)
        for i, f in enumerate(FORMS)
        for k, cut in enumerate(DECODE)
    ],
    ids=lambda v: "-".join([v[0], *v[1]]) if isinstance(v, tuple) else str(v["WIDTH"]),
)
def test_attention_leaves_room_for_the_next_kernel(form, cut):
    """And arrays are in registers: one that is not made a step of llama 1B a sixth slower."""
    from ggsched_cuda_kernels.sources import options_for, text_of

    name, more = form
    defines = tuple((k, str(v)) for k, v in {**COMMON, **cut, **more, "W_F16": 1}.items())
    flags = options_for(FIRST_ARCH, defines)
    source = text_of(name, "on", Launch.BY_ITSELF)
    code = compiler().machine_code(source, flags)
    counts = [int.from_bytes(found, "little") for found in REGISTERS.findall(code)]
    assert 0 < max(counts) * cut["LANES"] <= LEFT_BY_TWO
    for tokens in (1, 4) if more else (1,):
        some = {**dict(defines), **({"TOKENS": str(tokens)} if more else {})}
        flags = options_for(FIRST_ARCH, tuple(some.items()))
        text = compiler().ptx(source, flags)
        spilled = re.findall(r"__local_depot\d+\[(\d+)\]", text)
        assert all(int(nbytes) <= OF_ANGLES for nbytes in spilled), tokens


@pytest.mark.parametrize("hp", [LLAMA_1B, GPT_OSS_20B], ids=lambda hp: hp.arch)
def test_how_the_kernels_of_a_step_are_launched(hp):
    """Those at their heads have one in the text that is compiled for them."""
    from ggsched_cuda_kernels.kernel_selection import lower
    from ggsched_cuda_kernels.sources import text_of

    kernels = set()
    for call in lower(step_of(hp), H200)[0]:
        if not isinstance(call, KernelCall) or call.kernel in kernels:
            continue
        kernels.add(call.kernel)
        assert call.launch is launch_of(call.source), call.kernel
        if call.launch is Launch.AT_HEAD:
            text = text_of(call.source, "on", call.launch)
            assert re.search(rf"^KERNEL\({call.kernel}\)[^{{]*{{ EARLY_START\(\);", text, re.M)
    assert {"warp_specialized_rows", "heads_attention", "get_rows"} <= kernels


def test_modes():
    source = "KERNEL(rope)(int a,\n            int b) {\n  int c;\n}\nFOO(other)(int a) {\n}\n"
    text = with_early_start(source, "on", Launch.AT_HEAD)
    assert "int b) { EARLY_START();\n  int c;" in text
    assert text.count("{ EARLY_START();") == 1
    for launch in (Launch.BY_ITSELF, Launch.WAITS_FIRST):
        text = with_early_start(source, "on", launch)
        assert text.endswith(source)
        assert "define EARLY 1" in text
    plain = with_early_start(source, "on", Launch.IN_TURN)
    assert plain.endswith(source)
    assert "define EARLY 0" in plain
    for launch in Launch:
        assert with_early_start(source, "off", launch) == plain
        assert not starts_early(launch, 80, "on")
        assert not starts_early(launch, 90, "off")
        assert starts_early(launch, 90, "late") == (launch is not Launch.IN_TURN)
