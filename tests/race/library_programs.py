"""Programs with Triton, NCCL, CuPy and the compiler, each broken and mended, for a GPU.

    python -m tests.race.library_programs

Prints a line for each. Those without Triton and CuPy run in the simulation as well.
"""

import traceback

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from ggsched.printable import write_out
from ggsched_race.watch import watch

N = 1000
TWICE = """
extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""


def here():
    return torch.cuda.current_stream()


def double(x, out):
    from tests.race.library_kernels import double as kernel

    kernel[(4,)](x, out, N, B=256)


def set_up():
    x, out, side = (
        torch.ones(N, device="cuda"),
        torch.zeros(N, device="cuda"),
        torch.cuda.Stream(),
    )
    side.wait_stream(here())
    return x, out, side


# --- Triton ---------------------------------------------------------------------------------------


def triton_read_too_early(mended):
    x, out, side = set_up()
    with torch.cuda.stream(side):
        double(x, out)
    if mended:
        here().wait_stream(side)
    out.sum()


def triton_overwritten_too_early(mended):
    from tests.race.library_kernels import tuned

    x, out, side = set_up()
    with torch.cuda.stream(side):
        tuned[lambda options: (-(-N // options["B"]),)](x, out, N)
    if mended:
        here().wait_stream(side)
    x.zero_()


def triton_reads_what_others_read(mended):
    x, out, side = set_up()
    other = torch.zeros(N, device="cuda") if mended else out
    side.wait_stream(here())
    with torch.cuda.stream(side):
        double(x, out)
    double(x, other)


def triton_block_reused(mended):
    x, out, side = set_up()
    with torch.cuda.stream(side):
        double(x, out)
    if mended:
        x.record_stream(side)
    del x
    torch.zeros(N, device="cuda")


def triton_in_a_graph(mended):
    x, out, side = set_up()
    double(x, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        double(x, out)
    graph.replay()
    if mended:
        side.wait_stream(here())
    with torch.cuda.stream(side):
        x.fill_(3)


# --- collectives ----------------------------------------------------------------------------------


def nccl_result_read_too_early(mended):
    x, _, _ = set_up()
    work = dist.all_reduce(x, async_op=True)
    if mended:
        work.wait()
    x.sum()
    work.wait()


def nccl_input_overwritten(mended):
    x, out, _ = set_up()
    work = dist.all_gather([out], x, async_op=True)
    if mended:
        work.wait()
    x.zero_()
    work.wait()


def nccl_synchronous(mended):
    x, _, side = set_up()
    dist.all_reduce(x)
    if mended:
        side.wait_stream(here())
    with torch.cuda.stream(side):
        x.add_(1)


def nccl_functional(mended):
    x, _, side = set_up()
    total = functional.all_reduce(x, "sum", dist.group.WORLD) + 1
    if mended:
        side.wait_stream(here())
    with torch.cuda.stream(side):
        total.mul_(2)
    torch.cuda.synchronize()


# --- others ---------------------------------------------------------------------------------------


def compiled_function(mended):
    function = torch.compile(lambda x: torch.relu(x) * 2)
    x, _, side = set_up()
    with torch.cuda.stream(side):
        y = function(x)
    if mended:
        here().wait_stream(side)
        y.record_stream(here())
    y.sum()


def cupy_kernel(mended):
    import cupy

    kernel = cupy.RawKernel(TWICE, "twice")
    x, out, _ = set_up()
    side = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with side:
        kernel((4,), (256,), (cupy.from_dlpack(x), cupy.from_dlpack(out), N))
    if mended:
        side.synchronize()
    out.sum()


def cupy_arrays(mended):
    import cupy

    x = cupy.arange(N, dtype=cupy.float32)
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()
    with first:
        y = x * 2
        y += 1
        done = first.record()
    if mended:
        second.wait_event(done)
    with second:
        y.sum()
    cupy.cuda.Device().synchronize()


COLLECTIVES = [
    nccl_result_read_too_early, nccl_input_overwritten, nccl_synchronous, nccl_functional,
]  # fmt: skip
SIMULATED = [*COLLECTIVES, compiled_function]
PROGRAMS = [
    triton_read_too_early, triton_overwritten_too_early, triton_reads_what_others_read,
    triton_block_reused, triton_in_a_graph, *SIMULATED, cupy_kernel, cupy_arrays,
]  # fmt: skip


def report_of(program, mended, **options):
    """Return what is reported of a program; of collectives there is one rank."""
    with watch(program.__name__, raises=False, **options) as watched:
        if program in COLLECTIVES:
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        try:
            program(mended)
            torch.cuda.synchronize()
        finally:
            if program in COLLECTIVES:
                dist.destroy_process_group()
    return watched.report


def main():
    for program in PROGRAMS:
        for mended in (False, True):
            line = f"{program.__name__} {'mended' if mended else 'broken'}"
            try:
                report = report_of(program, mended)
            except Exception:  # one that cannot run must not hide the others
                write_out(f"ERROR {line}\n{traceback.format_exc()}")
                continue
            is_right = report.is_clean == mended
            write_out(f"{'right' if is_right else 'WRONG'} {line} {' '.join(report.notices)}\n")
            if not is_right:
                write_out(report.to_text())


if __name__ == "__main__":
    main()
