"""The fuzzers themselves, for a few inputs each, and inputs that were findings."""

import json
import os
import random
import subprocess

import msgspec
import pytest

from ggsched.calibrate.cache import read_rates
from ggsched.errors import GgschedError, UsageError
from ggsched.files.own import refusal
from ggsched.trace.export import read_trace
from ggsched_cluster import messages
from tests.fuzz.__main__ import code_of, finding_of
from tests.fuzz.mutation import mutant
from tests.fuzz.readers import READERS, Reader, corpus_of, fresh, write

CHEAP = [r for r in READERS if r.name not in ("plan", "trace", "checked trace", "topology")]
"""The others run commands, which have tests of their own."""


@pytest.mark.parametrize("reader", CHEAP, ids=lambda reader: reader.name)
def test_valid_input_is_taken_and_damage_is_refused(reader, tmp_path):
    corpus, rng = corpus_of(reader), random.Random(reader.name)
    for files in corpus:
        write(fresh(tmp_path), files)
        reader.use(tmp_path)
    for _ in range(20):
        write(fresh(tmp_path), mutant(corpus, rng))
        assert finding_of(reader, tmp_path) == ""


def test_findings_are_found(tmp_path):
    def fails(error):
        def use(folder):
            raise error

        return Reader("r", lambda folder: iter(()), use)

    assert finding_of(fails(UsageError("no")), tmp_path) == ""
    assert finding_of(fails(IndexError("no")), tmp_path).startswith("IndexError at ")
    assert finding_of(fails(SystemExit(1)), tmp_path).startswith("SystemExit at ")


@pytest.mark.parametrize("name", ["\0\x1b[2J", "a\ud800b", "x" * 100_000, "a\nb"])
def test_names_of_files_in_errors_are_one_short_line(name):
    """Control characters of an op's name in an ONNX file reached the message as they were."""
    text = str(GgschedError(f"the op {name} is not known", where=name))
    assert text.isprintable()
    assert len(text) < 2000
    text.encode()


def test_a_message_that_is_not_utf_8():
    data = messages.encode(messages.Open(1, "abc", "d", (), None, 1.0)).replace(b"abc", b"a\xffc")
    with pytest.raises(msgspec.MsgspecError):
        messages.decode([data])


def test_a_huge_number_in_the_rates(tmp_path, caplog):
    (reader,) = (r for r in READERS if r.name == "rates")
    (files,) = corpus_of(reader)
    content = json.loads(files["rates.json"])
    content["devices"]["a"]["parallel"] = 10**400
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(content))
    assert read_rates(path) is None
    assert len(caplog.messages) == 1


def test_an_expected_command_that_the_plan_of_a_trace_lacks():
    (reader,) = (r for r in READERS if r.name == "trace")
    lines, _ = corpus_of(reader)
    head, *rest = lines["t"].split(b"\n")
    header = json.loads(head)
    header["plans"][0]["expected"] = [[100_000, 0.0, 1.0]]
    with pytest.raises(UsageError, match=r"plan 0 expects command 100000 of \d+"):
        read_trace(b"\n".join((json.dumps(header).encode(), *rest)))


def test_a_zero_byte_in_the_name_of_a_kept_weight(tmp_path):
    assert refusal(tmp_path / "a\0b") == "its name is not that of a file"


@pytest.mark.parametrize(("inputs", "code"), [(5, 0), (2, -1)])
def test_a_child_is_ended_if_it_writes_no_input_for_a_while(inputs, code, tmp_path):
    """A loaded machine made a reader that went on a finding: its time was limited by the clock."""

    class Child:
        looks = 0
        is_killed = False

        def wait(self, timeout=None):
            self.looks += 1
            if self.is_killed or self.looks > 4:
                return 0
            if self.looks <= inputs:
                os.utime(tmp_path, ns=(self.looks, self.looks))
            raise subprocess.TimeoutExpired("child", timeout)

        def kill(self):
            self.is_killed = True

    child = Child()
    assert code_of(child, tmp_path) == code
    assert child.is_killed == bool(code)
