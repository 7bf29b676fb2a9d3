"""Whether a wheel and an sdist have what they should, and whether the wheel works by itself.

    python -m tests.meta.distribution dist/*

prints a line for each fault; ``make dist`` does so behind building both.
"""

import configparser
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.meta.repository import ROOT

LIMIT_S = 600
MAX_NBYTES = 8 << 20
ANSWER = "417+385="
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
LEFT_OUT = ("__pycache__", ".so", ".pyc", ".DS_Store")
"""Parts of names that no distribution has."""


@cache
def package_files() -> frozenset[str]:
    """Return the files of all packages, as a wheel names them."""
    return frozenset(
        path.relative_to((ROOT / package).parent).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not any(part in path.as_posix() for part in LEFT_OUT)
    )


def faults_of_wheel(path: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        points = configparser.ConfigParser(delimiters=("=",))
        points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
        metadata = wheel.read(f"{info}/METADATA").decode()
    content = {name for name in names if not name.startswith(f"{info}/")}
    wanted = package_files()
    yield from (f"{path.name}: lacks {name}" for name in sorted(wanted - content))
    yield from (f"{path.name}: has {name}" for name in sorted(content - wanted))
    if f"{info}/licenses/LICENSE" not in names:
        yield f"{path.name}: lacks the licence"
    if path.stat().st_size > MAX_NBYTES:
        yield f"{path.name}: has {path.stat().st_size} bytes, more than {MAX_NBYTES}"
    if not path.name.endswith("-py3-none-any.whl"):
        yield f"{path.name}: is not for every Python 3 and every system"
    for version in [c for c in PROJECT["project"]["classifiers"] if "3 :: " in c]:
        if f"Classifier: {version}" not in metadata:
            yield f"{path.name}: lacks {version}"
    for group in points.sections():
        for place in points[group].values():
            module = place.partition(":")[0].replace(".", "/")
            if not {f"{module}.py", f"{module}/__init__.py"} & content:
                yield f"{path.name}: the entry point {place} is not in it"


def faults_of_sdist(path: Path) -> Iterator[str]:
    """Yield what is wrong with an sdist: it has the packages, and what their tests need."""
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    wanted = {f"{Path(p).parent.as_posix()}/".removeprefix("./") for p in PACKAGES}
    for name in sorted(package_files()):
        if not any(f"{folder}{name}" in names for folder in wanted):
            yield f"{path.name}: lacks {name}"
    for name in ("pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/conftest.py"):
        if name not in names:
            yield f"{path.name}: lacks {name}"
    for name in sorted(names):
        if any(part in name for part in LEFT_OUT) or name.startswith((".git/", ".venv", "dist/")):
            yield f"{path.name}: has {name}"


def faults_of_installation(wheel: Path) -> Iterator[str]:
    """Yield what does not work where nothing but the wheel and what it requires is installed."""
    with tempfile.TemporaryDirectory(prefix="ggsched-dist-") as name:
        folder, python = Path(name), Path(name) / "venv" / "bin" / "python"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--timeout=20"]
        steps: list[tuple[list[str], str]] = [
            ([sys.executable, "-m", "venv", str(folder / "venv")], ""),
            ([*pip, "install", "--quiet", "--retries=2", str(wheel.resolve())], ""),
            ([*pip, "check"], ""),
            *(([str(python), "-m", "ggsched", *words], said) for words, said in COMMANDS),
        ]
        for words, said in steps:
            what = " ".join(words[1:])
            try:
                done = subprocess.run(
                    words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
                )
            except subprocess.TimeoutExpired:
                yield f"{what}: takes longer than {LIMIT_S} s"
                return
            if done.returncode or not done.stdout.startswith(said):
                text = (done.stderr or done.stdout).strip()[-500:]
                yield f"{what}: exit code {done.returncode}: {text}"
                return


COMMANDS: Sequence[tuple[Sequence[str], str]] = (
    (("--version",), "ggsched "),
    (("devices",), "device"),
    (("run", "demo", "-p", ANSWER, "-n", "8", "--devices", "cpu:0", "--html", "r.html"), "802\n"),
    (("plan", "demo", "--devices", "sim:0,cpu:0"), "plan of"),
    (("new-backend", "mychip"), ""),
    (("report-bug",), "### What happened"),
)
"""They use files that are no Python modules too: the model, the page, the template."""


def main(paths: Sequence[str]) -> int:
    """Print what is wrong with the files; return the exit code."""
    wheels = [Path(path) for path in paths if path.endswith(".whl")]
    sdists = [Path(path) for path in paths if path.endswith(".tar.gz")]
    faults = [fault for path in wheels for fault in faults_of_wheel(path)]
    faults += [fault for path in sdists for fault in faults_of_sdist(path)]
    if len(wheels) != 1 or len(sdists) != 1:
        faults.append(f"one wheel and one sdist are expected, not {', '.join(paths) or 'none'}")
    faults = faults or list(faults_of_installation(wheels[0]))
    sys.stderr.writelines(f"ggsched: {fault}\n" for fault in faults)
    if not faults:
        files = len(package_files())
        sys.stdout.write(f"{wheels[0].name}: {files} files; installed alone, its commands work\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
