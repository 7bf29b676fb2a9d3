"""Backends that are broken on purpose, to see whether the conformance kit notices.

    from tests.mutants.score import mutation_score
    from tests.mutants.table import MUTANTS

Each mutant breaks one rule, and a case of that rule has to reject it. ``make mutation`` measures it
all and writes ``docs/reference/mutation-score.md``.
"""
