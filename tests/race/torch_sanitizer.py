"""The score of PyTorch's own CUDA sanitizer on ``programs.py``, beside that of ``ggsched race``.

    .venv/bin/python -m tests.race.torch_sanitizer

The sanitizer is ``torch.cuda._sanitizer`` as it is installed; streams, events and memory are those
of the simulation, behind the hooks that it listens to. It stops at its first error, so that only
verdicts are compared.
"""

import contextlib
import io

from torch.cuda import _gpu_trace
from torch.cuda._sanitizer import CUDASanitizerDispatchMode, CUDASanitizerErrors

from ggsched.printable import write_out
from ggsched_race.pytorch import DispatchMode
from ggsched_race.simulation import simulated
from ggsched_race.watch import watch
from tests.race import programs

KINDS = {
    "vllm_24527": "pinned memory",
    "vllm_45704": "events and waits",
    "vllm_ascend_13394": "blocks of the allocator",
    "rtp_llm_1360": "graphs",
    "vllm_36942": "right",
}
"""The first program of each group of ``programs.py``."""


def sanitizer_reports(program, *arguments):
    """Whether PyTorch's sanitizer reports an error."""
    registries = [r for r in vars(_gpu_trace).values() if hasattr(r, "callback_list")]
    before = [list(r.callback_list) for r in registries]
    try:
        with (
            simulated() as cuda,
            DispatchMode(cuda.run),
            CUDASanitizerDispatchMode(),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            program(*arguments)
    except CUDASanitizerErrors:
        return True
    finally:
        for registry, callbacks in zip(registries, before, strict=True):
            registry.callback_list[:] = callbacks
    return False


def ours_reports(program, *arguments):
    """Whether ``ggsched race`` reports a finding."""
    with watch(program.__name__, simulate=True, raises=False) as watched:
        program(*arguments)
    return not watched.report.is_clean


def scores():
    """Yield for each program and variant: kind, name, racing, sanitizer's and our verdict."""
    kind = ""
    for program in (*programs.RACING, *programs.RIGHT):
        kind = KINDS.get(program.__name__, kind)
        for arguments in ((False,), (True,)) if program in programs.RACING else ((),):
            racing = arguments == (False,)
            verdicts = sanitizer_reports(program, *arguments), ours_reports(program, *arguments)
            yield kind, program.__name__, racing, *verdicts


def main():
    table = {}
    for kind, name, racing, theirs, ours in scores():
        row = table.setdefault(kind, [0, 0, 0])
        row[0] += 1
        row[1] += theirs == racing
        row[2] += ours == racing
        marks = ["right" if verdict == racing else "wrong" for verdict in (theirs, ours)]
        write_out(f"{kind:24} {name:20} {'racing' if racing else 'clean':7} {' '.join(marks)}\n")
    for kind, (count, theirs, ours) in table.items():
        write_out(f"| {kind} | {count} | {theirs} | {ours} |\n")
    sums = [sum(column) for column in zip(*table.values(), strict=True)]
    write_out(f"| all | {' | '.join(map(str, sums))} |\n")


if __name__ == "__main__":
    main()
