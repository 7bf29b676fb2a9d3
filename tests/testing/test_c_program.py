"""Calls of a library become the smallest program that repeats the last one."""

import shutil
import subprocess

import numpy as np
import pytest

from ggsched.backend.base_issuing import HostWrites
from ggsched_ggml.driver import Library
from ggsched_ggml.harness import CInterface
from ggsched_ggml.memory import BackendStream, allocate
from ggsched_testing.conformance.c_program import program, recorded
from tests.backends.fake_ggml import DEVICE, KIND, FakeGgml


class Interface(CInterface):
    """Of a fake library."""

    functions = None


@pytest.fixture
def calls(tmp_path):
    """Record a download, beside calls that have nothing to do with it."""
    interface, path = Interface(), tmp_path / "calls"
    library = interface.functions = Library(FakeGgml(), "fake")
    with recorded(interface, path):
        stream = BackendStream(library, DEVICE, HostWrites())
        used, other = (allocate(library, KIND, 16) for _ in range(2))
        stream.write(other, 0, np.full(16, 7, np.uint8).data)
        stream.write(used, 4, np.arange(8, dtype=np.uint8).data)
        stream.read(used, 0, np.zeros(16, np.uint8).data)
        stream.synchronize()
        del other
    return interface, path


def test_what_the_last_call_needs_is_kept(calls):
    text = program(*calls, "a fault\nof two lines")
    assert text.startswith("// a fault of two lines\n")
    assert "{0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07}" in text
    assert "0x07, 0x07" not in text
    assert text.count("ggml_backend_buft_alloc_buffer(") == 1
    assert text.index("set_async") < text.index("get_async") < text.index("synchronize")


def test_a_call_that_did_not_return_is_the_last(calls):
    interface, path = calls
    lines = path.read_text().splitlines()
    cut = next(i for i, line in enumerate(lines) if "set_async" in line)
    path.write_text("\n".join(lines[: cut + 1]))
    text = program(interface, path, "ends the process")
    assert text.rstrip().splitlines()[-2].strip().startswith("ggml_backend_tensor_set_async(")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler of C")
def test_the_program_is_c(calls, tmp_path):
    """It compiles against declarations of what it calls."""
    interface, path = calls
    text = program(interface, path, "fault")
    kinds = {"v": "void", "p": "void *", "z": "size_t", "q": "long long", "i": "int", "b": "int",
             "f": "float", "s": "const char *", "I": "struct ggml_init_params",
             "S": "int"}  # fmt: skip
    head = "#include <stddef.h>\n#include <stdbool.h>\n"
    head += "struct ggml_init_params { size_t size; void * mem; bool no_alloc; };\n"
    for name, (result, *args) in interface.signatures.items():
        head += f"{kinds[result]} {name}({', '.join(kinds[a] for a in args) or 'void'});\n"
    (tmp_path / "ggml.h").write_text(head)
    (tmp_path / "ggml-backend.h").write_text("void ggml_backend_load_all(void);\n")
    (tmp_path / "fault.c").write_text(text)
    command = ["cc", "-Werror", "-fsyntax-only", "-I", str(tmp_path), str(tmp_path / "fault.c")]
    subprocess.run(command, check=True, timeout=60)
