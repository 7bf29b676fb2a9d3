"""Writes the index of ops: ``python -m tests.docs.op_index docs/reference/op-index.md``.

It names the plug-ins, which ggsched itself does not. No device is needed: what their kernels cover
is known without one.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ggsched.ir.dtype import ALL_DTYPES, ARRAY_DTYPES, QUANTIZED_DTYPES
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.ops import BUILT_IN, LIBRARY_KEYS, OPS, operand_dtypes
from ggsched.ops.nd import library
from ggsched_cpu import supported as cpu
from ggsched_cuda_kernels.kernel_selection import fusions_of
from ggsched_kernels import CPU, GPU, supported_fusions, supported_ops, warp_profile
from ggsched_testing.sim.config import SIM_CAPABILITIES

MARK = "<!-- tables -->"
ORDER = [t.name for t in ALL_DTYPES]
SETS = {
    "packed": [t.name for t in QUANTIZED_DTYPES],
    "ints": [t.name for t in ARRAY_DTYPES if t.kind in ("int", "uint")],
}
KEYS: Mapping[str, Collection[str]] = {
    "cpu": cpu.supported_ops(is_compiled=True),
    "opencl": supported_ops("opencl", has_f64=True),
    "cuda": supported_ops("cuda", has_f64=True),
    "sim": SIM_CAPABILITIES["ops"],
}
_HOPPER = warp_profile(132, 227 << 10, has_tma=True)
GROUPS: Mapping[str, Collection[str]] = {
    "cpu": cpu.FUSIONS,
    "opencl": supported_fusions(CPU) | supported_fusions(GPU),
    "cuda": fusions_of(_HOPPER),
    "sim": SIM_CAPABILITIES["fusions"],
}


def filled(text: str) -> str:
    """Return a page with the present tables behind its mark."""
    head = text.partition(MARK)[0]
    return f"{head}{MARK}\n\n" + "\n".join(_lines()) + "\n"


def kernels(backend: str, op: str) -> set[str]:
    """Return the types of an op's first operand for which a backend has a kernel."""
    keys = KEYS[backend]
    if f"{op.partition('.')[0]}.*" in LIBRARY_KEYS & set(keys):
        return set(types_of(op))
    return {key.partition(":")[2] for key in keys if key.partition(":")[0] == op}


def types_of(op: str) -> set[str]:
    """Return the types that an op's first operand can have."""
    return {t.name for t in operand_dtypes(OPS[op])}


def _lines() -> Iterator[str]:
    yield from ("## Built-in ops", "")
    yield from _ops(BUILT_IN)
    yield from ("", "## The library nd", "")
    yield from _ops(sorted(library()))
    yield from ("", "## Groups", "")
    yield "A device compiles such nodes as one where they stand together."
    yield "`cuda` is that of an H100; older GPUs have fewer."
    yield ""
    yield "| group | " + " | ".join(GROUPS) + " |"
    yield "| --- |" + " --- |" * len(GROUPS)
    for name in (*PATTERNS, *sorted({n for g in GROUPS.values() for n in g} - set(PATTERNS))):
        cells = ("yes" if name in found else "-" for found in GROUPS.values())
        yield f"| `{name}` | " + " | ".join(cells) + " |"


def _ops(names: Collection[str]) -> Iterator[str]:
    columns = ("op", "operands", "parameters", "types", *KEYS, "groups")
    yield f"| {' | '.join(columns)} |"
    yield "|" + " --- |" * len(columns)
    for name in names:
        op, types = OPS[name], types_of(name)
        params = ", ".join(f"`{k}={v!r}`" for k, v in op.defaults.items())
        groups = ", ".join(f"`{p.name}`" for p in PATTERNS.values() if name in p.ops)
        found = (_types(kernels(backend, name) & types, types) for backend in KEYS)
        operands = ", ".join(op.operands).replace("*", "\\*")
        cells = (f"`{name}`", operands, params, _types(types), *found, groups)
        yield f"| {' | '.join(cells)} |"


def _types(found: set[str], every: Collection[str] = ()) -> str:
    if not found:
        return "-"
    if found == set(every):
        return "all"
    left, words = set(found), []
    for name, members in SETS.items():
        if left.issuperset(members):
            left -= set(members)
            words.append(name)
    return ", ".join([*sorted(left, key=ORDER.index), *words])


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
