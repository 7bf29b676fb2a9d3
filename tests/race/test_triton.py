"""Launches of kernels: those of Triton's interpreter, and of a class that stands for its own."""

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from ggsched_race.patches import Patches  # noqa: E402
from ggsched_race.triton_hooks import _Launches  # noqa: E402
from ggsched_race.watch import watch  # noqa: E402

INTERPRETED = """
import torch
import ggsched
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


def program(waits):
    x, out = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        double[(2,)](x, out, 100, B=64)
    x.sum()
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    assert out.sum().item() == 200


for waits in (False, True):
    with ggsched.watch(simulate=True, raises=False) as watched:
        program(waits)
    print(watched.report.to_text())
    assert [f.hazard for f in watched.report.findings] == ([] if waits else ["RAW"])
    assert all(f.is_possible for f in watched.report.findings)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_of_triton_are_recorded_with_their_modes(tmp_path):
    script = tmp_path / "interpreted.py"
    script.write_text(INTERPRETED, encoding="utf-8")
    path = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Kernel:
    """What Triton's own class is to a recorder."""

    arg_names = ("x", "out", "n")
    src = "def scale(x, out, n):\n    tl.store(out, tl.load(x))\n"
    __name__ = "scale"

    @staticmethod
    def fn():
        """The Python function of the kernel."""

    def run(self, *args, **kwargs):
        return "launched"


def launched(kernel, waits, **options):
    with watch("launch", simulate=True, raises=False) as watched, Patches() as patches:
        _Launches(watched._recorder).patch(patches, type(kernel))
        x, out = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert kernel.run(x, n=8, out=out, **options) == "launched"
        x.sum()
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        out.sum()
    return watched.report


@pytest.mark.parametrize("waits", [False, True])
def test_launch_touches_its_tensors_as_the_kernel_does(waits):
    report = launched(Kernel(), waits)
    assert [f.hazard for f in report.findings] == ([] if waits else ["RAW"])
    assert report.notices == ()
    assert "possible" in report.to_text() or waits


def test_kernel_that_the_program_has_compiled_is_recorded():
    class Compiled:
        def __init__(self):
            self.src = type("Source", (), {"fn": Kernel()})()

        def __getitem__(self, grid):
            return lambda *args: f"launched {grid}"

    def program():
        x, out = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            assert Compiled()[4,](x, out, 8) == "launched (4,)"

    with watch("compiled", simulate=True, raises=False) as watched, Patches() as patches:
        _Launches(watched._recorder).patch_compiled(patches, Compiled)
        program()
    assert {f.sides[1].op for f in watched.report.findings} == {"triton scale"}


def test_launches_that_only_compile_are_none():
    assert launched(Kernel(), False, warmup=True).is_clean


def test_kernel_without_text_counts_as_one_that_touches_everything():
    class Unknown(Kernel):
        src = "def ("
        run = Kernel.run

    report = launched(Unknown(), False)
    assert [f.hazard for f in report.findings] == ["RAW", "RAW"]  # of x, which is read only, too
    assert "all arguments count as read and written" in report.to_text()


def test_kernel_that_is_given_addresses_as_numbers_is_named():
    class Addresses(Kernel):
        src = "def k(x, out, n):\n    tl.store(n.to(tl.pointer_type(tl.int8)), tl.load(x))\n"
        run = Kernel.run

    report = launched(Addresses(), True)
    assert "uses addresses that it computes" in report.notices[0]


def test_compiled_functions_are_reported_to_run_op_by_op():
    with watch("compiled", simulate=True) as watched:
        torch.compile(lambda x: x + 1)(torch.ones(4, device="cuda"))
    assert watched.report.notices == ("functions of torch.compile ran op by op, not as kernels",)


def test_functions_that_were_compiled_before_run_op_by_op():
    import torch._dynamo

    calls = []

    def backend(module, inputs):
        calls.append(inputs)
        return module.forward

    function = torch.compile(lambda x: x + 1, backend=backend)
    with watch("compiled", simulate=True) as watched:
        function(torch.ones(4, device="cuda"))
        torch._dynamo.optimize(backend)(lambda x: x * 2)(torch.ones(4, device="cuda"))
    assert calls == []
    assert "op by op" in watched.report.notices[0]


def test_compile_that_a_program_keeps_compiles_after_the_recording():
    calls = []

    def backend(module, inputs):
        calls.append(inputs)
        return module.forward

    with watch("kept", simulate=True):
        compiled = torch.compile
    assert compiled.__name__ == torch.compile.__name__
    compiled(lambda x: x + 1, backend=backend)(torch.ones(4))
    assert len(calls) == 1
