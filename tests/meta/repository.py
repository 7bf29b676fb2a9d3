"""What the tests of the repository itself look at."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("ggsched", "backends", "apps")
SKIPPED = {".git", ".venv", "site", "dist", "build", "__pycache__", "node_modules"}


@cache
def own_files() -> tuple[Path, ...]:
    """Return the files that belong to the repository, also where there is no git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return tuple(sorted(_walk(ROOT)))
    names = listed.decode().split("\0")
    return tuple(sorted(ROOT / name for name in names if name and (ROOT / name).is_file()))


def _walk(folder: Path) -> list[Path]:
    found = []
    for path in folder.iterdir():
        hidden = path.name.startswith(".") and path.name not in {".ci", ".gitignore"}
        if hidden or path.name in SKIPPED or path.name.endswith(".egg-info"):
            continue
        found += _walk(path) if path.is_dir() else [path]
    return found


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below some folders."""
    return [
        path
        for path in own_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
    ]


def name_of(path: Path) -> str:
    """Return a path as one writes it in the repository."""
    return path.relative_to(ROOT).as_posix()
