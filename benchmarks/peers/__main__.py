"""``python -m benchmarks.peers [SUITE ...] [--json FILE]``: measure beside peers, in one table."""

import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.peers.installed import known_peers
from benchmarks.table import Row, as_json, chosen, machine, render

SUITES = ("tasks", "models", "onnx", "ops", "memory", "checkers")


def main(arguments: list[str] | None = None) -> int:
    """Run the suites that are named, or all."""
    wanted, command, path = chosen("python -m benchmarks.peers", __doc__, SUITES, arguments)
    facts = {**machine(), "load": _load(), **known_peers()}
    lines = [f"$ {command}", *(f"  {k}: {v}" for k, v in facts.items())]
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()
    rows: list[Row] = []
    for name in wanted:
        sys.stderr.write(f"running {name} ...\n")
        rows += import_module(f"benchmarks.peers.bench_{name}").run()
    sys.stdout.write(render(rows) + f"\nload afterwards: {_load()}\n")
    if path:
        Path(path).write_text(as_json(rows, command) + "\n", encoding="utf-8")
    return 0


def _load() -> str:
    """Return the load of the machine over one, five and fifteen minutes."""
    return " ".join(f"{x:.1f}" for x in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
