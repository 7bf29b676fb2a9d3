"""Kill a worker somewhere in a session, and look at what is left.

    python -m tests.cluster.kills 200        # processes of this host
    python -m tests.cluster.kills 50 --ray   # nodes of a Ray cluster on this host

Prints one line of JSON: how often what came out.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np

from ggsched import GraphBuilder, Scheduler
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, DeviceFault
from ggsched.passes.place import Constraints
from ggsched_cluster.local import local_start
from ggsched_cluster.remote_devices import open_group

TIMEOUT_S = 20.0
STAGES, WIDTH = 6, 256
LATEST_S = 0.6
"""The kill comes within this time after the session begins to load the model."""

VARIABLES = {"GGSCHED_THREADS": "1", "GGSCHED_BACKENDS": "cpu"}


def model():
    g = GraphBuilder("stages")
    h = g.input("x", (4, WIDTH))
    for i in range(STAGES):
        h = g.silu(g.mul_mat(g.weight(f"w{i}", (WIDTH, WIDTH)), h))
    graph = g.build(h)
    rng = np.random.default_rng(3)
    weights = {
        f"w{i}": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 16 for i in range(STAGES)
    }
    return graph, weights, {"x": rng.normal(size=(4, WIDTH)).astype(np.float32)}


def pids(devices):
    members = devices[0].group.driver._members
    return [m.process.pid if hasattr(m, "process") else m.pid for m in members]


def is_there(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def killing(pid, after_s):
    """Kill a process after a time, and in any case before the block ends."""
    done = threading.Event()

    def kill():
        done.wait(after_s)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def one(start, seed, case, leftovers):
    """Return what came out of a session one of whose workers is killed."""
    graph, weights, inputs, expected = case
    rng = random.Random(seed)
    devices = open_group(start, backends=("cpu",), timeout_s=TIMEOUT_S)
    homes = Constraints(homes={f"w{i}": i % len(devices) for i in range(STAGES)})
    everyone = pids(devices)
    try:
        with Scheduler(
            devices, weights=weights, settings=Settings(timeout_s=TIMEOUT_S)
        ) as scheduler:
            began = time.monotonic()
            try:
                with killing(rng.choice(everyone), rng.random() * LATEST_S):
                    while time.monotonic() - began < LATEST_S + TIMEOUT_S:
                        got = scheduler.run(graph, inputs, homes)
                        if not np.array_equal(next(iter(got.values())), expected):
                            return "wrong result"
                return "no error"
            except DeviceFault as error:
                text, took = str(error), time.monotonic() - began
            if "the machine was lost" not in text:
                return f"unclear: {text}"
            if took > LATEST_S + TIMEOUT_S:
                return "late"
            for device in devices:
                device.close()
            again = open_group(start, backends=("cpu",), timeout_s=TIMEOUT_S)
            everyone += pids(again)
            try:
                scheduler.reset(again)
                got = scheduler.run(graph, inputs, homes)
                recovered = np.array_equal(next(iter(got.values())), expected)
            finally:
                for device in again:
                    device.close()
            return "error, recovered" if recovered else "error, wrong result after it"
    finally:
        for device in devices:
            device.close()
        until = time.monotonic() + 5
        while any(map(is_there, everyone)) and time.monotonic() < until:
            time.sleep(0.05)
        leftovers["processes"] += sum(map(is_there, everyone))


def expected_of(graph, weights, inputs):
    with Scheduler(["cpu:0"], weights=weights) as scheduler:
        return next(iter(scheduler.run(graph, inputs).values()))


def kill_some(count, start, first=0, report=None):
    """Return outcomes, and leftovers, of sessions of which each loses a worker."""
    case = model()
    case = (*case, expected_of(*case))
    outcomes, leftovers = Counter(), Counter()
    before = set(os.listdir("/dev/shm"))
    for seed in range(first, first + count):
        try:
            outcomes[one(start, seed, case, leftovers)] += 1
        except BackendUnavailable as error:
            outcomes[f"unavailable: {error}"] += 1
        if report is not None:
            report(seed, dict(outcomes), dict(leftovers))
    leftovers["shared memory"] = len(set(os.listdir("/dev/shm")) - before)
    return dict(outcomes), dict(leftovers)


def main(argv):
    """Run as a script."""
    os.environ.update(VARIABLES)
    count = int(argv[0])

    def report(seed, outcomes, leftovers):
        sys.stderr.write(f"{seed} {outcomes} {leftovers}\n")

    if "--ray" in argv:
        from tests.cluster.ray_nodes import ray_nodes

        with ray_nodes("a", "b") as start:
            found = kill_some(count, start(), report=report)
    else:
        found = kill_some(count, local_start(["a", "b"], VARIABLES), report=report)
    sys.stdout.write(json.dumps({"outcomes": found[0], "left": found[1]}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
