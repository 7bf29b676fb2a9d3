"""The sanitizer, the explorer and a search that tries everything come to one verdict."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ggsched_testing.litmus import block_verdict, parse_litmus
from ggsched_testing.litmus.explorer import explore_block
from tests.litmus.litmus_gen import brute_verdict, programs


def verdicts(text):
    (block,) = parse_litmus(text)
    verdicts = list(block_verdict(block))
    assert all(j.agree for j in verdicts), [j.to_json() for j in verdicts]
    return tuple(j.verdict for j in verdicts)


def verdict(*lines):
    """Return the verdict on lines without markers."""
    broken, fixed = verdicts("\n".join(["litmus X race", *lines]))
    assert broken == fixed
    return broken


@pytest.mark.parametrize("captures", [False, True])
@given(data=st.data())
def test_three_judges(captures, data):
    text = data.draw(programs(captures))
    found = verdicts(text)
    assert found == (brute_verdict(text, "broken"), brute_verdict(text, "fixed"))
    event(found[0])


class TestOrder:
    def test_a_queue_follows_what_its_thread_did_before(self):
        assert verdict("H: set > x#1", "A: run x?1 > y") == "clean"

    def test_its_thread_does_not_follow_the_queue(self):
        assert verdict("A: run > x#1", "H: get x?1 > y") == "race"

    def test_another_thread_gives_a_queue_nothing(self):
        assert verdict("H2: set > x#1", "H: look > z", "A: run x?1 > y") == "race"

    def test_the_thread_that_gives_the_work_is_called_h(self):
        assert verdict("H1: set > x#1", "A: run x?1 > y") == "race"

    def test_two_threads_that_are_not_h_give_no_queue_its_work(self):
        assert verdict("H1: set > x#1", "H2: set > z", "A: run x?1 > y") == "race"

    def test_two_threads(self):
        lines = ["H1: set > x#1", "H1: rec e", "H2: wait e", "H2: get x?1 > y"]
        assert verdict(*lines) == "clean"
        assert verdict(*lines[:2], lines[3]) == "race"

    def test_sync_of_a_thread(self):
        assert verdict("H1: set > x#1", "H2: sync H1", "H2: get x?1 > y") == "clean"

    def test_a_queue_may_sync_too(self):
        assert verdict("A: run > x#1", "B: sync A", "B: run x?1 > y") == "clean"

    def test_devsync_waits_for_all_queues(self):
        lines = ["A: run > x#1", "B: run > y#1", "H: devsync", "H: get x?1 y?1 > z"]
        assert verdict(*lines) == "clean"

    def test_sync_covers_what_was_listed_before_it(self):
        assert verdict("A: run > x#1", "H: sync A", "A: run > x#2", "H: get x?2 > y") == "race"

    def test_what_is_given_after_a_sync_follows_it(self):
        assert verdict("A: run > x#1", "H: sync A", "B: run x?1 > y") == "clean"

    def test_order_is_transitive(self):
        lines = ["A: run > x#1", "A: rec e", "B: wait e", "B: rec f", "C: wait f"]
        assert verdict(*lines, "C: run x?1 > y") == "clean"

    def test_wait_by_a_host(self):
        assert verdict("A: run > x#1", "A: rec e", "H: wait e", "H: get x?1 > y") == "clean"

    def test_record_by_a_host(self):
        lines = ["H2: set > x#1", "H2: rec e", "A: wait e", "A: run x?1 > y"]
        assert verdict(*lines) == "clean"


class TestEvents:
    def test_wait_before_the_record_means_nothing(self):
        assert verdict("B: wait e", "A: run > x#1", "A: rec e", "B: run x?1 > y") == "race"

    def test_wait_means_the_latest_record(self):
        lines = ["A: rec e", "A: run > x#1", "{} e", "B: wait e", "B: run x?1 > y"]
        assert verdict(*[line.format("A: rec") for line in lines]) == "clean"
        assert verdict(*[line.format("C: rec") for line in lines]) == "race"

    def test_a_later_record_does_not_help(self):
        lines = ["A: rec e", "B: wait e", "A: run > x#1", "A: rec e", "B: run x?1 > y"]
        assert verdict(*lines) == "race"

    def test_wait_holds_what_comes_after_it(self):
        lines = ["A: run > x#1", "A: rec e", "B: run x?1 > y", "B: wait e"]
        assert verdict(*lines) == "race"

    def test_sync_of_an_event_that_was_not_recorded(self):
        assert verdict("A: run > x#1", "H: sync e", "H: get x?1 > y") == "race"


class TestBytes:
    def test_a_bare_name_is_the_whole_object(self):
        assert verdict("A: run > P[4:8]", "B: run P > y") == "race"
        assert verdict("A: run > P", "B: run P[100:101] > y") == "race"

    def test_ranges_are_half_open(self):
        assert verdict("A: run > P[0:4]", "B: run > P[4:8]") == "clean"
        assert verdict("A: run > P[0:5]", "B: run > P[4:8]") == "race"

    def test_reads_do_not_race(self):
        assert verdict("A: run x > y", "B: run x > z") == "clean"

    def test_an_object_is_as_large_as_its_ranges_reach(self):
        lines = ["H: set > P[0:4]#a", "H: set > P[4:8]#a", "H: get P?a > y"]
        assert verdict(*lines) == "clean"
        assert verdict(lines[0], "H: look P[7:8] > z", lines[2]) == "value"

    def test_the_other_variant_counts_for_the_size(self):
        text = "litmus X value\nA: run > P[0:8]#w\n+ A: run > P[8:10]#w\nA: run P?w > y"
        assert verdicts(text) == ("value", "clean")

    def test_every_unit_counts(self):
        lines = ["A: run > P[0:8]#a", "A: run > P[3:4]#b"]
        assert verdict(*lines, "A: run P[0:4]?a > y") == "value"
        assert verdict(*lines, "A: run P[0:3]?a P[4:8]?a P[3:4]?b > y") == "clean"

    def test_a_write_without_a_tag_leaves_no_tag(self):
        assert verdict("A: run > x#1", "A: run > x", "A: run x?1 > y") == "value"

    def test_what_nobody_wrote_has_no_tag(self):
        assert verdict("A: run x?1 > y") == "value"
        assert verdict("A: run x > y") == "clean"

    def test_an_operation_reads_before_it_writes(self):
        assert verdict("A: run > x#1", "A: update x?1 > x#2", "A: run x?2 > y") == "clean"

    def test_a_race_comes_before_a_value(self):
        assert verdict("A: run x?7 > y", "B: run > x#1") == "race"


class TestCapture:
    CAPTURE = ("A: capbegin", "{}", "A: capend")

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("H: malloc scratch", "capture"),
            ("H2: malloc scratch", "capture"),
            ("A: malloc scratch", "capture"),
            ("H: devsync", "capture"),
            ("H: sync A", "capture"),
            ("B: sync A", "capture"),
            ("H: sync B", "clean"),
            ("H: sync e", "clean"),
            ("H: set > x#1", "clean"),
            ("B: run > x#1", "clean"),
        ],
    )
    def test_inside(self, line, expected):
        assert (
            verdict("B: run > w", "B: rec e", *(c.format(line) for c in self.CAPTURE)) == expected
        )

    def test_outside(self):
        for line in ("H: malloc scratch", "H: devsync", "H: sync A"):
            assert verdict(line, "A: capbegin", "A: run > x#1", "A: capend") == "clean"
            assert verdict("A: capbegin", "A: run > x#1", "A: capend", line) == "clean"

    def test_another_queue_may_join(self):
        lines = ["A: capbegin", "A: rec e", "B: wait e", "B: run > x#1", "H: sync B", "A: capend"]
        assert verdict(*lines) == "capture"
        assert verdict(*lines[:2], *lines[3:]) == "clean"
        assert verdict(*lines[:4], lines[5], lines[4]) == "clean"

    def test_an_event_of_the_capture_is_not_waited_for(self):
        lines = ["A: capbegin", "A: rec e", "H: sync e", "A: capend"]
        assert verdict(*lines) == "capture"
        assert verdict(lines[0], lines[1], lines[3], lines[2]) == "clean"

    def test_a_join_is_passed_on(self):
        lines = ["A: capbegin", "A: rec e", "B: wait e", "B: rec f", "C: wait f", "H: sync C"]
        assert verdict(*lines, "A: capend") == "capture"

    def test_an_event_from_before_does_not_join(self):
        lines = ["A: rec e", "A: capbegin", "B: wait e", "H: sync B", "A: capend"]
        assert verdict(*lines) == "clean"

    def test_two_captures(self):
        lines = ["A: capbegin", "B: capbegin", "A: capend", "H: sync {}", "B: capend"]
        assert verdict(*[line.format("A") for line in lines]) == "clean"
        assert verdict(*[line.format("B") for line in lines]) == "capture"

    def test_begin_and_end_have_to_match(self):
        assert verdict("A: capbegin", "A: capbegin", "A: capend") == "capture"
        assert verdict("A: capend") == "capture"

    def test_an_illegal_call_comes_before_a_race(self):
        lines = ["A: capbegin", "A: run > x#1", "H: sync A", "A: capend", "B: run > x#2"]
        assert verdict(*lines) == "capture"

    def test_captured_work_keeps_its_place(self):
        lines = ["A: capbegin", "A: run > x#1", "A: capend", "H: sync A", "H: get x?1 > y"]
        assert verdict(*lines) == "clean"
        assert verdict(*lines[:3], lines[4]) == "race"


def test_a_program_without_races_needs_few_executions():
    queues = [f"Q{i}: run > x{i}#{k}" for i in range(8) for k in range(4)]
    (block,) = parse_litmus("\n".join(["litmus big clean", *queues]))
    explored = explore_block(block, "broken")
    assert explored.verdict == "clean"
    assert explored.executions < 10


def test_judgement_as_data():
    text = "litmus X race\nA: run > x#1\n+ H: sync A\nH: get x?1 > y"
    (block,) = parse_litmus(text, "a.litmus")
    broken, fixed = (j.to_json() for j in block_verdict(block))
    assert {"id": "X", "variant": "broken", "verdict": "race", "ok": True}.items() <= broken.items()
    assert broken["witness"] == (
        "RAW on x[0:1]: nothing orders line 2 'A: run > x#1' before line 4 'H: get x?1 > y'"
    )
    assert broken["fix"] == "let H wait for A after line 2 and before line 4"
    assert broken["explorer"]["witness"] == (
        "line 2 'A: run > x#1' and line 4 'H: get x?1 > y' run in either order"
    )
    assert len(broken["explorer"]["schedules"]) == 2
    assert (fixed["verdict"], fixed["witness"], fixed["agree"]) == ("clean", None, True)
