import importlib.metadata
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ggsched.backend.registry import discover
from ggsched.cli.main import main
from ggsched.errors import UsageError
from ggsched_commands.new_backend import render, write_backend
from ggsched_testing.conformance import Harness, run_conformance
from tests.examples.installing import as_installed

NAME = "mydevice"
MAX_LINES = 150


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    folder = tmp_path / "made"
    write_backend(NAME, folder)
    with as_installed(folder, folder, monkeypatch):
        yield folder


def test_what_it_writes(tmp_path, capsys):
    place = tmp_path / "here"
    assert main(["new-backend", NAME, "--dir", str(place)]) == 0
    out = capsys.readouterr().out
    written = sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
    assert written == [
        "README.md",
        f"ggsched_{NAME}/__init__.py",
        f"ggsched_{NAME}/device.py",
        "pyproject.toml",
        f"tests/test_{NAME}.py",
    ]
    assert all(str(place / name) in out for name in written)
    assert f"ggsched conform {NAME}" in out
    assert stat.S_IMODE(place.stat().st_mode) & 0o700 == 0o700
    assert list(tmp_path.iterdir()) == [place]


def test_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my_device"]) == 0
    assert (tmp_path / "ggsched-my-device" / "ggsched_my_device" / "__init__.py").is_file()


def test_it_is_short():
    files = dict(render(NAME))
    code = [text for path, text in files.items() if path.endswith((".py", ".toml"))]
    assert sum(len(text.splitlines()) for text in code) < MAX_LINES
    assert not [path for path, text in files.items() if "@" in path or "@NAME" in text]


def test_it_passes_the_kit(plugin):
    report = run_conformance(Harness.named(f"{NAME}:0"), max_examples=10)
    report.raise_if_findings()
    assert sum(r.verdict == "pass" for r in report.results) > 80


def test_it_is_found_by_its_entry_point(plugin):
    points = importlib.metadata.entry_points(group="ggsched.backends")
    (point,) = [p for p in points if p.name == NAME]
    (status,) = discover(entry_points=[point])
    assert (status.state, status.distribution) == ("ready", f"ggsched-{NAME}")


def test_it_runs_a_graph(plugin):
    import numpy as np

    from ggsched import GraphBuilder, Scheduler
    from ggsched.backend.registry import open_devices

    g = GraphBuilder("example")
    x, w = g.input("x", (4, 64)), g.weight("w", (64, 64))
    graph = g.build(g.mul_mat(w, g.add(g.silu(x), x)))  # silu goes to the CPU
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((64, 64)).astype(np.float32)}
    inputs = {"x": rng.standard_normal((4, 64)).astype(np.float32)}
    with Scheduler(open_devices([f"{NAME}:0", "cpu:0"]), weights=weights) as scheduler:
        (result,) = scheduler.run(graph, inputs).values()
    silu = inputs["x"] / (1 + np.exp(-inputs["x"]))
    np.testing.assert_allclose(result, (silu + inputs["x"]) @ weights["w"].T, rtol=1e-4, atol=1e-4)


def test_it_runs_the_demo_with_a_cpu_that_takes_the_rest(plugin, capsys):
    asked = ["-p", "417+385=", "--devices", f"{NAME}:0,cpu:0"]
    assert main(["run", "demo", *asked]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == "802"
    assert f"weights cpu:0 2.0 KiB, {NAME}:0" in " ".join(err.split())


@pytest.mark.slow
def test_its_own_tests_pass(plugin):
    path = os.pathsep.join([str(plugin), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(plugin)],
        cwd=plugin,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", ["check --select E,F,W,I,B,UP,RUF,D1,ANN", "format --check"])
@pytest.mark.parametrize("name", ["x", NAME, "z" * 40])
def test_it_is_clean(tmp_path, command, name):
    """As its author sees it, to whom ggsched is a library among others."""
    pytest.importorskip("ruff", reason="ruff is in the extra 'dev'")
    folder = tmp_path / "made"
    write_backend(name, folder)
    options = ["--no-cache", "--isolated", "--line-length=100", "--target-version=py311"]
    options += ["--ignore=ANN401"] if command.startswith("check") else []
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command.split(), *options, "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # mypy reads all of ggsched for it
def test_it_is_typed(tmp_path):
    pytest.importorskip("mypy", reason="mypy is in the extra 'dev'")
    folder = tmp_path / "made"
    write_backend(NAME, folder)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, f"ggsched_{NAME}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("", "not a name"),
            ("My", "not a name"),
            ("a-b", "not a name"),
            ("a.b", "not a name"),
            ("../x", "not a name"),
            ("9a", "not a name"),
            ("_a", "not a name"),
            ("a b", "not a name"),
            ("ä", "not a name"),
            ("a" * 41, "not a name"),
            ("a\n", "not a name"),
            ("class", "has another meaning"),
            ("test", "has another meaning"),
            ("cpu", "installed"),
            ("kernels", "package ggsched_kernels"),
        ],
    )
    def test_bad_names(self, tmp_path, capsys, monkeypatch, name, why):
        monkeypatch.chdir(tmp_path)
        assert main(["new-backend", name]) == 2
        err = capsys.readouterr().err
        assert why in err
        assert err.count("\n") == 1
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("kind", ["empty", "full", "file", "dangling"])
    def test_what_exists_stays(self, tmp_path, capsys, kind):
        place = tmp_path / "there"
        match kind:
            case "file":
                place.write_text("mine")
            case "dangling":
                place.symlink_to(tmp_path / "nowhere")
            case _:
                place.mkdir()
                if kind == "full":
                    (place / "mine").write_text("mine")
        before = sorted(tmp_path.rglob("*"))
        assert main(["new-backend", NAME, "--dir", str(place)]) == 2
        assert "exists already" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before

    def test_no_folder_to_put_it_in(self, tmp_path, capsys):
        assert main(["new-backend", NAME, "--dir", str(tmp_path / "a" / "b")]) == 2
        assert "no such folder" in capsys.readouterr().err

    def test_a_failure_leaves_nothing(self, tmp_path, monkeypatch):
        def fail(*args, **kwargs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_text", fail)
        with pytest.raises(UsageError, match="No space left"):
            write_backend(NAME, tmp_path / "made")
        assert not list(tmp_path.iterdir())
