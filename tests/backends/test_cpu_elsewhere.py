"""The CPU on systems that lack what Linux has."""

import subprocess
import sys

ELSEWHERE = """
import builtins, io, os, sys
for name in ("sched_getaffinity", "posix_fadvise", "posix_fallocate", "memfd_create", "eventfd"):
    if hasattr(os, name):
        delattr(os, name)

def opened(file, *args, real=io.open, **options):
    if str(file).startswith(("/proc", "/sys")):
        raise FileNotFoundError(file)
    return real(file, *args, **options)

def opened_raw(file, *args, real=os.open, **options):
    if str(file).startswith(("/proc", "/sys")):
        raise FileNotFoundError(file)
    return real(file, *args, **options)

builtins.open = io.open = opened
os.open = opened_raw
from ggsched.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_demo_runs_without_affinity_and_proc():
    """As on macOS: the text, the table of devices, and what a report of a fault says."""
    for arguments, said in (
        (["run", "demo", "-p", "417+385=", "--devices", "cpu:0"], "802"),
        (["devices"], "cpu:0"),
        (["report-bug"], "threads usable"),
    ):
        call = [sys.executable, "-c", ELSEWHERE, *arguments]
        done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
        assert "Traceback" not in done.stderr
