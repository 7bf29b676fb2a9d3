"""What ``ggsched race`` costs, and that it finds nothing in ``race_programs``.

    python -m benchmarks.gpu.race_slowdown [STEPS [NAME ...]]

Prints a table for Markdown. A factor is the time of the steps under a recorder by that without.
"""

import os
import re
import subprocess
import sys

from benchmarks.gpu.race_programs import PROGRAMS

SCRIPT = os.path.join(os.path.dirname(__file__), "race_programs.py")
TIMEOUT_S = 300
RACE = (sys.executable, "-m", "ggsched", "race")
WAYS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "plain, s": ((sys.executable,), {}),
    "race": (RACE, {}),
    "--no-rows": ((*RACE, "--no-rows"), {}),
    "--threads": ((*RACE, "--threads"), {}),
    "--live": ((*RACE, "--live"), {}),
    "PyTorch's sanitizer": ((sys.executable,), {"TORCH_CUDA_SANITIZER": "1"}),
}


def measured(command: tuple[str, ...], env: dict[str, str], name: str, steps: str) -> str:
    """Return the seconds that a program prints, or how it has ended."""
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [*command, SCRIPT, name, steps],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    text = done.stdout + done.stderr
    found = re.search(rf"^{name}: ([\d.]+) s$", text, re.M)
    if "CSAN" in text or " finding" in text:
        return "finding"
    return found[1] if found and not done.returncode else f"ended with {done.returncode}"


def main() -> None:
    """Print the table."""
    steps = sys.argv[1] if len(sys.argv) > 1 else "100"
    print(f"| program | {' | '.join(WAYS)} |\n| --- |{' ---: |' * len(WAYS)}", flush=True)
    for name in sys.argv[2:] or PROGRAMS:
        cells = [measured(command, env, name, steps) for command, env in WAYS.values()]
        base = cells[0]
        factors = [
            f"{float(c) / float(base):.1f}" if re.match(r"[\d.]+$", c + base) else c
            for c in cells[1:]
        ]
        print(f"| {name} | {base} | {' | '.join(factors)} |", flush=True)


if __name__ == "__main__":
    main()
