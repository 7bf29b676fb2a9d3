"""A tiny machine whose actors read and write cells, to test explorers with."""

from ggsched_testing.explore import Observation
from ggsched_testing.schedule_policy import Option


class Toy:
    """Each actor does its operations in order.

    ``("w", cell, value)`` writes, ``("r", cell)`` reads into the actor's log, ``("+", cell, n)``
    does both, ``("wait", actor, n)`` waits until another actor has done its first n operations.
    """

    def __init__(self, program, cells=3):
        self.program = program
        self.cells = [0] * cells
        self.logs = {actor: [] for actor in program}
        self.done = dict.fromkeys(program, 0)
        self.ended = {actor: [] for actor in program}
        self.moment = 0

    def run(self, policy):
        while options := self._options():
            at = policy.choose(options)
            self.moment += 1
            self._do(options[at].actor, policy)
        return Observation.of({"cells": str(self.cells), "logs": str(self.logs)})

    def _options(self):
        options = []
        for actor, ops in self.program.items():
            if self.done[actor] == len(ops):
                continue
            op = ops[self.done[actor]]
            causes = ()
            if op[0] == "wait":
                if self.done[op[1]] < op[2]:
                    continue
                causes = (self.ended[op[1]][op[2] - 1],) if op[2] else ()
            options.append(Option(actor, str(op), causes))
        return options

    def _do(self, actor, policy):
        op = self.program[actor][self.done[actor]]
        self.done[actor] += 1
        self.ended[actor].append(self.moment)
        if op[0] == "wait":
            return
        policy.touch("cells", op[1], op[1] + 1, writes=op[0] != "r")
        if op[0] != "w":
            self.logs[actor].append(self.cells[op[1]])
        if op[0] == "w":
            self.cells[op[1]] = op[2]
        elif op[0] == "+":
            self.cells[op[1]] += op[2]


def runner(program, cells=3):
    return lambda policy: Toy(program, cells).run(policy)


def every_order(run):
    """Return the observations of all orders, tried one by one."""

    class Path:
        tracks = False

        def __init__(self, choices):
            self.choices = choices
            self.counts = []

        def choose(self, options):
            at = len(self.counts)
            self.counts.append(len(options))
            return self.choices[at] if at < len(self.choices) else 0

        def touch(self, *args, **named):
            pass

    seen, stack, count = set(), [()], 0
    while stack:
        choices = stack.pop()
        path = Path(choices)
        seen.add(run(path))
        count += 1
        for at in range(len(choices), len(path.counts)):
            taken = (*choices, *([0] * (at - len(choices))))
            stack += [(*taken, other) for other in range(1, path.counts[at])]
    return seen, count
