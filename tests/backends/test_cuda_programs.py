"""Machine code of kernels: kept on disk, made anew where it is damaged, compiled side by side."""

import threading
from dataclasses import replace

import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched.backend.stages import stages_reported_to
from ggsched.errors import UsageError
from ggsched_cuda import driver, programs
from ggsched_cuda.driver import CudaError
from ggsched_kernels.calls import KernelCall, Launch

KERNELS = [("norm", (("LANES", str(n)), ("VW", "4")), "norm_rows") for n in (32, 64)]
CALLS = [KernelCall(*kernel, (), (1, 1, 1), 32, "n0 norm") for kernel in KERNELS]
PATIENCE_S = 20


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Count what is compiled and loaded, without a compiler and a GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = {"compiled": [], "loaded": [], "meanwhile": lambda options: None}

    def compile_text(text, options):
        made["meanwhile"](options)
        made["compiled"].append(options[-2])
        return f"code of {options[-2]}".encode()

    def load_module(code):
        if code == b"damaged":
            raise CudaError("cuModuleLoadData", 200, "CUDA_ERROR_INVALID_IMAGE")
        made["loaded"].append(code)
        return len(made["loaded"])

    monkeypatch.setattr(programs, "compile_text", compile_text)
    monkeypatch.setattr(programs, "usable_processors", lambda: range(4))
    monkeypatch.setattr(driver, "load_module", load_module)
    monkeypatch.setattr(driver, "function_of", lambda module, kernel, nbytes: 10 + module)
    return made


def use(cache):
    return [cache.function(name, defines, kernel) for name, defines, kernel in KERNELS]


def test_what_is_on_disk_is_not_compiled(compiled):
    use(programs.ProgramCache(90))
    again = programs.ProgramCache(90)
    again.prepare(CALLS)
    assert use(again) == [13, 14]
    assert len(compiled["compiled"]) == 2
    assert compiled["loaded"][:2] == compiled["loaded"][2:]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_damaged_code_is_compiled_once_more(compiled, is_prepared):
    use(programs.ProgramCache(90))
    file = programs.cache_file(programs.KernelCode(*KERNELS[0]), 90)
    file.write_bytes(b"damaged")
    again = programs.ProgramCache(90)
    if is_prepared:
        again.prepare(CALLS)
    use(again)
    assert compiled["compiled"] == ["-DLANES=32", "-DLANES=64", "-DLANES=32"]
    assert file.read_bytes() == b"code of -DLANES=32"


def test_kernels_of_a_program_are_compiled_at_the_same_time(compiled):
    """Each waits for the other; a call that is there twice is compiled once."""
    both, said = threading.Barrier(2), []
    compiled["meanwhile"] = lambda options: both.wait(PATIENCE_S)
    cache = programs.ProgramCache(90)
    with stages_reported_to(said.append):
        cache.prepare([*CALLS, *CALLS])
    assert said == ["compiling kernels: 1 of 2", "compiling kernels: 2 of 2"]
    assert use(cache) == [11, 12]
    cache.prepare(CALLS)
    assert sorted(compiled["compiled"]) == ["-DLANES=32", "-DLANES=64"]


def test_a_kernel_that_is_refused(compiled):
    """The error is the compiler's; what was compiled before stays on disk."""

    def refuse(options):
        if "-DLANES=64" in options:
            raise UsageError("NVRTC refused a kernel")

    compiled["meanwhile"] = refuse
    cache = programs.ProgramCache(90)
    with pytest.raises(UsageError, match="refused"):
        cache.prepare(CALLS)
    assert not [t for t in threading.enumerate() if "nvrtc" in t.name]
    compiled["meanwhile"] = lambda options: None
    assert use(cache) == [11, 12]


def test_without_a_cache_folder_code_is_still_there(compiled, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    cache = programs.ProgramCache(90)
    cache.prepare(CALLS)
    use(cache)
    assert len(compiled["compiled"]) == 2


def test_ways_to_begin_are_told_apart(compiled):
    """Before compute capability 9.0 there is one."""
    late = [replace(call, launch=Launch.IN_TURN) for call in CALLS]
    for arch, count in ((80, 2), (90, 4)):
        compiled["compiled"].clear()
        programs.ProgramCache(arch).prepare([*CALLS, *late], "on")
        assert len(compiled["compiled"]) == count
