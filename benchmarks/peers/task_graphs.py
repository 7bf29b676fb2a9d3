"""Graphs of tiny tasks, in a form that every peer can be given.

A task adds or multiplies two earlier results of 16 floats. Every result is needed for the last one,
so a peer that leaves out what nobody requests has nothing to leave out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

import numpy as np

from ggsched.ir import Graph, GraphBuilder

X: Final = 0
C: Final = 1
FIRST: Final = 2
"""Operand numbers: the input, the constant, and from 2 on the results in order."""

SIZE: Final = 16
WINDOW: Final = 64

Op = Literal["add", "mul"]
Call = tuple[Op, int, int]


@dataclass(frozen=True, slots=True)
class Tasks:
    """A graph of tasks.

    Attributes:
        name: For the table.
        calls: Op and operand numbers of each task, in an order in which they can run.
    """

    name: str
    calls: tuple[Call, ...]

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the input and the constant: float32 (16,)."""
        return np.arange(SIZE, dtype=np.float32), np.full(SIZE, 1 / 3, np.float32)

    def graph(self) -> Graph:
        """Return the tasks as nodes; the last result is the output."""
        g = GraphBuilder(self.name)
        made = [g.input("x", (SIZE,)), g.weight("c", (SIZE,))]
        for op, a, b in self.calls:
            made.append((g.add if op == "add" else g.mul)(made[a], made[b]))
        return g.build(made[-1])


def chain(n: int) -> Tasks:
    """Return x = x + c, n times."""
    calls: list[Call] = [("add", X, C)]
    calls += [("add", FIRST + i, C) for i in range(n - 1)]
    return Tasks(f"chain {n}", tuple(calls))


def diamonds(n: int) -> Tasks:
    """Return a row of diamonds: q, k and v from x, then x = (q + k) + v; five tasks each."""
    calls: list[Call] = []
    x = X
    for _ in range(n // 5):
        q = FIRST + len(calls)
        calls += [("mul", x, C), ("mul", x, C), ("mul", x, C), ("add", q, q + 1)]
        calls.append(("add", q + 3, q + 2))
        x = q + 4
    return Tasks(f"diamonds {n}", tuple(calls))


def random_dag(n: int, seed: int = 0) -> Tasks:
    """Return sums of two of the 64 results before each; what nobody has read is summed at last."""
    random, calls = Random(seed), list[Call]()
    made, unread = [X, C], {X: None, C: None}  # a dict, because its order is that of making
    for i in range(n):
        left, remaining = list(unread), n - i
        a, b = (random.choice(made[-WINDOW:]) for _ in range(2))
        if remaining <= len(left):  # from here on each task has to read one that is unread
            a = left[0]
        if remaining < len(left):  # or two
            b = left[1]
        calls.append(("add", a, b))
        for operand in (a, b):
            unread.pop(operand, None)
        made.append(FIRST + i)
        unread[FIRST + i] = None
    return Tasks(f"random DAG {n}", tuple(calls))


SHAPES: Final[tuple[Callable[[int], Tasks], ...]] = (chain, diamonds, random_dag)
