"""Calls that follow each other as steps of one kernel, whose groups stay on the device.

A small kernel takes about as long as its start and its end. The groups of a merged one are as many
as the device keeps at once; they take the groups of one step after the other, and meet in between.
The kernels of the calls become functions, as their texts say it, with local memory that they share.
Addresses and values are in a table, so that programs of the same kinds of calls have one text.
"""

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from ggsched.backend.program import Operand
from ggsched_kernels.calls import CODE, Arg, CodeOf, FloatBytes, KernelCall

PREFIX: Final = "merged-"
MERGEABLE: Final = frozenset(
    {
        "attention_blocks", "attention_row", "copy", "elementwise", "matvec", "matvec_rows",
        "norm", "rope", "rope_attention", "rope_kv_write", "rows", "softmax", "sort",
    }
)  # fmt: skip
"""Sources whose kernels can be functions: local memory is declared at their top, once for all."""

WAITING: Final = frozenset({"matvec_rows"})
"""Those that say themselves from where on they need what earlier steps write, but for weights."""

LEAST_CALLS: Final = 6
"""Fewer calls stay kernels of their own."""

_LOOKED_AT: Final = 40
"""Calls before one that may be in its phase or a later one."""

_HEAD: Final = struct.Struct("<6i")
_FIRST: Final = 1
_LAST: Final = 2
_WAITS: Final = 4
_NAMES: Final = (
    r"^FN [^(]*?(\w+)\(", r"^DEFINE_\w+\((\w+),", r"^} (\w+);", r"^KERNEL\((\w+)\)",
)  # fmt: skip
_LOCAL: Final = re.compile(r"\bLOCAL (\w+) (\w+)\[(.+?)\](?=;| *\\?$)", re.MULTILINE)
_SIZED: Final = "((sizeof({0}) * ({1}) + 15) / 16 * 16)"

Kind = tuple[str, tuple[tuple[str, str], ...], str, str]
"""Source, definitions, kernel, and a letter for each argument."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Calls as one.

    Attributes:
        name: Names the source, see ``merged_source``.
        lanes: Work-items of a group.
        calls: The calls, phase by phase.
        flags: Whether each begins or ends a phase, or waits before it reads; as in merged.cl.
        before: Groups of the calls before each in its phase.
        kinds: Which function each of them is.
        step_nbytes: Of the table for each call.
    """

    name: str
    lanes: int
    calls: tuple[KernelCall, ...]
    flags: tuple[int, ...]
    before: tuple[int, ...]
    kinds: tuple[int, ...]
    step_nbytes: int

    def table(self, value_of: Callable[[Arg, str], bytes]) -> bytes:
        """Return the table of the steps.

        Args:
            value_of: Returns the bytes of an argument of a call with that label, of memory its
                address.
        """
        made = bytearray()
        each = zip(self.calls, self.kinds, self.flags, self.before, strict=True)
        for call, kind, flags, before in each:
            step = bytearray(_HEAD.pack(kind, *call.groups, flags, before))
            for arg in call.args:
                value = value_of(arg, call.label)
                step += value + bytes(-len(value) % 8)
            made += step + bytes(self.step_nbytes - len(step))
        return bytes(made)


def phases(calls: Sequence[KernelCall]) -> list[list[KernelCall]]:
    """Sort calls into phases: those of one are independent, and none could be in an earlier one."""
    found: list[list[KernelCall]] = []
    levels: list[int] = []
    for i, call in enumerate(calls):
        first = max(0, i - _LOOKED_AT)
        level = max(levels[:first], default=-1)
        for j in reversed(range(first, i)):
            if levels[j] > level and _depend(calls[j], call):
                level = levels[j]
        levels.append(level + 1)
        if len(found) <= level + 1:
            found.append([])
        found[level + 1].append(call)
    return found


def _depend(a: KernelCall, b: KernelCall) -> bool:
    if not (a.reads and b.reads):
        return True
    return any(x.meets(y) for x in a.writes for y in (*b.reads, *b.writes)) or any(
        x.meets(y) for x in a.reads for y in b.writes
    )


def runs(calls: Sequence[Any], least: int = LEAST_CALLS) -> list[list[Any]]:
    """Cut calls into runs that can be merged, and single ones."""
    found: list[list[Any]] = []
    for call in calls:
        last = found[-1][-1] if found else None
        if last is not None and _fits(last) and _fits(call) and last.lanes == call.lanes:
            found[-1].append(call)
        else:
            found.append([call])
    return [part for run in found for part in ([run] if len(run) >= least else [[c] for c in run])]


def _fits(call: Any) -> bool:
    return isinstance(call, KernelCall) and call.source in MERGEABLE


def merged(calls: Sequence[KernelCall]) -> Merged:
    """Merge calls of groups of the same size."""
    flags: list[int] = []
    before: list[int] = []
    sorted_calls = phases(calls)
    for phase in sorted_calls:
        groups = [prod(call.groups) for call in phase]
        before += [sum(groups[:i]) for i in range(len(phase))]
        flags += [0] * len(phase)
        flags[-len(phase)] |= _FIRST
        flags[-1] |= _LAST
    calls = [call for phase in sorted_calls for call in phase]
    flags[0], flags[-1] = flags[0] & ~_FIRST, flags[-1] & ~_LAST  # nobody waits for these
    written: list[Operand] = []
    for i, call in enumerate(calls):
        is_early = call.source in WAITING and call.reads
        if not is_early or any(w.meets(r) for w in written for r in call.early_reads):
            flags[i] |= _WAITS
        written += call.writes
    every = [(c.source, c.defines, c.kernel, "".join(map(_letter, c.args))) for c in calls]
    kinds = list(dict.fromkeys(every))
    arguments = max(sum(_NBYTES[letter] for letter in kind[3]) for kind in kinds)
    nbytes = -(-(_HEAD.size + arguments) // 128) * 128
    name = PREFIX + json.dumps([calls[0].lanes, nbytes, kinds])
    numbers = tuple(map(kinds.index, every))
    return Merged(name, calls[0].lanes, tuple(calls), tuple(flags), tuple(before), numbers, nbytes)


_NBYTES: Final = {"p": 8, "l": 8, "i": 8, "f": 8, "T": 56}
_TYPES: Final = {"l": "long", "i": "int", "f": "float"}


def _letter(arg: Arg) -> str:
    if isinstance(arg, FloatBytes):
        return "f"
    if isinstance(arg, bytes):
        return {4: "i", 8: "l", 56: "T"}[len(arg)]
    return "i" if arg is CODE or isinstance(arg, CodeOf) else "p"


def merged_source(name: str, source: Callable[[str], str], first: str, last: str) -> str:
    """Return the text of merged calls.

    Args:
        name: As ``Merged`` says.
        source: Returns the text of a source.
        first: The text in front of the functions.
        last: That behind them.
    """
    lanes, nbytes, kinds = json.loads(name.removeprefix(PREFIX))
    units: dict[str, list[int]] = {}
    for i, (file, defines, _, _) in enumerate(kinds):
        units.setdefault(json.dumps([file, defines]), []).append(i)
    parts = [f"#define LANES {lanes}", first, "#undef LANES"]
    seen, sizes, cases = set[str](), ["1"], []
    for number, (unit, members) in enumerate(units.items()):
        file, defines = json.loads(unit)
        text, names = _functions(source(file), number)
        macros = {m for m, _ in defines} | set(re.findall(r"^ *# *define +(\w+)", text, re.M))
        lines = [line for line in text.splitlines() if line not in seen]
        seen |= {line for line in lines if re.match(r"typedef [^{]*;$", line)}
        parts += [f"#define {macro} {value}" for macro, value in defines]
        parts += ["#define MERGED 1", *lines]
        for i in members:
            kernel, letters = kinds[i][2:]
            parts.append(f"enum {{ local_{i}_ = {names[kernel]} }};")
            sizes.append(f"local_{i}_")
            given = ", ".join(_given(letters, number))
            call = f"{kernel}_{number}(&barrier_, group_, (__local uchar *)local_, {given})"
            cases.append(f"case {i}: {call}; break;")
        parts += [f"#undef {macro}" for macro in sorted({*macros, "MERGED"})]
    most = sizes[0]
    for size in sizes[1:]:
        parts.append(f"enum {{ most_{size} = {size} > {most} ? {size} : {most} }};")
        most = f"most_{size}"
    parts += [
        f"#define LANES {lanes}", f"#define STEP_NBYTES {nbytes}",
        f"#define LOCAL_ {most}",
        "#define AT_(type, at) (*(__local const type *)(args_ + (at)))",
        "#define STEP_(function, at) do { __local const uchar *args_ = (at); \\",
        f"switch (function) {{ {' '.join(cases)} }} }} while (0)",
        last,
    ]  # fmt: skip
    return "\n".join(parts)


def _given(letters: str, number: int) -> list[str]:
    """Return the arguments of a function, as they lie behind each other."""
    given, at = [], 0
    for letter in letters:
        kind = f"Tens_{number}" if letter == "T" else _TYPES.get(letter, "ulong")
        value = f"AT_({kind}, {at})"
        given.append(f"(__global void *){value}" if letter == "p" else value)
        at += _NBYTES[letter]
    return given


def _functions(text: str, number: int) -> tuple[str, dict[str, str]]:
    """Return a text with functions in the place of kernels, all names its own, and local sizes."""
    names = sorted({name for rule in _NAMES for name in re.findall(rule, text, re.M)})
    shared = re.search(r"#define LOCALS(?:.*\\\n)*.*", text)
    sizes = {}
    for found in re.finditer(r"^KERNEL\((\w+)\).*?^}", text, re.M | re.S):
        body = found[0] + (shared[0] if shared and "LOCALS;" in found[0] else "")
        local = [_SIZED.format(kind, count) for kind, _, count in _LOCAL.findall(body)]
        sizes[found[1]] = " + ".join(["16", *local])
    text = _LOCAL.sub(
        lambda m: (
            f"LOCAL_PTR {m[1]} *{m[2]} = (LOCAL_PTR {m[1]} *)local_; "
            f"local_ += {_SIZED.format(m[1], m[3])}"
        ),
        text,
    )
    text = re.sub(
        r"^KERNEL\((\w+)\)\(",
        r"FN void \1(GridBarrier_ *barrier_, const int *group_, LOCAL_PTR uchar *local_, ",
        text, flags=re.M,
    )  # fmt: skip
    own = re.compile(rf"\b({'|'.join(names)})\b")
    renamed = {k: own.sub(rf"\1_{number}", v) for k, v in sizes.items()}
    return own.sub(rf"\1_{number}", text), renamed
