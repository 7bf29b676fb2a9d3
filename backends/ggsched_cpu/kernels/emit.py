"""A builder of LLVM IR as text, for kernels with explicit vectors.

Values carry their type. State that changes in loops lives in variables (``var``), which LLVM turns
into registers. Every kernel has one signature, ``KERNEL``: a pointer to its arguments (64-bit
slots), the part to compute, the number of parts, and scratch memory of the thread.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ggsched_cpu.kernels.target import Target

KERNEL: Final = "i64 (ptr, i64, i64, ptr)"
"""The type of a kernel; it returns 0, or 1 plus the 32 bits of an id that is out of range."""

SCRATCH_NBYTES: Final = 1 << 20
"""Scratch memory of each thread, undefined when a part begins."""


@dataclass(frozen=True, slots=True)
class Value:
    """An operand of an instruction.

    Attributes:
        text: As written in IR.
    """

    text: str
    type: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def lanes(self) -> int:
        """Elements of a vector; 1 of a scalar."""
        return int(self.type[1:].split(" ", 1)[0]) if self.type.startswith("<") else 1

    @property
    def element(self) -> str:
        """Type of an element."""
        return self.type.split(" x ")[1][:-1] if self.type.startswith("<") else self.type


@dataclass(frozen=True, slots=True)
class Variable:
    """A place of a function that can be written again."""

    pointer: str
    type: str


Int = int | Value


def vector_of(lanes: int, element: str) -> str:
    """Return a type: a vector, or the element itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def i64(number: int) -> Value:
    """Return a constant."""
    return Value(str(number), "i64")


def f32(number: float) -> Value:
    """Return a constant, rounded to f32 (written as the f64 of the same value)."""
    rounded = struct.unpack("<f", struct.pack("<f", number))[0]
    return Value(f64(rounded).text, "float")


def f64(number: float) -> Value:
    """Return a constant."""
    return Value(f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}", "double")


def constant(element: str, numbers: Sequence[float | int]) -> Value:
    """Return a constant vector."""
    parts = [f32(n).text if element == "float" else str(n) for n in numbers]
    joined = ", ".join(f"{element} {p}" for p in parts)
    return Value(f"<{joined}>", vector_of(len(numbers), element))


@dataclass
class Builder:
    """Writes one function.

    Args:
        name: Of the function.
        target: The processor.
        parameters: Names and types.
        result: Type of what it returns.

    Attributes:
        weights_end: Where the weights end that the part reads, if that is known.
        ahead: How far ahead weights of this row are fetched, in bytes, on targets that
            ``fetches_past_caches``.
    """

    name: str
    target: Target
    parameters: Sequence[tuple[str, str]] = (
        ("args", "ptr"),
        ("part", "i64"),
        ("parts", "i64"),
        ("scratch", "ptr"),
    )
    result: str = "i64"
    weights_end: Value | None = None
    ahead: Value | None = None
    declared: dict[str, str] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)
    _variables: list[str] = field(default_factory=list)
    _count: int = 0

    # --- instructions -------------------------------------------------------------------------

    def parameter(self, name: str) -> Value:
        """Return a parameter."""
        return Value(f"%{name}", dict(self.parameters)[name])

    def line(self, text: str) -> None:
        """Write an instruction without a result."""
        self._lines.append(f"  {text}")

    def value(self, type_: str, text: str) -> Value:
        """Write an instruction; return its result."""
        self._count += 1
        self.line(f"%x{self._count} = {text}")
        return Value(f"%x{self._count}", type_)

    def binary(self, op: str, a: Value, b: Int | float) -> Value:
        """Write ``op`` of two operands; a number becomes a constant of the type."""
        return self.value(a.type, f"{op} {a}, {self.same(a, b).text}")

    def same(self, like: Value, number: Int | float) -> Value:
        """Return a number as a constant of a value's type; vectors of one number are splats."""
        if isinstance(number, Value):
            return number
        text = str(number)
        if like.element in ("float", "double"):
            text = (f32 if like.element == "float" else f64)(number).text
        if like.lanes == 1:
            return Value(text, like.type)
        return Value(f"splat ({like.element} {text})", like.type)

    def add(self, a: Value, b: Int) -> Value:
        """Integers."""
        return self.binary("add", a, b)

    def sub(self, a: Value, b: Int) -> Value:
        """Integers."""
        return self.binary("sub", a, b)

    def mul(self, a: Value, b: Int) -> Value:
        """Integers."""
        return a if isinstance(b, int) and b == 1 else self.binary("mul", a, b)

    def udiv(self, a: Value, b: Int) -> Value:
        """Integers."""
        return self.binary("udiv", a, b)

    def urem(self, a: Value, b: Int) -> Value:
        """Integers."""
        return self.binary("urem", a, b)

    def umin(self, a: Value, b: Int) -> Value:
        """Return the smaller of two integers."""
        b = self.same(a, b)
        return self.select(self.compare("ult", a, b), a, b)

    def fadd(self, a: Value, b: Value | float) -> Value:
        """Floats."""
        return self.binary("fadd", a, b)

    def fsub(self, a: Value, b: Value | float) -> Value:
        """Floats."""
        return self.binary("fsub", a, b)

    def fmul(self, a: Value, b: Value | float) -> Value:
        """Floats."""
        return self.binary("fmul", a, b)

    def fdiv(self, a: Value, b: Value | float) -> Value:
        """Floats."""
        return self.binary("fdiv", a, b)

    def fma(self, a: Value, b: Value | float, c: Value | float) -> Value:
        """Return ``a * b + c``, rounded once."""
        return self.intrinsic("fma", a, self.same(a, b), self.same(a, c))

    def compare(self, how: str, a: Value, b: Int | float) -> Value:
        """Return bits: ``how`` as in ``icmp`` or ``fcmp``."""
        op = "fcmp" if a.element in ("float", "double") else "icmp"
        bits = vector_of(a.lanes, "i1")
        return self.value(bits, f"{op} {how} {a}, {self.same(a, b).text}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return a where the condition holds, else b."""
        return self.value(a.type, f"select {condition}, {a}, {b}")

    def cast(self, op: str, a: Value, element: str) -> Value:
        """Convert elements: ``sext``, ``sitofp``, ``fpext``, ``bitcast``, ..."""
        to = vector_of(a.lanes, element)
        return self.value(to, f"{op} {a} to {to}")

    def bitcast(self, a: Value, to: str) -> Value:
        """Take the same bits as another type."""
        return self.value(to, f"bitcast {a} to {to}")

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """Choose lanes of one or two vectors."""
        other = f"{a.type} poison" if b is None else str(b)
        mask = ", ".join(f"i32 {i}" for i in lanes)
        to = vector_of(len(lanes), a.element)
        return self.value(to, f"shufflevector {a}, {other}, <{len(lanes)} x i32> <{mask}>")

    def table(self, name: str, numbers: Sequence[float]) -> Value:
        """Return a pointer to constants in memory."""
        items = ", ".join(str(f32(n)) for n in numbers)
        kind = f"private unnamed_addr constant [{len(numbers)} x float] [{items}], align 64"
        self.declared[f"@{name}"] = f"@{name} = {kind}"
        return Value(f"@{name}", "ptr")

    def splat(self, a: Value, lanes: int) -> Value:
        """Spread a scalar over lanes."""
        if lanes == 1:
            return a
        first = self.insert(Value("poison", vector_of(lanes, a.type)), a, 0)
        return self.shuffle(first, None, [0] * lanes)

    def insert(self, vector: Value, a: Value, lane: int) -> Value:
        """Replace a lane."""
        return self.value(vector.type, f"insertelement {vector}, {a}, i32 {lane}")

    def extract(self, vector: Value, lane: int) -> Value:
        """Return a lane."""
        return self.value(vector.element, f"extractelement {vector}, i32 {lane}")

    def zero(self, type_: str) -> Value:
        """Return the zero of a type."""
        return Value("zeroinitializer" if type_[0] == "<" else f32(0).text, type_)

    def join(self, a: Value, b: Value) -> Value:
        """Return two vectors of one type as one."""
        return self.shuffle(a, b, range(a.lanes + b.lanes))

    def piece(self, a: Value, start: int, lanes: int) -> Value:
        """Return lanes that follow each other."""
        return a if lanes == a.lanes else self.shuffle(a, None, range(start, start + lanes))

    def intrinsic(self, name: str, *operands: Value, type_: str = "", suffix: str = "") -> Value:
        """Call ``llvm.name`` of operands; overloaded by the first unless ``suffix`` says how."""
        a = operands[0]
        to = type_ or a.type
        short = {"float": "f32", "double": "f64"}.get(a.element, a.element)
        over = suffix or (f"v{a.lanes}{short}" if a.lanes > 1 else short)
        full = f"llvm.{name}" + ("" if over == "-" else f".{over}")
        self.declared[full] = f"declare {to} @{full}({', '.join(o.type for o in operands)})"
        return self.value(to, f"call {to} @{full}({', '.join(map(str, operands))})")

    def saturated(self, a: Value, element: str) -> Value:
        """Convert f32 to integers, the nearest where there are none so large; NaN to 0."""
        over = [f"v{a.lanes}" * (a.lanes > 1) + t for t in (element, "f32")]
        type_ = vector_of(a.lanes, element)
        return self.intrinsic("fptosi.sat", a, type_=type_, suffix=".".join(over))

    def sum(self, a: Value) -> Value:
        """Return the sum of the lanes, halves first."""
        return self._fold(a, self.fadd)

    def product(self, a: Value) -> Value:
        """Return the product of the lanes, halves first."""
        return self._fold(a, self.fmul)

    def largest(self, a: Value) -> Value:
        """Return the largest lane."""
        return self._fold(a, self.fmax)

    def _fold(self, a: Value, join: Callable[[Value, Value], Value]) -> Value:
        while a.lanes > 2:
            half = a.lanes // 2
            a = join(self.piece(a, 0, half), self.piece(a, half, half))
        return a if a.lanes == 1 else join(self.extract(a, 0), self.extract(a, 1))

    def fmax(self, a: Value, b: Value | float) -> Value:
        """Return the larger; a where it is NaN."""
        b = self.same(a, b)
        return self.select(self.compare("ogt", b, a), b, a)

    def fmin(self, a: Value, b: Value | float) -> Value:
        """Return the smaller; a where it is NaN."""
        b = self.same(a, b)
        return self.select(self.compare("olt", b, a), b, a)

    # --- memory -------------------------------------------------------------------------------

    def offset(self, pointer: Value, nbytes: Int) -> Value:
        """Return a pointer some bytes further."""
        if isinstance(nbytes, int):
            if nbytes == 0:
                return pointer
            nbytes = i64(nbytes)
        return self.value("ptr", f"getelementptr i8, {pointer}, {nbytes}")

    def load(self, type_: str, pointer: Value, align: int = 1) -> Value:
        """Read a value."""
        return self.value(type_, f"load {type_}, {pointer}, align {align}")

    def store(self, value: Value, pointer: Value, align: int = 1) -> None:
        """Write a value."""
        self.line(f"store {value}, {pointer}, align {align}")

    def prefetch(self, pointer: Value, *, to_write: bool = False, level: int = 1) -> None:
        """Ask for the cache line of an address, which need not be one of the process.

        Args:
            pointer: The address.
            to_write: Whether this processor is to own the line.
            level: Of the cache: 1 or 2; 0 for the first one alone, past the others.
        """
        locality = 4 - level if level else 0
        self.declared["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        self.line(
            f"call void @llvm.prefetch.p0({pointer}, i32 {int(to_write)}, i32 {locality}, i32 1)"
        )

    def arg(self, slot: int) -> Value:
        """Read an argument of the kernel as an integer."""
        return self.load("i64", self.offset(self.parameter("args"), 8 * slot), 8)

    def arg_pointer(self, slot: int) -> Value:
        """Read an argument as a pointer."""
        return self.load("ptr", self.offset(self.parameter("args"), 8 * slot), 8)

    def arg_f32(self, slot: int) -> Value:
        """Read an argument as a float (its bits are the lower half of the slot)."""
        return self.load("float", self.offset(self.parameter("args"), 8 * slot), 8)

    def var(self, initial: Value) -> Variable:
        """Make a variable."""
        self._count += 1
        pointer = f"%v{self._count}"
        self._variables.append(f"  {pointer} = alloca {initial.type}")
        self.line(f"store {initial}, ptr {pointer}")
        return Variable(pointer, initial.type)

    def get(self, variable: Variable) -> Value:
        """Read a variable."""
        return self.value(variable.type, f"load {variable.type}, ptr {variable.pointer}")

    def set(self, variable: Variable, value: Value) -> None:
        """Write a variable."""
        self.line(f"store {value}, ptr {variable.pointer}")

    # --- control ------------------------------------------------------------------------------

    def label(self, name: str) -> None:
        """Begin a block, reached from the previous one."""
        self.line(f"br label %{name}")
        self._lines.append(f"{name}:")

    def begin(self, name: str) -> None:
        """Begin a block; the previous one has ended."""
        self._lines.append(f"{name}:")

    def fresh(self, name: str) -> str:
        """Return an unused name of a block."""
        self._count += 1
        return f"{name}{self._count}"

    @contextmanager
    def loop(self, start: Int, stop: Value, step: Int = 1) -> Iterator[Value]:
        """Repeat for each index from start on that is below stop (signed)."""
        index = self.var(i64(start) if isinstance(start, int) else start)
        head, body, end = (self.fresh(n) for n in ("head", "body", "end"))
        self.label(head)
        now = self.get(index)
        more = self.compare("slt", now, stop)
        self.line(f"br {more}, label %{body}, label %{end}")
        self._lines.append(f"{body}:")
        yield now
        self.set(index, self.add(now, step))
        self.line(f"br label %{head}")
        self._lines.append(f"{end}:")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Do something where a condition holds."""
        body, end = self.fresh("then"), self.fresh("end")
        self.line(f"br {condition}, label %{body}, label %{end}")
        self._lines.append(f"{body}:")
        yield
        self.label(end)

    def leave(self, value: Value) -> None:
        """Return from the function here; what follows is another block."""
        self.line(f"ret {value}")
        self._lines.append(f"{self.fresh('after')}:")

    def call(self, result: str, function: Value, *operands: Value) -> Value:
        """Call a function by its address."""
        text = f"call {result} {function.text}({', '.join(map(str, operands))})"
        if result == "void":
            self.line(text)
            return Value("", "void")
        return self.value(result, text)

    # --- the text -----------------------------------------------------------------------------

    def text(self) -> str:
        """Return the function, which ends by returning 0."""
        given = ", ".join(f"{t} %{n}" for n, t in self.parameters)
        last = "ret void" if self.result == "void" else f"ret {self.result} 0"
        body = [*self._variables, *self._lines, f"  {last}"]
        return "\n".join([f"define {self.result} @{self.name}({given}) {{", *body, "}"])


def module_text(*functions: Builder) -> str:
    """Return functions as one module."""
    declared: dict[str, str] = {}
    for function in functions:
        declared |= function.declared
    return "\n".join([*(declared[k] for k in sorted(declared)), *(f.text() for f in functions)])
