"""Object code of the CPU's kernels: for which processors, and how it is kept on disk."""

import os
import re
import stat
from functools import cache

import numpy as np
import pytest

llvm = pytest.importorskip("llvmlite.binding")

from ggsched_cpu.kernels import object_cache  # noqa: E402
from ggsched_cpu.kernels.compiler import (  # noqa: E402
    LLVM_VERSION,
    assembly,
    host_target,
    object_code,
)
from ggsched_cpu.kernels.emit import Builder, module_text  # noqa: E402
from ggsched_cpu.kernels.families import FAMILIES  # noqa: E402
from ggsched_cpu.kernels.library import Library  # noqa: E402
from ggsched_cpu.kernels.target import AARCH64, AVX2, AVX512, Target  # noqa: E402

TARGETS = {"avx2": AVX2, "avx512": AVX512, "aarch64": AARCH64}
AVX512_VBMI = Target(AVX512.triple, AVX512.cpu, f"{AVX512.features},+avx512vbmi")
AVX512_BF16 = Target(AVX512.triple, "cooperlake", f"{AVX512.features},+avx512bf16")
AVX_VNNI = Target(AVX2.triple, "alderlake", f"{AVX2.features},+avxvnni")
PLAIN_ARM = Target(AARCH64.triple, "cortex-a72", "+neon")


@cache
def code_of(family, target):
    return assembly(module_text(*FAMILIES[family](target)), target)


@pytest.mark.parametrize(
    "family",
    [
        "walk",
        "rows",
        "gemv_q4_0_int8",
        "gemv_q8_0_int8",
        "gemv_mxfp4_int8",
        "gemv_q4_k_int8",
        "panels_int8_16",
    ],
)
@pytest.mark.parametrize("name", TARGETS)
def test_families_for_other_processors(name, family):
    """LLVM takes them, and they call nothing that a process may lack."""
    target = TARGETS[name]
    text = code_of(family, target)
    if family == "walk":  # the others need as long again, and are printed by the same code
        assert object_code(module_text(*FAMILIES[family](target)), target)[:4] == b"\x7fELF"
    called = re.findall(r"^\s(?:callq?|bl|jmp)\s+([a-z_]\w*)", text, re.M)
    assert set(called) <= {"memcpy", "memset", "memmove"}


@pytest.mark.parametrize(
    ("target", "family", "instruction"),
    [
        (AVX2, "gemv_q4_0_int8", r"vpmaddubsw\s.*%ymm"),
        (AVX512, "gemv_q4_0_int8", r"vpdpbusd\s.*%ymm"),
        (AVX512, "gemv_q4_0_int8", r"vpunpckhqdq\s.*%zmm"),
        (AVX512, "gemv_mxfp4_int8", r"vpunpckhqdq\s.*%zmm"),
        (AVX512, "gemv_q8_0_int8", r"vpunpckhqdq\s.*%zmm"),
        (AVX512_VBMI, "gemv_q4_k_int8", r"vpunpckhqdq\s.*%zmm"),
        (AVX_VNNI, "gemv_q4_0_int8", r"vpdpbusd\s.*%ymm"),
        (AVX512, "gemv_f16_f32", r"vcvtph2ps\s.*%zmm"),
        (AVX512, "gemv_bf16_f32", r"vfmadd\w+ps\s.*%zmm"),
        (AARCH64, "gemv_q8_0_int8", r"sdot\s+v\d+\.4s"),
        (AARCH64, "gemv_mxfp4_int8", r"tbl\s+v\d+\.16b"),
        (AVX2, "gemm_q4_0_f32", r"vfmadd\w+ps\s.*%ymm"),
        (AVX512, "gemm_q4_0_f32", r"vfmadd\w+ps\s.*%zmm"),
        (AARCH64, "gemm_q4_0_f32", r"fmla\s+v\d+\.4s"),
        (AVX512, "gemm_q4_0_int8", r"vpdpbusd\s.*%zmm"),
        (AVX_VNNI, "gemm_q6_k_int8", r"vpdpbusd\s.*%ymm"),
        (AARCH64, "gemm_q4_k_int8", r"sdot\s+v\d+\.4s"),
        (AVX512, "gemv_q8_0_int8", r"vpdpbusd\s.*%zmm"),
        (AVX512, "gemv_q8_0_int8", r"prefetch"),
        (AVX512_BF16, "gemm_bf16_bf16", r"vdpbf16ps\s.*%zmm"),
        (AVX512_BF16, "panels_bf16", r"vcvtneps2bf16\s"),
        (AVX512_BF16, "gemv_bf16_bf16", r"vdpbf16ps\s.*%zmm"),
        (AVX512_BF16, "gemv_chosen_bf16_bf16", r"vdpbf16ps\s.*%zmm"),
        (AVX512_BF16, "bf16", r"vcvtneps2bf16\s"),
        (AVX512, "attention_f16", r"vcvtph2ps\s.*%zmm"),
        (AVX512, "attention_blocks_q8_0", r"vfmadd\d+ps\s.*%zmm"),
        (AARCH64, "gemv_f16_f32", r"fmla\s+v\d+\.4s"),
        (PLAIN_ARM, "gemv_q8_0_int8", r"mla\s+v\d+\.4s|smlal"),
    ],
    ids=lambda v: v.cpu if isinstance(v, Target) else v if "\\" not in v else "",
)
def test_instructions(target, family, instruction):
    assert re.search(instruction, code_of(family, target))


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("q8_0_int8", {"prefetcht0", "prefetcht1"}),
        ("bf16_bf16", {"prefetcht1"}),
        ("f32_f32", {"prefetcht1"}),  # long rows
        ("q4_0_int8", {"prefetcht0", "prefetcht1"}),
    ],
)
def test_a_processor_that_fetches_streams_is_hardly_helped(family, kinds):
    """Where the kernel waits for memory; arithmetic of 4 bits is slower than that."""
    zen_4 = Target(AVX512_BF16.triple, "znver4", AVX512_BF16.features)
    assert set(re.findall(r"prefetch\w+", code_of(f"gemv_{family}", zen_4))) == kinds
    assert "prefetch" in code_of(f"gemv_{family}", AVX512_BF16)


@pytest.mark.parametrize("family", ["f32_f32", "f16_f32", "bf16_bf16", "q8_0_int8", "q4_k_int8"])
def test_a_processor_that_fetches_past_its_caches(family):
    """One line for each that is used, into the first cache alone; other kernels fetch as before."""
    zen_5 = Target(AVX512_BF16.triple, "znver5", AVX512_BF16.features)
    kinds = set(re.findall(r"prefetch\w+", code_of(f"gemv_{family}", zen_5)))
    assert kinds == {"prefetchnta"}
    assert "prefetchnta" not in code_of(f"gemv_{family}", AVX512_BF16)


def test_processors_that_have_no_kernels():
    assert not Target("x86_64-unknown-linux-gnu", "nehalem", "+sse4.2").is_supported
    assert not Target("riscv64-unknown-linux-gnu", "generic", "").is_supported
    assert all(target.is_supported for target in TARGETS.values())
    assert (AVX2.lanes, AVX512.lanes, AARCH64.lanes) == (8, 16, 4)


def test_a_table_of_bytes_is_not_mistaken_for_another():
    assert object_cache.entry_name("a", AVX2, "1") != object_cache.entry_name("a", AVX512, "1")
    assert object_cache.entry_name("a", AVX2, "1") != object_cache.entry_name("a", AVX2, "2")
    assert object_cache.entry_name("a", AVX2, "1") != object_cache.entry_name("b", AVX2, "1")


def entries(folder):
    return sorted(folder.glob("*.o"))


def test_code_is_compiled_once(tmp_path, monkeypatch):
    target = host_target()
    first = Library(target, tmp_path).address("walk", "stop")
    assert first
    assert len(entries(tmp_path)) == 1

    def refuse(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr("ggsched_cpu.kernels.library.object_code", refuse)
    assert Library(target, tmp_path).address("walk", "lead")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:],
        lambda data: b"another format\n" + data,
    ],
    ids=["empty", "short", "flipped", "foreign"],
)
def test_a_damaged_entry_is_made_anew(tmp_path, damage):
    target = host_target()
    Library(target, tmp_path).address("walk", "stop")
    (file,) = entries(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert Library(target, tmp_path).address("walk", "stop")
    assert file.read_bytes() == whole


def test_an_entry_that_is_no_object_code(tmp_path):
    """Its checksum is right, but LLVM does not load it."""
    target = host_target()
    ir = module_text(*FAMILIES["walk"](target))
    name = object_cache.entry_name(ir, target, LLVM_VERSION)
    object_cache.cached_code(tmp_path, name, lambda: b"no object code")
    assert Library(target, tmp_path).address("walk", "stop")


def test_a_folder_that_cannot_be_used(tmp_path):
    """A file is in its place; compiled code is then simply not kept."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert Library(host_target(), blocked / "inner").address("walk", "stop")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert Library(host_target(), tmp_path).address("walk", "stop")
    assert not entries(tmp_path)


def test_home_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert object_cache.default_folder() == tmp_path / "ggsched" / "cpu-kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert object_cache.default_folder().parts[-3:] == (".cache", "ggsched", "cpu-kernels")


def test_loops_and_conditions(tmp_path):
    """The builder: sums of what is even, by a function that returns early on request."""
    import ctypes

    b = Builder("evens", host_target())
    with b.when(b.compare("eq", b.arg(1), 99)):
        b.leave(b.arg(1))
    total = b.var(b.arg(2))
    with b.loop(0, b.arg(1)) as i, b.when(b.compare("eq", b.urem(i, 2), 0)):
        b.set(total, b.add(b.get(total), i))
    b.store(b.get(total), b.arg_pointer(0), 8)
    library = Library(host_target(), tmp_path)
    address = library._linker.load(object_code(module_text(b), host_target()), ["evens"])["evens"]
    call = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4)(address)
    out = np.zeros(1, np.int64)
    args = np.array([out.ctypes.data, 10, 5], np.int64)
    assert call(args.ctypes.data, 0, 1, 0) == 0
    assert out[0] == 5 + 0 + 2 + 4 + 6 + 8
    args[1] = 99
    assert call(args.ctypes.data, 0, 1, 0) == 99
