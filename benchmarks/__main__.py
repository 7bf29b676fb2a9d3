"""``python -m benchmarks [SUITE ...] [--json FILE]``: run suites and print one table."""

import json
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.table import Row, as_json, chosen, machine, render

SUITES = (
    "planning",
    "packing",
    "streams",
    "pipeline",
    "overhead",
    "trace",
    "check_trace",
    "race_recorder",
    "decode",
    "cpu",
    "opencl",
    "fusion",
    "moe",
    "llama",
    "load",
    "predict",
    "placement",
    "cluster",
    "scale",
    "page",
)


def main() -> int:
    """Run the suites that are named, or all."""
    wanted, command, path = chosen("python -m benchmarks", __doc__, SUITES)
    sys.stdout.write(
        f"$ {command}\n" + "\n".join(f"  {k}: {v}" for k, v in machine().items()) + "\n\n"
    )
    rows: list[Row] = []
    for name in wanted:
        sys.stderr.write(f"running {name} ...\n")
        rows += (
            import_module(f"benchmarks.bench_{name}").run() if len(wanted) == 1 else _apart(name)
        )
    sys.stdout.write(render(rows) + "\n")
    if path:
        Path(path).write_text(as_json(rows, command) + "\n", encoding="utf-8")
    return 0


def _apart(suite: str) -> list[Row]:
    """Run a suite in a process of its own, so that none inherits the garbage of another."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks", suite, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]


if __name__ == "__main__":
    sys.exit(main())
