"""``ggsched race``: programs, exit codes, faults, files; and the plug-in of pytest."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from ggsched.cli.main import main

DATA = Path(__file__).parent.parent / "data" / "races"
HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is in the extra 'torch'")


def has_gpu():
    """Whether a driver of NVIDIA is there, without loading PyTorch."""
    return Path("/proc/driver/nvidia/version").exists()


RACE = """
    import sys, torch
    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.mul_(2)
"""


@pytest.fixture
def program(tmp_path):
    """Write a program; return its path."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write


# --- traces: without PyTorch ----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("vllm_24527-broken", 1), ("vllm_24527-mended", 0)])
def test_trace_is_checked_again(name, code, capsys):
    assert main(["race", str(DATA / f"{name}.jsonl")]) == code
    assert ("clean" in capsys.readouterr().out) == (code == 0)


def test_json_and_sarif_say_the_same_as_the_text(tmp_path, capsys):
    file = tmp_path / "found.sarif"
    trace = str(DATA / "megatron_3140-broken.jsonl")
    assert main(["race", "--json", "--sarif", str(file), trace]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 0
    (finding,) = found["findings"]
    (result,) = json.loads(file.read_bytes())["runs"][0]["results"]
    assert result["message"]["text"].startswith(finding["what"])
    assert len(finding["sides"]) == 2


def test_page_has_the_findings_and_the_lines_of_the_program(tmp_path):
    file = tmp_path / "found.html"
    trace = str(DATA / "megatron_3140-broken.jsonl")
    assert main(["race", "--html", str(file), trace]) == 1
    page = file.read_text("utf-8")
    assert "nothing orders the read of weights" in page
    assert "(weights * 2).sum()" in page
    assert "src=" not in page
    assert "&lt;module&gt;" in page or "in megatron_3140" in page


def test_findings_are_suppressed_by_a_file(tmp_path, capsys):
    patterns = tmp_path / "known"
    patterns.write_text("# known\n*programs.py:* in megatron_3140  # see the thread\n")
    trace = str(DATA / "megatron_3140-broken.jsonl")
    assert main(["race", "--suppressions", str(patterns), trace]) == 0
    assert "1 suppressed" in capsys.readouterr().out
    patterns.write_text("# nothing\n")
    assert main(["race", "--suppressions", str(patterns), trace]) == 2
    assert "no pattern" in capsys.readouterr().err


OUTPUTS = pytest.mark.parametrize(
    ("option", "what"), [("-o", "trace"), ("--sarif", "SARIF log"), ("--html", "page")]
)


@OUTPUTS
def test_output_that_cannot_be_written_is_refused_before_the_program_begins(
    option, what, tmp_path, program, capfd
):
    nowhere = str(tmp_path / "nowhere" / "x")
    assert main(["race", option, nowhere, program("print('begun')")]) == 2
    out, said = capfd.readouterr()
    assert out == ""
    assert said.count("\n") == 1
    assert f"{nowhere}: cannot write the {what}" in said


@OUTPUTS
def test_program_is_not_written_over(option, what, program, capsys):
    path = program("print(1)")
    assert main(["race", option, path, path]) == 2
    assert "would write over the script" in capsys.readouterr().err
    assert Path(path).read_text("utf-8") == "print(1)"


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[:300],
        lambda data: data.replace(b'"at":0', b'"at":"x"', 1),
        lambda data: data.replace(b'"actor":1', b'"actor":9', 1),
        lambda data: data.replace(b'"sites"', b'"sites":3,"other"', 1),
        lambda data: b"\0" + data,
    ],
)
def test_damaged_trace_is_one_clear_line(tmp_path, capsys, harm):
    file = tmp_path / "damaged.jsonl"
    file.write_bytes(harm((DATA / "megatron_3140-broken.jsonl").read_bytes()))
    assert main(["race", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "damaged.jsonl" in said


def test_options_of_the_program_are_its_own_and_ours_come_before_it(capsys):
    assert main(["race", "--simulat", "program.py"]) == 2
    assert "No such option '--simulat'" in capsys.readouterr().err
    assert main(["race", str(DATA / "megatron_3140-mended.jsonl"), "--simulat"]) == 2
    assert "--simulat means nothing for a trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "behind", "named"),
    [(["--simulate"], [], "--simulate"), (["--no-rows"], [], "--no-rows"), ([], ["x"], "x")],
)
def test_what_means_nothing_for_a_trace_is_refused(before, behind, named, capsys):
    trace = str(DATA / "megatron_3140-mended.jsonl")
    assert main(["race", *before, trace, *behind]) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert f"{trace}: {named} means nothing for a trace" in said


def test_missing_program_is_named(capsys):
    assert main(["race", "no such program.py"]) == 2
    assert "no such program.py: no such file" in capsys.readouterr().err


def test_missing_torch_is_named(program, capfd, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    assert main(["race", "--simulate", program("print(1)")]) == 3
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("ggsched race: the package torch is missing (")
    assert "ggsched[torch]" in said


def test_missing_gpu_of_a_torch_is_named_once(program, capfd, tmp_path, monkeypatch):
    torch = """
        class cuda:
            def is_available():
                return False
    """
    program(torch, "torch.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    assert main(["race", program("print(1)")]) == 3
    out, said = capfd.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert said.startswith("ggsched race: PyTorch finds no GPU (--simulate")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_program_and_leaves_no_folder(program, tmp_path, number):
    folders, pid = tmp_path / "folders", tmp_path / "pid"
    folders.mkdir()
    waits = f"""
        import os, signal
        with open({str(pid)!r}, "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getppid(), {int(number)})
        while True:
            signal.pause()
    """
    program(waits, "torch.py")  # the first that a recorded process loads
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "ggsched", "race", "--simulate", program("print(1)")],
        capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folders)},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # whatever the caller ignores
    )  # fmt: skip
    assert done.returncode == 128 + number, done.stderr
    assert list(folders.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


# --- programs -------------------------------------------------------------------------------------


def race(*arguments, simulate=True):
    flags = ["--simulate"] if simulate else []
    command = [sys.executable, "-m", "ggsched", "race", *flags, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.skipif(not HAS_TORCH or has_gpu(), reason="PyTorch is missing, or finds a GPU")
def test_missing_gpu_is_one_line_with_the_way_out(program):
    done = race(program("print(1)"), simulate=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "finds no GPU (--simulate" in done.stderr


@needs_torch
def test_program_runs_as_by_python_and_its_race_is_found(program, tmp_path):
    text = RACE + "    print(sys.argv, __name__, len(sys.path[0]) > 1)\n"
    done = race("-o", str(tmp_path / "t.jsonl"), path := program(text), "--flag", "-o", "3")
    assert done.returncode == 1, done.stderr
    first, *report = done.stdout.splitlines()
    assert first == f"{[path, '--flag', '-o', '3']} __main__ True"
    assert "1 finding" in report[0]
    assert main(["check", str(tmp_path / "t.jsonl")]) == 1


@needs_torch
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("raise ValueError('oh')", 1, "ValueError: oh"),
        ("sys.exit(7)", 7, "exit code 7"),
        ("import os; os.abort()", 128 + signal.SIGABRT, "signal SIGABRT"),
    ],
)
def test_failure_of_the_program_is_reported_with_what_was_found(program, end, code, said):
    clean = race(program(f"import sys, torch\ntorch.ones(8, device='cuda')\n{end}\n"))
    assert clean.returncode == code
    assert said in clean.stderr
    assert "ggsched_race" not in clean.stderr
    assert ": clean" in clean.stdout
    if code > 128:  # nothing of Python runs any more
        racing = race(program(RACE + f"    {end}\n"))
        assert racing.returncode == 1
        assert "nothing orders" in racing.stdout


@needs_torch
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("x = (", 1, "nothing was recorded until the program ended with exit code 1"),
        ("print(1)", 0, "nothing was recorded"),
        (
            "import torch; torch.ones(8, device='cuda'); 1 / 0",
            1,
            "2 records until the program ended with exit code 1: clean",
        ),
    ],
)
def test_summary_says_how_the_program_failed_and_what_was_judged(program, text, code, said):
    done = race(path := program(text))
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == f"{path}: {said}"


@needs_torch
def test_watch_inside_a_recorded_program_is_one_line_and_harms_no_record(program):
    text = RACE + "    import ggsched\n    with ggsched.watch(simulate=True):\n        x.mul_(2)\n"
    done = race(program(text))
    first, *more = done.stderr.splitlines()
    assert first.startswith("ggsched race: watch('watched'): the program is recorded already (")
    assert len(more) == 1
    assert "exit code 2" in more[0]
    assert done.returncode == 1
    assert "nothing orders" in done.stdout


@needs_torch
@pytest.mark.parametrize(
    ("name", "ends", "said"),
    [
        ("SIGINT", "os.kill(os.getpid(), signal.SIGINT)", "exit code 130"),
        ("SIGTERM", "while True: signal.pause()", "signal SIGTERM"),
    ],
)
def test_program_ended_by_a_signal_gives_what_was_found(program, name, ends, said):
    text = f"""{RACE}
    import os, signal
    os.kill(os.getppid(), signal.{name})
    {ends}
"""
    done = race(program(text))
    assert done.returncode == 1, done.stderr
    assert said in done.stderr
    assert "nothing orders" in done.stdout


@needs_torch
def test_forked_process_is_not_recorded_and_does_no_harm(program):
    text = """
    import os, torch
    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    if not os.fork():
        with torch.cuda.stream(side):
            x.mul_(2)
        x.mul_(2)
        os._exit(0)
    os.wait()
    x.mul_(2)
"""
    done = race(program(text))
    assert done.returncode == 0, done.stdout
    assert "clean" in done.stdout


@needs_torch
def test_tests_with_the_marker_fail_where_they_race_also_as_a_module(program, tmp_path):
    test = """
    import pytest, torch
    pytest_plugins = ["ggsched_race.pytest_plugin"]

    def racing():
        x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(side):
            x.mul_(2)

    @pytest.mark.race(simulate=True)
    def test_marked():
        racing()

    @pytest.mark.race(simulate=True, suppressions=["*in racing"])
    def test_suppressed():
        racing()

    @pytest.mark.race(simulate=True)
    def test_right():
        torch.ones(8, device="cuda").mul_(2)

    def test_without():
        assert not torch.cuda.is_available() or True
"""
    path = program(test, "test_marked.py")
    options = ["-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "nothing orders" in done.stdout
    path = program(
        "def test_it():\n    import torch\n    torch.ones(8, device='cuda')\n", "test_m.py"
    )
    whole = race("-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), path)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "1 passed" in whole.stdout
