"""The kit itself: verdicts, waivers, programs, harnesses, hangs."""

import itertools
import json
import threading
from dataclasses import replace

import pytest

from ggsched.backend.base import BaseBackend, BaseDevice, host_facts
from ggsched.errors import BackendUnavailable, UsageError
from ggsched_testing.conformance import (
    RULES,
    CaseResult,
    ConformanceRunner,
    ContractBroken,
    Harness,
    Waiver,
    all_cases,
    run_conformance,
    select,
)
from ggsched_testing.conformance.case import Case, case
from ggsched_testing.conformance.harness import adapted
from ggsched_testing.conformance.needs import NEEDS, need
from ggsched_testing.conformance.report import explain, summary
from ggsched_testing.conformance.runner import stale_waivers
from ggsched_testing.sim import SimConfig
from ggsched_testing.sim.harness import sim_harness
from tests.testing import broken_devices
from tests.testing.broken_devices import (
    DeafStream,
    HangingStream,
    RudeStream,
    SlowStream,
    base_with,
    cpu_with,
    deaf_simulator,
    open_deaf,
)

DEAF = deaf_simulator()


class Point:
    """An entry point."""

    def __init__(self, name, load):
        self.name, self.value, self._load = name, f"{name}:open", load

    def load(self):
        return self._load


# --- verdicts -----------------------------------------------------------------------------------


def test_a_finding_has_rule_statement_program_and_replay():
    report = run_conformance(DEAF, rules="evt2_holds_downloads", seed=3)
    (result,) = report.findings
    assert not report.ok
    assert report.broken_rules == ("EVT-2",)
    assert result.verdict == "fail"
    assert "is done while what it has to follow is held" in result.reason
    lines = "\n".join(explain(result, "broken"))
    assert "q1.wait(e0)" in lines
    assert "hold q0" in lines
    assert "--rules evt2_holds_downloads --seed 3" in lines
    assert result.case.statement in lines
    assert RULES["EVT-2"] in lines


def test_the_same_seed_gives_the_same_program():
    """On simulated devices nothing but the seed decides until a case watches for a while.

    Whether a stream is seen to be done meanwhile is up to threads of the host. Cases of scale
    measure how long launches have to be.
    """

    def programs(seed):
        findings = run_conformance(DEAF, rules="EVT-2", seed=seed).findings
        return {
            r.case.name: list(itertools.takewhile(lambda line: "done" not in line, r.program[:-2]))
            for r in findings
            if not r.case.run.__module__.endswith("_scale")
        }

    first = programs(8)
    assert len(first) > 8
    assert first == programs(8)
    assert first != programs(9)


def test_random_programs_become_small():
    report = run_conformance(DEAF, rules="all1_random_programs")
    (result,) = report.findings
    commands = [line for line in result.program if line[0] == "q" and "create" not in line]
    lost = next(i for i, line in enumerate(commands) if ".wait(" in line)
    assert lost <= 4, result.program


@pytest.mark.slow
def test_programs_become_small_in_the_same_way():
    one, two = (run_conformance(DEAF, rules="all1_random_programs") for _ in range(2))
    assert one.findings[0].program == two.findings[0].program


def test_unexpected_exceptions_are_findings():
    report = run_conformance(base_with(RudeStream), rules="cpy2_copy_*")
    assert [r.reason for r in report.findings] == ["raises KeyError: 'dst'"]
    assert isinstance(report.findings[0].error, KeyError)


def test_a_device_that_refuses_what_a_need_asks_for_is_a_finding():
    """Buffers that are too short ended the kit with a UsageError."""

    class Short(BaseDevice):
        def allocate(self, nbytes):
            return super().allocate(max(0, nbytes - 4))

    harness = Harness("short", lambda count, seed: [Short(host_facts("short", []), {})])
    report = run_conformance(harness, rules="str5_sync_completes,str5_sync_of_nothing")
    assert {r.verdict for r in report.results} == {"fail"}
    assert "outside the buffer" in report.findings[0].reason


def test_a_hang_is_a_finding_and_not_the_end():
    HangingStream.over.clear()
    harness = replace(base_with(HangingStream), case_timeout_s=0.3)
    try:
        report = run_conformance(harness, rules="str5_sync_completes,buf1_negative")
    finally:
        HangingStream.over.set()
    assert [r.reason for r in report.findings] == ["hangs: no progress for 0.3 s"]
    assert [r.verdict for r in report.results] == ["fail", "pass"]
    assert any("sync" in line for line in report.findings[0].program)


class Losing:
    """Opens devices that are lost with the first fill, and for a while or for good."""

    def __init__(self, refusals):
        self.refusals, self.is_lost = refusals, False

    def open(self, count, seed):
        if self.is_lost and self.refusals:
            self.refusals -= 1
            raise RuntimeError("Context failed: <unknown error -9999>")
        self.is_lost = False
        return [self.device(i) for i in range(count)]

    def device(self, index):
        made = BaseDevice(host_facts("losing", [], name=f"losing:{index}"), {})
        plain = made.make_stream

        def make_stream(name):
            stream = plain(name)
            submit = stream._submit

            def submit_or_fail(command, work):
                self.is_lost |= command == "fill"
                if self.is_lost:
                    raise RuntimeError("the context is lost")
                submit(command, work)

            stream._submit = submit_or_fail
            return stream

        made.make_stream = make_stream
        return made


AROUND_A_LOSS = "cpy2_within_a_buffer,fil1_whole_buffers,fil3_length_of_the_pattern,err3_twice"


@pytest.mark.parametrize("refusals", [0, 1, 2, 1000])
def test_a_device_that_is_lost_ends_its_case_and_no_other(refusals):
    """Opening that failed ended the run without a verdict."""
    report = run_conformance(Harness("losing", Losing(refusals).open), rules=AROUND_A_LOSS)
    first, lost, *rest = report.results
    assert first.verdict == "pass"
    assert (lost.case.name, lost.verdict) == ("fil1_whole_buffers", "fail")
    assert (lost.reason == "device lost: raises RuntimeError: the context is lost") == (
        refusals > 0
    )
    assert not report.ok
    if refusals < 2:
        assert all(r.verdict in ("pass", "skip") and not r.is_lost for r in rest)
    elif refusals > 2:
        assert {r.verdict for r in rest} == {"skip"}
        assert all(r.reason.startswith("device lost in fil1_whole_buffers") for r in rest)


def test_a_device_that_is_lost_as_it_is_closed_fails_the_next_case():
    losing = Losing(1000)
    harness = Harness("losing", losing.open)
    kit = ConformanceRunner(harness)
    first, second, third = select("cpy2_within_a_buffer,fil3_length_of_the_pattern,buf1_negative")
    assert kit.run(first).verdict == "pass"
    losing.is_lost = True
    result = kit.run(second)
    assert result.verdict == "fail"
    assert result.reason.startswith("device lost: it cannot be opened again: raises RuntimeError")
    assert kit.run(third).verdict == "skip"


def test_what_is_left_is_run_elsewhere_when_no_device_can_be_opened_here():
    left = []

    def anew(cases):
        left.extend(cases)
        return [CaseResult(case, "pass") for case in cases]

    report = run_conformance(Harness("losing", Losing(1000).open), rules=AROUND_A_LOSS, anew=anew)
    assert [r.verdict for r in report.results[:2]] == ["pass", "fail"]
    assert [r.case for r in report.results[2:]] == left
    assert {r.verdict for r in report.results[2:]} == {"pass"}


def test_a_device_that_cannot_be_opened_at_all_is_no_loss():
    losing = Losing(1000)
    losing.is_lost = True
    with pytest.raises(RuntimeError, match="-9999"):
        run_conformance(Harness("losing", losing.open), rules=AROUND_A_LOSS)


def test_opening_that_hangs_is_a_finding():
    over = threading.Event()

    def hang(count, seed):
        over.wait()
        return []

    harness = Harness("hangs", hang, case_timeout_s=0.2)
    try:
        report = run_conformance(harness, rules="buf1_negative")
    finally:
        over.set()
    assert [r.reason for r in report.findings] == ["hangs: no progress for 0.2 s"]


def test_what_gets_on_does_not_hang_however_long_it_takes():
    harness = replace(base_with(SlowStream), case_timeout_s=0.2)
    report = run_conformance(harness, rules="cpy2_copy_changes_nothing_else")
    report.raise_if_findings()
    assert report.results[0].seconds > harness.case_timeout_s


def test_all_programs_are_tried_however_long_that_takes(monkeypatch):
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr("ggsched_testing.conformance.search.monotonic", lambda: next(hours))
    cpu, opened = Harness.named("cpu:0"), []

    def count(number, seed):
        opened.append(number)
        return cpu.open(number, seed)

    harness = replace(cpu, open=count)
    report = run_conformance(harness, rules="all1_random_programs", max_examples=20)
    report.raise_if_findings()
    assert len(opened) > 20


def test_devices_that_cannot_be_opened_are_no_finding():
    def fail(count, seed):
        raise BackendUnavailable("there is no driver")

    with pytest.raises(BackendUnavailable):
        run_conformance(Harness("gone", fail), rules="STR-1")


def test_needs_are_skipped_with_a_reason():
    report = run_conformance(sim_harness(SimConfig(has_events=False)), rules="EVT-1,tru1_no_events")
    verdicts = {r.case.name: (r.verdict, r.reason) for r in report.results}
    assert verdicts["evt1_fresh_event"] == ("skip", "it declares no events")
    assert verdicts["tru1_no_events"][0] == "pass"
    assert report.ok


def test_a_latch_that_does_not_hold_is_told_once():
    class AnyWait(DeafStream):
        def wait(self, event):
            self._require_usable()

    report = run_conformance(cpu_with(AnyWait), rules="STR-4,evt4_other_backend")
    verdicts = {r.case.name: r.verdict for r in report.results}
    assert verdicts["evt4_other_backend"] == "fail"
    assert verdicts["str4_held_stream_holds_no_other"] == "skip"
    assert any("see EVT-4" in r.reason for r in report.results)


def test_raise_if_findings_tells_the_story():
    with pytest.raises(ContractBroken, match=r"broken: breaks EVT-2: evt2_holds_copies") as caught:
        run_conformance(DEAF, rules="EVT-2").raise_if_findings()
    assert any("q1.wait(e0)" in line for line in caught.value.details)
    assert any("replay:" in note for note in caught.value.__notes__)
    run_conformance(DEAF, rules="BUF-3").raise_if_findings()


def test_json():
    report = run_conformance(DEAF, rules="evt2_holds_*,BUF-4")
    data = json.loads(json.dumps(report.to_json()))
    assert data["ok"] is False
    assert data["broken_rules"] == ["EVT-2"]
    case_ = next(c for c in data["cases"] if c["case"] == "evt2_holds_uploads")
    assert case_["verdict"] == "fail"
    assert case_["program"]
    assert {c["verdict"] for c in data["cases"]} == {"fail", "pass", "skip"}


def test_results_come_as_they_are_made():
    seen = []
    report = run_conformance(DEAF, rules="STR-5", verbose=seen.append)
    assert tuple(seen) == report.results


# --- waivers ------------------------------------------------------------------------------------


def waived(*waivers):
    return replace(DEAF, waivers=waivers)


def test_expected_failures():
    harness = waived(Waiver("evt2_holds_downloads", "known"), Waiver("evt2_holds_uploads", "known"))
    report = run_conformance(harness, rules="evt2_holds_downloads,evt2_holds_uploads")
    assert report.ok
    assert [r.verdict for r in report.results] == ["xfail", "xfail"]
    assert report.results[0].reason.startswith("known (")
    assert summary(report.results) == "waived"


def test_unsupported_cases_do_not_run():
    waiver = Waiver("EVT-*", "no events to speak of", "unsupported")
    harness = replace(cpu_with(DeafStream), waivers=(waiver,))
    report = run_conformance(harness, rules="EVT-2")
    assert report.ok
    assert {r.verdict for r in report.results} == {"unsupported"}


@pytest.mark.parametrize(
    ("waiver", "why"),
    [
        (Waiver("EVT-9", "old"), "no rule and no case of that name"),
        (Waiver("evt2_done_event", "old"), "evt2_done_event passed"),
        (Waiver("EVT-2", "partly"), "evt2_done_event, evt2_own_event passed"),
    ],
)
def test_stale_waivers_are_findings(waiver, why):
    report = run_conformance(waived(waiver), rules="EVT-2")
    assert not report.ok
    assert why.split(",")[0] in report.stale[0]


def test_a_waiver_for_what_is_skipped_anyway_is_stale():
    waivers = (Waiver("EVT-1", "none", "unsupported"),)
    harness = replace(sim_harness(SimConfig(has_events=False)), waivers=waivers)
    results = [ConformanceRunner(harness).run(c) for c in select("EVT-1,STR-5")]
    stale = stale_waivers(waivers, results, whole=True)
    assert stale == ["EVT-1: its cases are skipped anyway: it declares no events"]
    assert not stale_waivers(waivers, results, whole=False)


def test_a_part_says_little_about_other_waivers():
    assert run_conformance(waived(Waiver("CPY-1", "known")), rules="STR-5").ok


def test_a_waiver_has_a_reason():
    with pytest.raises(UsageError, match="reason"):
        Waiver("EVT-1", "  ")
    with pytest.raises(UsageError, match="kind"):
        Waiver("EVT-1", "because", "skip")


# --- harnesses ----------------------------------------------------------------------------------


def test_a_plug_in_brings_its_harness():
    harness = Harness.named("deaf:1", entry_points=[Point("deaf", open_deaf)])
    assert harness.name == "deaf:1"
    assert harness.waivers == (Waiver("EVT-4", "not yet"),)
    assert harness.grace_s == 0.02
    devices = harness.open(2, 0)
    assert [d.facts.name for d in devices] == ["deaf:1", "deaf:2"]
    for device in devices:
        device.close()


def test_the_backend_itself_may_bring_it():
    class Backend(BaseBackend):
        conformance_harness = staticmethod(lambda: {"timeout_s": 3.0})

    def opener():
        facts = host_facts("mine", [])
        return Backend("mine", lambda index: BaseDevice(facts, {}))

    harness = Harness.named("mine", entry_points=[Point("mine", opener)])
    assert harness.timeout_s == 3.0
    devices = harness.open(2, 0)
    assert len(devices) == 1  # there is no second one
    devices[0].close()


def test_harnesses_as_objects():
    class Own:
        timeout_s = 2.0
        waivers = (("STR-1", "slow"), Waiver("STR-2", "slow"))

    harness = adapted(DEAF, Own)
    assert harness.timeout_s == 2.0
    assert [w.match for w in harness.waivers] == ["STR-1", "STR-2"]
    assert adapted(DEAF, None) is DEAF
    with pytest.raises(UsageError, match="is not a waiver"):
        adapted(DEAF, {"waivers": [("STR-1",)]})


@pytest.mark.parametrize("spec", ["", "nope", "cpu:x", "cpu:", "cpu:-1"])
def test_names_that_make_no_sense(spec):
    with pytest.raises(UsageError):
        Harness.named(spec)


def test_own_latch_and_fault():
    held = []

    class Latch:
        def release(self):
            held.append("released")

    harness = replace(DEAF, latch=lambda stream: held.append("held") or None)
    assert ConformanceRunner(harness).lacks("latch") == "nothing can hold its streams"
    assert held == ["held"]
    harness = replace(cpu_with(DeafStream), latch=lambda stream: Latch(), grace_s=1.0)
    assert "see EVT-4" in ConformanceRunner(harness).lacks("latch")
    assert "released" in held
    harness = replace(base_with(RudeStream), fault=lambda stream: "nothing")
    assert not ConformanceRunner(harness).lacks("fault")


# --- the suite ----------------------------------------------------------------------------------


def test_patterns():
    assert {c.rule for c in select("STR-*")} == {r for r in RULES if r.startswith("STR")}
    assert [c.name for c in select(["buf1_negative"])] == ["buf1_negative"]
    assert select(None) == all_cases()
    with pytest.raises(UsageError, match="QRS"):
        select("STR-1,QRS-*")


def test_every_need_is_known():
    for c in all_cases():
        for name in c.needs:
            assert callable(need(name))
    assert set(NEEDS) <= {n for c in all_cases() for n in c.needs}


def test_cases_are_named_after_their_rule():
    with pytest.raises(ValueError, match="by another name"):

        @case("EVT-1", "Something.")
        def evt2_something(w):
            """Never runs."""

    with pytest.raises(ValueError, match="no rule"):
        case("EVT-99", "Something.")
    assert all(isinstance(c, Case) and c.statement.endswith(".") for c in all_cases())


def test_statements_fit_a_line():
    assert not [c.name for c in all_cases() if len(c.statement) > 100]
    assert not [rule for rule, text in RULES.items() if len(text) > 100]


def test_module_of_harness_is_plain_data():
    assert isinstance(broken_devices.conformance_harness, dict)
