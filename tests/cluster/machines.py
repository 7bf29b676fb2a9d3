"""Topologies whose devices lie in several machines, and machines that are threads."""

from dataclasses import replace
from threading import Condition

from ggsched.backend.offline_device import OfflineDevice
from ggsched.errors import DeviceFault
from ggsched.plan.parts import local_plan
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.topology.model import Topology


def apart(topology, machines):
    """Return a topology without paths between devices of different machines."""
    devices = tuple(replace(d, is_host=False, reads_peers=False) for d in topology.devices)
    copies, waits = (
        {pair: path for pair, path in paths.items() if machines[pair[0]] == machines[pair[1]]}
        for paths in (topology.copy_paths, topology.wait_paths)
    )
    return Topology(devices, copies, waits)


class Post:
    """Messages between threads of one process that stand for machines."""

    def __init__(self, timeout_s=5):
        self._there = {}
        self._changed = Condition()
        self._timeout_s = timeout_s
        self.sent = 0

    def of(self, machine, run):
        return _Network(self, machine, run)


class _Network:
    def __init__(self, post, machine, run):
        self._post, self._machine, self._run = post, machine, run

    def send(self, machine, tag, source):
        post = self._post
        with post._changed:
            post._there[self._run, self._machine, machine, tag] = bytes(source)
            post.sent += 1
            post._changed.notify_all()

    def receive(self, machine, tag, target):
        post, key = self._post, (self._run, machine, self._machine, tag)
        with post._changed:
            if not post._changed.wait_for(lambda: key in post._there, post._timeout_s):
                raise DeviceFault("no message", where=str(key))
            target[:] = post._there.pop(key)


class RunNetwork:
    """The network of a machine for one run after another."""

    def __init__(self, post, machine):
        self._post, self._machine, self._number = post, machine, 0

    def next_run(self):
        self._number += 1

    def send(self, machine, tag, source):
        self._post.of(self._machine, self._number).send(machine, tag, source)

    def receive(self, machine, tag, target):
        self._post.of(self._machine, self._number).receive(machine, tag, target)


class MachineThread:
    """A machine of a plan in a thread: its own store, resources and executor."""

    def __init__(self, graph, plan, part, machines, devices, weights, post):
        here = [m == part.machine for m in machines]
        topology = Topology(plan.devices)
        self.devices = [
            d if is_here else OfflineDevice(topology, i)
            for i, (d, is_here) in enumerate(zip(devices, here, strict=True))
        ]
        self.store = TensorStore(self.devices, weights, timeout_s=30)
        self.network = RunNetwork(post, part.machine)
        local = local_plan(plan, part, plan.devices)
        self.inputs = part.inputs
        self.executor = Executor(
            graph,
            local,
            Resources(graph, local, self.store),
            timeout_s=30,
            network=self.network,
            captures=True,
        )

    def run(self, values):
        self.network.next_run()
        return self.executor.run({n: values[n] for n in self.inputs})

    def close(self):
        self.executor.close()
        self.store.close()
