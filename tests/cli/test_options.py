"""Options that fields of a record declare: one line there is an option, and its value."""

from dataclasses import dataclass, field, fields, is_dataclass

import click
import pytest

from ggsched.cli.options import record_of, record_options, with_options
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.flags import check_values, flag, number, read_size
from ggsched_commands.help_groups import GROUPS
from ggsched_commands.page import commands
from ggsched_llm.fit import FitRequest
from ggsched_llm.sampling import Sampling
from ggsched_llm.session_options import SessionOptions


@dataclass(frozen=True)
class Part:
    size: int = flag(0, "--part-size", read_size, "Bytes.", param="part_size", metavar="BYTES")
    rest: str = "not an option"


@dataclass(frozen=True)
class Whole:
    count: int = flag(3, "-c --count", 1, "How many.", old="--number")
    kind: str = flag("a", "--kind", ("a", "b"), "Which.", unset="b")
    shares: tuple = flag((), "--share", lambda t: (number(t),), "Some.", multiple=True)
    speed: float = flag(1.0, "--speed", float, "How fast.", "is not a speed")
    part: Part = field(default_factory=Part)


def parsed(*words):
    values = {}
    made = with_options(lambda **given: values.update(given), [*record_options(Whole)])
    click.command("try")(made).main(words, standalone_mode=False)
    return record_of(Whole, values)


def test_values_become_a_record():
    words = [
        "-c",
        "5",
        "--kind",
        "a",
        "--share",
        "1",
        "--share",
        "2",
        "--speed",
        "7",
        "--part-size",
        "2KiB",
    ]
    assert parsed(*words) == Whole(5, "a", (1.0, 2.0), 7.0, Part(2048))


def test_the_default_is_the_field_s_unless_the_command_line_has_another():
    assert parsed() == Whole(3, "b", (), 1.0, Part())


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("-c 0", "not in the range"),
        ("--kind c", "is not one of"),
        ("--share x", "'x' is not a number of 0 or more"),
        ("--speed x", "'x' is not a speed"),
        ("--part-size x", "'x' is not a number of bytes"),
    ],
)
def test_a_value_that_is_refused_is_named(words, wrong):
    with pytest.raises(click.BadParameter, match=wrong):
        parsed(*words.split())


@pytest.mark.parametrize(("value", "wrong"), [({"count": 0}, "-c 0"), ({"kind": "c"}, "--kind c")])
def test_a_record_refuses_what_its_options_do_not_take(value, wrong):
    check_values(Whole())
    with pytest.raises(UsageError, match=wrong):
        check_values(Whole(**value))


def flags(record):
    """Yield the options of a record and of records within it, with the names of parameters."""
    for own in fields(record):
        if own.metadata.get("flag"):
            yield own.metadata["flag"].param or own.name, own.metadata["flag"]
        elif isinstance(own.type, type) and is_dataclass(own.type):
            yield from flags(own.type)


@pytest.mark.parametrize("record", [Settings, SessionOptions, FitRequest, Sampling])
def test_each_declared_option_is_an_option_of_run_under_a_heading(record):
    params = {p.name: p for p in commands()["run"].params}
    for name, declared in flags(record):
        assert set(declared.names.split()) <= set(params[name].opts)
        assert params[name].help == declared.text
        assert declared.heading in GROUPS
