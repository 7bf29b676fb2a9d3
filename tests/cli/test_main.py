import os
import platform
import re
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import EntryPoint

import click
import pytest

import ggsched
from ggsched.cli import main as main_module
from ggsched.cli.main import cli, main
from ggsched.cli.options import device_names, field_option, whole_numbers
from ggsched.errors import BackendBroken, BackendUnavailable, ModelError, RaceFound
from ggsched_llm.offload import Offload


@pytest.fixture
def command(monkeypatch):
    """Make a subcommand ``try`` whose body is a function."""

    def install(body, *options):
        function = click.Command("try", callback=body, params=list(options))
        monkeypatch.setattr(
            main_module.Commands,
            "get_command",
            lambda self, ctx, name: function if name == "try" else None,
        )

    return install


def declared(record, name):
    """Return the option that a field of a record declares."""
    (field,) = (f for f in fields(record) if f.name == name)
    return click.command("try")(field_option(field)(lambda: None)).params[0]


def raiser(error):
    def body():
        raise error

    return body


class TestBoundary:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (ModelError("truncated", where="x.gguf"), 2),
            (BackendUnavailable("no driver"), 3),
            (RaceFound("c3 and c4"), 1),
        ],
    )
    def test_our_errors_are_one_line(self, command, capsys, error, code):
        command(raiser(error))
        assert main(["try"]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"ggsched: error: {error.one_line()}\n"

    @pytest.mark.parametrize("error", [ValueError("odd\nthing"), EOFError(), AssertionError()])
    def test_other_errors_are_internal(self, command, capsys, error):
        command(raiser(error))
        assert main(["try"]) == 3
        err = capsys.readouterr().err
        assert err.startswith(f"ggsched: error: internal error: {type(error).__name__}")
        assert "GGSCHED_DEBUG=1" in err
        assert err.count("\n") == 1

    def test_traceback_on_request(self, command, capsys, monkeypatch):
        monkeypatch.setenv("GGSCHED_DEBUG", "1")
        command(raiser(ValueError("odd")))
        assert main(["try"]) == 3
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("ggsched: error:")

    def test_an_invalid_level_is_no_request_for_a_traceback(self, capsys, monkeypatch):
        monkeypatch.setenv("GGSCHED_DEBUG", "nonsense")
        assert main(["run", "demo", "-p", "1+1="]) == 2
        err = capsys.readouterr().err
        assert err == "ggsched: error: GGSCHED_DEBUG: invalid value 'nonsense' (it takes 0 to 4)\n"

    def test_memory(self, command, capsys):
        command(raiser(MemoryError()))
        assert main(["try"]) == 2
        assert "out of host memory" in capsys.readouterr().err

    def test_interrupt(self, command, capsys):
        command(raiser(KeyboardInterrupt()))
        assert main(["try"]) == 130
        assert capsys.readouterr().err == ""

    def test_an_interrupted_process_leaves_at_once(self):
        """What a driver does at the end of the interpreter is not waited for: it may abort."""
        code = """
import atexit, sys
from ggsched.cli import main as module
def interrupted(arguments, is_ours):
    print("begun")
    raise KeyboardInterrupt
module._run = interrupted
atexit.register(print, "the interpreter ends")
sys.exit(module.main())
"""
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (130, "begun\n", "")

    def test_returned_code(self, command):
        command(lambda: 1)
        assert main(["try"]) == 1

    def test_exit_by_click(self, command):
        command(lambda: click.get_current_context().exit(1))
        assert main(["try"]) == 1

    @pytest.mark.parametrize("arguments", [["frob"], ["--frob"], ["devices", "--frob"]])
    def test_usage(self, capsys, arguments):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("ggsched: error: No such")
        assert "--help" in err
        assert err.count("\n") == 1

    def test_unknown_variable(self, capsys, monkeypatch):
        monkeypatch.setenv("GGSCHED_DEBUGG", "1")
        assert main(["devices"]) == 2
        assert "did you mean GGSCHED_DEBUG?" in capsys.readouterr().err

    def test_version_and_help(self, capsys):
        assert main(["--version"]) == 0
        first, *others = capsys.readouterr().out.splitlines()
        assert first == f"ggsched {ggsched.__version__}"
        assert others[0].endswith(f" {platform.python_version()}")
        assert any(re.match(r"libraries: .*\bnumpy [0-9.]+", line) for line in others)
        assert "pytest" not in "".join(others)
        assert main(["-h"]) == 0
        assert "devices" in capsys.readouterr().out

    def test_nothing_shows_help_and_fails(self, capsys):
        assert main([]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "Usage: ggsched" in err

    def test_every_command_exists(self):
        context = click.Context(cli)
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            assert command is not None
            assert command.name == name

    def test_completion(self, capsys, monkeypatch):
        monkeypatch.setenv("_GGSCHED_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", "ggsched dev")
        monkeypatch.setenv("COMP_CWORD", "1")
        assert main([]) == 0
        assert "devices" in capsys.readouterr().out


class TestProcess:
    def run(self, *arguments, **kwargs):
        return subprocess.run(
            [sys.executable, "-m", "ggsched", *arguments], timeout=60, check=False, **kwargs
        )

    def test_closed_pipe_is_quiet(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = self.run("--help", stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_closed_pipe_under_a_table(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = self.run("devices", stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_version_loads_nothing_heavy(self):
        code = (
            "import sys; from ggsched.cli.main import main; main(['--version']);"
            "sys.exit('numpy' in sys.modules or 'networkx' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


class TestWordsOfLlamaCpp:
    """Options with one dash and several letters, as ``cli/options.py`` promises."""

    @pytest.fixture
    def parsed(self, command):
        values = {}
        command(
            lambda **given: values.update(given) or 0,
            click.Option(["-ngl", "--n-gpu-layers", "n_gpu_layers"], type=int),
            click.Option(["-n", "n"], type=int),
            click.Option(["-c", "c"], type=int),
            click.Option(["-b", "b"], type=int),
            click.Option(["-ub", "ub"], type=int),
            declared(Offload, "overrides"),
            declared(Offload, "tensor_split"),
            click.Option(["-p", "p"]),
            click.Option(["--temp", "temp"], type=float),
            click.Option(["--cpu-moe", "cpu_moe"], is_flag=True),
            click.Option(["--n-cpu-moe", "n_cpu_moe"], type=int),
            click.Option(["--tokens", "tokens"], type=whole_numbers),
            click.Option(["--devices", "devices"], type=device_names),
        )

        def parse(text):
            values.clear()
            code = main(["try", *text.split()])
            return values if code == 0 else code

        return parse

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("-ngl 3", {"n_gpu_layers": 3}),
            ("-ngl=3", {"n_gpu_layers": 3}),
            ("--n-gpu-layers 3", {"n_gpu_layers": 3}),
            ("--n-gpu-layers=3 -n 5", {"n_gpu_layers": 3, "n": 5}),
            ("-n16 -ngl 1 -c 9", {"n": 16, "n_gpu_layers": 1, "c": 9}),
            ("-b 8 -ub 4", {"b": 8, "ub": 4}),
            ("--cpu-moe --n-cpu-moe 2", {"cpu_moe": True, "n_cpu_moe": 2}),
            ("--temp -1 -p -x", {"temp": -1.0, "p": "-x"}),
            ("-ts 3,1", {"tensor_split": (3.0, 1.0)}),
            ("--tokens 1,2,3", {"tokens": (1, 2, 3)}),
            ("--devices opencl:0,cpu:0", {"devices": ("opencl:0", "cpu:0")}),
        ],
    )
    def test_parsed(self, parsed, text, expected):
        values = parsed(text)
        assert {name: values[name] for name in expected} == expected

    def test_overrides_keep_their_order(self, parsed):
        rules = parsed(r"-ot blk\.[0-2]\.=cpu:0 -ot a=b=gpu:0")["overrides"]
        assert [(r.pattern.pattern, r.device) for r in sum(rules, ())] == [
            (r"blk\.[0-2]\.", "cpu:0"),
            ("a=b", "gpu:0"),
        ]

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("-ngl x", "-ngl"),
            ("-ot nothing", "REGEX=DEVICE"),
            ("-ot =cpu:0", "REGEX=DEVICE"),
            ("-ot [=cpu:0", "not a regular expression"),
            ("-ts 0,0", "-ts"),
            ("-ts 1,-1", "-ts"),
            ("-ts 1,nan", "-ts"),
            ("-ts 1,,2", "-ts"),
            ("--tokens 1,-2", "--tokens"),
            ("--tokens 1,x", "--tokens"),
            ("--devices a:0,,b:0", "--devices"),
        ],
    )
    def test_refused(self, parsed, capsys, text, named):
        assert parsed(text) == 2
        err = capsys.readouterr().err
        assert err.startswith("ggsched: error: Invalid value for")
        assert named in err
        assert err.count("\n") == 1


def test_a_missing_hypothesis_is_named(monkeypatch, capsys):
    """The kit needs it, and ``make demo`` does not install it."""

    def missing(*arguments):
        raise ModuleNotFoundError("No module named 'hypothesis'", name="hypothesis")

    monkeypatch.setattr("ggsched.cli.main._run", missing)
    assert main(["conform", "cpu"]) == 3
    err = capsys.readouterr().err
    assert err == "ggsched: error: hypothesis is missing (pip install 'ggsched[test]')\n"


def test_a_command_that_cannot_be_loaded_leaves_the_others(monkeypatch, capsys):
    point = EntryPoint("broken", "no_such_package:command", "ggsched.commands")
    known = {**main_module._entry_points(), "broken": point}
    monkeypatch.setattr(main_module, "_entry_points", lambda: known)
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "broken" in out
    assert "devices" in out
    assert main(["broken", "x"]) == BackendBroken.exit_code
    err = capsys.readouterr().err
    assert err.startswith("ggsched: error: no_such_package:command: the command 'broken' cannot be")
    assert "report this to the author" in err


def test_an_error_of_files_leaves_stdout_of_another_process_alone(monkeypatch):
    kept = os.fstat(1)
    monkeypatch.setattr(main_module, "_run", lambda *_: (_ for _ in ()).throw(OSError("full")))
    assert main(["devices"]) == 3
    assert os.path.samestat(os.fstat(1), kept)
