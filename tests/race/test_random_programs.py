"""Verdicts on random programs, with and without one of their waits, against every order."""

import pytest

from ggsched.sanitize import check_trace
from ggsched.trace.export import read_trace
from tests.race.random_programs import (
    Call,
    races_in_some_order,
    recorded,
    run_in_torch,
    variants,
)

SEEDS = 400


def races(trace):
    return not check_trace(read_trace(trace)).is_clean


def differing(seeds, verdict):
    return [
        (seed, program)
        for seed in seeds
        for program in variants(seed)
        if verdict(program) != races_in_some_order(program)
    ]


def test_brute_force_on_programs_of_which_the_verdict_is_plain():
    span = ((0, 0, 4),)
    write, read = Call("work", 0, writes=span), Call("work", 1, reads=span)
    record, wait = Call("record", 0), Call("wait", 1)
    assert races_in_some_order([write, read])
    assert races_in_some_order([record, write, wait, read])
    assert not races_in_some_order([write, record, wait, read])
    assert not races_in_some_order([write, Call("stream", 0), read])
    assert races_in_some_order([write, Call("stream", 1), read])


def test_verdict_of_recorded_calls_is_that_of_every_order():
    assert differing(range(SEEDS), lambda program: races(recorded(program))) == []


def test_both_verdicts_are_drawn():
    verdicts = [races_in_some_order(next(variants(seed))) for seed in range(100)]
    assert 15 < sum(verdicts) < 85


@pytest.mark.parametrize("block", range(4))
def test_verdict_of_pytorch_programs_is_that_of_every_order(block):
    pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")
    from ggsched_race.watch import watch

    def verdict(program):
        with watch("random", simulate=True, raises=False) as watched:
            run_in_torch(program)
        return not watched.report.is_clean

    assert differing(range(block * 10, block * 10 + 10), verdict) == []
