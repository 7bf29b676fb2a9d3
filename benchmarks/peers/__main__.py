"""``python -m benchmarks.peers [SUITE ...] [--json FILE]``: measure beside peers, in one table."""

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.peers.installed import known_peers
from benchmarks.table import Row, as_json, machine, render

SUITES = ("tasks", "models", "onnx", "memory", "checkers")


def main(arguments: list[str] | None = None) -> int:
    """Run the suites that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file as well")
    options = parser.parse_args(arguments)
    wanted = options.suites or list(SUITES)
    unknown = [name for name in wanted if name not in SUITES]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    command = " ".join(["python -m benchmarks.peers", *wanted])
    facts = {**machine(), "load": _load(), **known_peers()}
    lines = [f"$ {command}", *(f"  {k}: {v}" for k, v in facts.items())]
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()
    rows: list[Row] = []
    for name in wanted:
        sys.stderr.write(f"running {name} ...\n")
        rows += import_module(f"benchmarks.peers.bench_{name}").run()
    sys.stdout.write(render(rows) + f"\nload afterwards: {_load()}\n")
    if options.json:
        Path(options.json).write_text(as_json(rows, command) + "\n", encoding="utf-8")
    return 0


def _load() -> str:
    """Return the load of the machine over one, five and fifteen minutes."""
    return " ".join(f"{x:.1f}" for x in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
