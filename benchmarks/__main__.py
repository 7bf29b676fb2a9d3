"""``python -m benchmarks [SUITE ...] [--json FILE]``: run suites and print one table."""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.table import Row, as_json, machine, render

SUITES = (
    "planning",
    "packing",
    "streams",
    "pipeline",
    "overhead",
    "trace",
    "decode",
    "cpu",
    "opencl",
    "fusion",
    "moe",
    "llama",
    "load",
    "predict",
    "cluster",
    "scale",
    "page",
)


def main() -> int:
    """Run the suites that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file as well")
    options = parser.parse_args()
    wanted = options.suites or list(SUITES)
    unknown = [name for name in wanted if name not in SUITES]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    command = " ".join(["python -m benchmarks", *wanted])
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
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(as_json(rows, command) + "\n")
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
