"""``python -m benchmarks.gpu [PART ...] [-o FILE]``: run parts, write what they found."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

PARTS = (
    "place", "kit", "mutants", "models", "times", "warp_specialized", "attention",
    "flash_attention", "pdl_prefetch",
    "moe_router",
    "products", "rows", "prefill", "decode", "hybrid", "session", "pipeline",
)  # fmt: skip


def main() -> int:
    """Run the parts that are named, or all; the exit code is 1 if one of them found a defect."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the findings as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer examples, smaller models")
    options = parser.parse_args()
    wanted = options.parts or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    found: dict[str, Any] = {"about": _about(wanted)}
    ok = True
    for name in wanted:
        began = time.perf_counter()
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        result = _part(name, options.quick) if len(wanted) == 1 else _apart(name, options.quick)
        result["seconds"] = round(time.perf_counter() - began, 1)
        ok = ok and bool(result["ok"])
        found[name] = result
        sys.stdout.write(f"   {name}: ok={result['ok']}, {result['seconds']} s\n")
        sys.stdout.flush()
        if options.output:  # after each part: a later one may be cut short
            Path(options.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if ok else 1


def _part(name: str, quick: bool) -> dict[str, Any]:
    try:
        found: dict[str, Any] = import_module(f"benchmarks.gpu.{name}").run(quick=quick)
    except Exception:
        found = {"ok": False, "error": traceback.format_exc()}
        sys.stdout.write(found["error"])
    return found


def _apart(name: str, quick: bool) -> dict[str, Any]:
    """Run a part in a process of its own, so that what it does to the GPU ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.gpu", name, "-o", str(file)]
        done = subprocess.run([*command, *(["--quick"] if quick else [])], check=False)
        if not file.exists():
            return {"ok": False, "error": f"exit code {done.returncode}"}
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))[name]
        return found


def _about(parts: list[str]) -> dict[str, Any]:
    from ggsched_cuda import driver
    from ggsched_cuda.compiler.driver import compiler_version

    gpus = driver.find_gpus()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpus": [gpu.name for gpu in gpus],
        "arch": gpus[0].arch,
        "driver_cuda": gpus[0].driver,
        "nvrtc": ".".join(map(str, compiler_version())),
        "commit": _commit(),
        "command": " ".join(["python -m benchmarks.gpu", *parts]),
    }


def _commit() -> str:
    """Return the commit: from a file ``COMMIT`` where the tree is a copy, else from git."""
    file = Path("COMMIT")
    if file.exists():
        return file.read_text(encoding="utf-8").strip()
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
