"""The simulator keeps the contract in every combination of capabilities."""

from fnmatch import fnmatchcase

import pytest

from ggsched_testing.conformance import RULES, run_conformance, select
from ggsched_testing.sim import SimConfig
from ggsched_testing.sim.harness import sim_harness

EXAMPLES = 10
"""Few, as each combination has a seed of its own."""
NO_PATHS = frozenset()
QUEUES = "STR-*,EVT-*,BUF-*,CPY-*,FIL-*,ERR-*,CAP-*,COL-*,TRU-*,INT-*,ALL-*,LCH-1,LCH-4,LCH-5"
"""All rules but those on results, which no setting of queues changes: half of the kit's time."""

COMBINATIONS = {
    "everything": SimConfig(proposes_lanes=True),
    "host memory": SimConfig(is_host=True, kind="cpu", imports_host_memory=True),
    "no events": SimConfig(has_events=False),
    "barriers": SimConfig(copy_order="barrier"),
    "ordered by the host": SimConfig(copy_order="host"),
    "no copy paths": SimConfig(copies=NO_PATHS),
    "waits by a thread": SimConfig(waits="thread"),
    "waits by the host": SimConfig(waits="host"),
    "one stream": SimConfig(max_streams=1),
    "one stream, no events, ordered by the host": SimConfig(
        max_streams=1, has_events=False, copy_order="host"
    ),
    "transfer queues": SimConfig(transfer_queues=2),
    "transfer queues and barriers": SimConfig(transfer_queues=3, copy_order="barrier"),
    "snapshots": SimConfig(snapshots_uploads=True),
    "snapshots, barriers, two streams": SimConfig(
        snapshots_uploads=True, copy_order="barrier", max_streams=2
    ),
    "commands run behind a failed one": SimConfig(runs_after_faults=True),
    "commands run behind a failed one, transfer queues": SimConfig(
        runs_after_faults=True, transfer_queues=2, copy_order="barrier", waits="thread"
    ),
    "not deterministic": SimConfig(is_deterministic=False, takes_expert_ranges=False),
    "little memory": SimConfig(memory_nbytes=1 << 26, max_allocation_nbytes=1 << 25, alignment=256),
    "as little as there can be": SimConfig(
        has_events=False,
        copy_order="host",
        copies=NO_PATHS,
        waits="host",
        max_streams=1,
        transfer_queues=2,
        memory_nbytes=1 << 26,
        alignment=1,
        ops=frozenset(),
    ),
}


RULES_OF = {
    "everything": "*",
    "not deterministic": f"{QUEUES},LCH-2,LCH-3",
    "little memory": f"{QUEUES},LCH-2,LCH-3",
    "as little as there can be": "*",
}

LONG = (
    "*_drawn_*",
    "all1_*",
    "*_deep_queue",
    "lch1_every_op",
    "lch2_*",
    "lch3_*",
    "buf6_not_reused_early",
    "lch4_same_bytes",
    "lch5_*",
    "str2_many_commands",
    "*_long_launch",
    "buf1_many_buffers",
)
"""Cases that take a tenth of a second or more: each is run in some of the combinations."""

SHARE = 5
"""One long case in so many is run in a combination, another one in each; all in slow tests."""


def kept(name, rules, share=SHARE):
    number = list(COMBINATIONS).index(name)
    cases = select(rules)
    if name != "everything":
        long = [c for c in cases if any(fnmatchcase(c.name, pattern) for pattern in LONG)]
        left_out = {c for i, c in enumerate(long) if i % share != number % share}
        cases = [c for c in cases if c not in left_out]
    report = run_conformance(
        sim_harness(COMBINATIONS[name], name=name),
        rules=[c.name for c in cases],
        seed=number,
        max_examples=EXAMPLES,
    )
    report.raise_if_findings()
    return report


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combination(name):
    report = kept(name, RULES_OF.get(name, QUEUES))
    if name == "everything":
        skipped = {
            rule
            for rule, results in report.by_rule().items()
            if rule[:3] in ("STR", "EVT", "BUF", "CPY", "ERR", "TRU")
            and all(r.verdict == "skip" for r in results)
        }
        assert skipped <= {"BUF-4", "BUF-5"}  # host views and imports, which it has not
        assert set(report.by_rule()) == set(RULES)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINATIONS)
def test_all_cases(name):
    kept(name, "*" if name in RULES_OF else QUEUES, share=1)


def test_all_rules_but_those_on_results():
    chosen = {case.rule for case in select(QUEUES)}
    assert set(RULES) - chosen == {"LCH-2", "LCH-3", "LCH-6", "LCH-7", "LCH-8"}


def test_a_pair_of_different_devices():
    first, second = SimConfig(copy_order="barrier", waits="thread"), SimConfig(is_host=True)
    for pair in ((first, second), (second, first)):
        harness = sim_harness(*pair, name="a pair")
        rules = "EVT-4,CPY-1,CPY-6,ALL-1"
        run_conformance(harness, rules=rules, max_examples=EXAMPLES).raise_if_findings()


@pytest.mark.slow  # each combination has a seed of its own
@pytest.mark.parametrize("seed", range(1, 3))
def test_other_orders(seed):
    run_conformance(
        sim_harness(), rules=QUEUES, seed=seed, max_examples=EXAMPLES
    ).raise_if_findings()
