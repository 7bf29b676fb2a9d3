"""Machine code of kernels: kept on disk, made anew where it is damaged."""

import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched_cuda import driver, programs
from ggsched_cuda.driver import CudaError
from ggsched_kernels.calls import Launch

KERNELS = [("norm", (("LANES", str(n)), ("VW", "4")), "off", Launch.IN_TURN) for n in (32, 64)]


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Count what is compiled and loaded, without a compiler and a GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = {"compiled": [], "loaded": []}

    def compile_text(text, options):
        made["compiled"].append(options[-2])
        return f"code of {options[-2]}".encode()

    def load_module(code):
        if code == b"damaged":
            raise CudaError("cuModuleLoadData", 200, "CUDA_ERROR_INVALID_IMAGE")
        made["loaded"].append(code)
        return len(made["loaded"])

    monkeypatch.setattr(programs, "compile_text", compile_text)
    monkeypatch.setattr(driver, "load_module", load_module)
    monkeypatch.setattr(driver, "function_of", lambda module, kernel, nbytes: 10 + module)
    return made


def use(cache):
    return [cache.function(name, defines, "norm_rows") for name, defines, _, _ in KERNELS]


def test_what_is_on_disk_is_not_compiled(compiled):
    use(programs.ProgramCache(90))
    again = programs.ProgramCache(90)
    assert use(again) == [13, 14]
    assert len(compiled["compiled"]) == 2
    assert compiled["loaded"][:2] == compiled["loaded"][2:]


def test_damaged_code_is_compiled_once_more(compiled):
    use(programs.ProgramCache(90))
    file = programs.cache_file(*KERNELS[0][:2], 90)
    file.write_bytes(b"damaged")
    again = programs.ProgramCache(90)
    use(again)
    assert compiled["compiled"] == ["-DLANES=32", "-DLANES=64", "-DLANES=32"]
    assert file.read_bytes() == b"code of -DLANES=32"
