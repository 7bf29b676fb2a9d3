import dataclasses
import os

import pytest

from ggsched.config import VARIABLES, Settings, exported
from ggsched.errors import UsageError


def read(**changes):
    return Settings.from_environment({f"GGSCHED_{k}": v for k, v in changes.items()})


def test_nothing_set_gives_the_defaults():
    assert Settings.from_environment({"PATH": "x", "OTHER_GGSCHED_X": "1"}) == Settings()
    assert Settings().timeout_s == 30
    assert Settings().sanitize == "plan"


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("BACKENDS", "opencl, cpu", "backends", ("opencl", "cpu")),
        ("BACKENDS", "cpu", "backends", ("cpu",)),
        ("CHECKED", "1", "checked", True),
        ("CPU_SYNC", "1", "cpu_sync", True),
        ("CPU_SYNC", "0", "cpu_sync", False),
        ("DEBUG", "4", "debug", 4),
        ("MEMORY_BUDGET", "64MiB", "memory_budget", (("", 64 << 20),)),
        ("MEMORY_BUDGET", "none", "memory_budget", ()),
        (
            "MEMORY_BUDGET",
            "opencl:0=1.5KiB, cpu:0=7",
            "memory_budget",
            (("cpu:0", 7), ("opencl:0", 1536)),
        ),
        ("MEMORY_BUDGET", "1GiB,cpu:0=0", "memory_budget", (("", 1 << 30), ("cpu:0", 0))),
        ("PACKING_EFFORT", "3", "packing_effort", 3),
        ("SANITIZE", "off", "sanitize", "off"),
        ("STREAMS", "auto", "streams", "auto"),
        ("STREAMS", "autotune", "streams", "autotune"),
        ("STREAMS", "measure", "streams", "autotune"),
        ("STREAMS", "1", "streams", 1),
        ("STREAMS", "64", "streams", 64),
        ("TIMEOUT_S", "0.5", "timeout_s", 0.5),
        ("VERIFY", " 0 ", "verify", False),
    ],
)
def test_values(name, text, field, value):
    assert getattr(read(**{name: text}), field) == value


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda v: v.name)
def test_set_to_nothing_is_not_set(variable):
    assert Settings.from_environment({variable.name: "  "}) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BACKENDS", "cpu,,opencl"),
        ("BACKENDS", "cpu,cpu"),
        ("CPU_SYNC", "true"),
        ("CPU_SYNC", "2"),
        ("DEBUG", "5"),
        ("DEBUG", "-1"),
        ("MEMORY_BUDGET", "64MB"),
        ("MEMORY_BUDGET", "-1"),
        ("MEMORY_BUDGET", "0.3"),
        ("MEMORY_BUDGET", "=64MiB"),
        ("MEMORY_BUDGET", "cpu:0=1,cpu:0=2"),
        ("MEMORY_BUDGET", "cpu:0="),
        ("PACKING_EFFORT", "-1"),
        ("SANITIZE", "on"),
        ("STREAMS", "0"),
        ("STREAMS", "65"),
        ("STREAMS", "-1"),
        ("STREAMS", "many"),
        ("TIMEOUT_S", "0"),
        ("TIMEOUT_S", "inf"),
        ("TIMEOUT_S", "nan"),
        ("TIMEOUT_S", "soon"),
        ("VERIFY", "yes"),
    ],
)
def test_values_that_are_refused(name, text):
    with pytest.raises(UsageError, match=f"GGSCHED_{name}.*it takes"):
        read(**{name: text})


def test_misspelt_name():
    with pytest.raises(UsageError, match=r"GGSCHED_SANITISE.*did you mean GGSCHED_SANITIZE\?"):
        read(SANITISE="plan")


def test_far_name_lists_what_there_is():
    known = "known: GGSCHED_ACTIVATIONS, GGSCHED_BACKENDS, GGSCHED_CAPTURE"
    with pytest.raises(UsageError, match=known):
        Settings.from_environment({"GGSCHED_THREADS_PER_QUEUE": "1"})


def test_caller_wins_over_environment():
    environ = {"GGSCHED_TIMEOUT_S": "1", "GGSCHED_DEBUG": "2"}
    settings = Settings.from_environment(environ, timeout_s=9.0)
    assert (settings.timeout_s, settings.debug) == (9.0, 2)


def test_exported_to_plugins_while_they_are_opened(monkeypatch):
    monkeypatch.setenv("GGSCHED_ACTIVATIONS", "f32")
    monkeypatch.delenv("GGSCHED_THREADS", raising=False)
    with exported(Settings(threads=3, activations="auto", cpu_sync=True, seed=7)):
        assert os.environ["GGSCHED_THREADS"] == "3"
        assert os.environ["GGSCHED_ACTIVATIONS"] == "auto"
        assert os.environ["GGSCHED_CPU_SYNC"] == "1"
        assert "GGSCHED_SEED" not in os.environ
    assert "GGSCHED_THREADS" not in os.environ
    assert os.environ["GGSCHED_ACTIVATIONS"] == "f32"


def test_reads_the_process_environment(monkeypatch):
    monkeypatch.setenv("GGSCHED_TIMEOUT_S", "7")
    assert Settings.from_environment().timeout_s == 7
    assert Settings().timeout_s == 30


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().debug = 1


def test_table_and_settings_have_the_same_fields():
    assert [v.field for v in VARIABLES] == sorted(f.name for f in dataclasses.fields(Settings))
    assert [v.name for v in VARIABLES] == [f"GGSCHED_{v.field.upper()}" for v in VARIABLES]


def test_each_default_is_a_value_that_it_takes():
    for variable in VARIABLES:
        if variable.unset:  # in words: each backend, or the machine, decides
            assert getattr(Settings(), variable.field) is None
        elif variable.default not in ("all", "none"):
            assert variable.read(variable.default) == getattr(Settings(), variable.field)
