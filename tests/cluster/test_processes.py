"""Workers that are processes, and what is left when one is killed or the driver dies."""

import subprocess
import sys
import time

import pytest

from ggsched.errors import BackendUnavailable
from ggsched_cluster.local import local_start
from ggsched_cluster.remote_devices import open_group
from tests.cluster.kills import VARIABLES, is_there, kill_some


def test_a_killed_worker_is_one_clear_error_and_leaves_nothing():
    outcomes, left = kill_some(1, local_start(["a", "b"], VARIABLES))
    assert outcomes == {"error, recovered": 1}
    assert left == {"processes": 0, "shared memory": 0}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_killed_workers():
    outcomes, left = kill_some(200, local_start(["a", "b"], VARIABLES), first=1000)
    assert outcomes == {"error, recovered": 200}
    assert left == {"processes": 0, "shared memory": 0}


DRIVER = """
import os, sys
from ggsched_cluster.local import local_start
from ggsched_cluster.remote_devices import open_group
start = local_start(["a"], {"GGSCHED_BACKENDS": "cpu", "GGSCHED_THREADS": "1"})
devices = open_group(start, backends=("cpu",))
print(devices[0].group.driver._members[0].process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_worker_ends_when_its_driver_is_gone():
    driver = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, check=False)
    pid, until = int(driver.stdout), time.monotonic() + 20
    while is_there(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("is_early", [False, True])
def test_a_worker_that_cannot_start(monkeypatch, is_early):
    """Also one that has ended before it is given the token."""
    start_process = subprocess.Popen

    def ended(*args, **options):
        process = start_process(*args, **options)
        process.wait(60)
        return process

    if is_early:
        monkeypatch.setattr("ggsched_cluster.local.subprocess.Popen", ended)
    start = local_start(["a"], {"PYTHONPATH": "", "PYTHONHOME": "/nowhere"})
    with pytest.raises(BackendUnavailable, match="a: the worker ended: exit code 1"):
        open_group(start)


def test_a_worker_that_never_listens(monkeypatch):
    """Its process is there, and says nothing."""
    monkeypatch.setattr("ggsched_cluster.local.START_S", 0.0)
    start_process = subprocess.Popen

    def silent(_, **options):
        return start_process([sys.executable, "-c", "import time; time.sleep(600)"], **options)

    monkeypatch.setattr("ggsched_cluster.local.subprocess.Popen", silent)
    with pytest.raises(BackendUnavailable, match="a: the worker does not listen after 0 s"):
        open_group(local_start(["a"]))
