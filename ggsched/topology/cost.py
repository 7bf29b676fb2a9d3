"""What nodes, events and copies are predicted to cost on a machine.

A roofline (Williams, Waterman and Patterson 2009) with a fixed cost per node: seconds = fixed +
max(flops / rate, bytes / bandwidth). A copy costs latency + bytes / bandwidth, the linear model of
Hockney (1994). The numbers are guesses by kind of device until ``ggsched calibrate`` replaces them;
they decide between plans that are all correct, and never whether a plan is.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from ggsched.ops.record import ELEMENTS, PRODUCTS
from ggsched.topology.caps import HOST_PROCESSOR, DeviceFacts, Kind
from ggsched.topology.model import Topology

HOST: Final = -1
"""The end of a link that is host memory, as in plans."""

GUESSES: Final = "guesses by kind of device"


@dataclass(frozen=True, slots=True)
class KernelRate:
    """What one sort of node reaches on one stream.

    Attributes:
        name: Of a family of kernels (``OpDef.family``) or of an op, with the variant behind ``:``;
            of matrix products ``mul_mat`` and the type of the weights.
        flops: Operations per second where arithmetic is the limit (many columns).
        bandwidth: Bytes per second where memory is the limit (one column).
        step_s: Seconds of each part of a node that waits for the one before it.
    """

    name: str
    flops: float
    bandwidth: float
    step_s: float = 0.0


class Work(NamedTuple):
    """What a node does.

    Attributes:
        family: Of the kernels that compute it, see ``OpDef.family``.
        flops: Operations.
        nbytes: Bytes that are read and written.
        steps: Parts that run one after another.
    """

    op: str
    family: str
    flops: float
    nbytes: float
    steps: float = 1.0


_LIKE_PRODUCTS: Final = frozenset((PRODUCTS, "matmul", "conv", "conv_transpose", "recurrent"))
"""Families that are taken to be as fast as f32 products where they were not measured."""


@dataclass(frozen=True)
class Rates:
    """Rates of a device.

    Attributes:
        flops: Operations per second on one stream.
        bandwidth: Bytes per second on one stream.
        total_bandwidth: Bytes per second that all streams share.
        parallel: Streams that run at full speed beside each other.
        node_s: Seconds that any node takes at least.
        event_s: Seconds from the end of the recorded work to the start of what waits for it.
        launch_s: Seconds of a launch before its first node.
        kernels: Rates of single sorts of nodes, where they were measured.
        caution: How many times longer nodes are taken to be whose sort was not measured.
    """

    flops: float
    bandwidth: float
    total_bandwidth: float
    parallel: int
    node_s: float
    event_s: float
    launch_s: float = 0.0
    kernels: tuple[KernelRate, ...] = ()
    caution: float = 1.0

    @cached_property
    def _by_name(self) -> Mapping[str, KernelRate]:
        return {kernel.name: kernel for kernel in self.kernels}

    @cached_property
    def _base(self) -> KernelRate:
        return KernelRate(PRODUCTS, self.flops, self.bandwidth, self.node_s)

    def of_kernel(self, op: str, family: str) -> KernelRate:
        """Return the rate of a node: of its op, else of the family, else what is like the family.

        Args:
            op: Of the node.
            family: See ``OpDef.family``.
        """
        plain, colon, variant = family.partition(":")
        known = self._by_name
        found = known.get(op + colon + variant)
        if found is None and plain == PRODUCTS:  # attention is as fast as products
            found = known.get(family)
        if found is not None:
            return found
        like = self._base if plain in _LIKE_PRODUCTS else known.get(ELEMENTS, self._base)
        found, more = known.get(family, like), self.caution
        return KernelRate(family, found.flops / more, found.bandwidth / more, more * found.step_s)


def with_kernel(rates: Rates, kernel: KernelRate) -> Rates:
    """Return the rates with those of a product that was measured on one stream.

    All streams together reach at least what it reached, so what was guessed or measured of the
    device before does not cap it.
    """
    return replace(
        rates,
        kernels=(*rates.kernels, kernel),
        total_bandwidth=max(rates.total_bandwidth, kernel.bandwidth),
    )


@dataclass(frozen=True, slots=True)
class Link:
    """What it costs to move bytes one way.

    Attributes:
        latency_s: Seconds that the smallest copy takes, behind another one.
        bandwidth: Bytes per second.
    """

    latency_s: float
    bandwidth: float

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of a copy."""
        return self.latency_s + nbytes / self.bandwidth


@dataclass(frozen=True)
class MachineRates:
    """Rates of all devices of a topology and of the links between them.

    Attributes:
        devices: By index in the topology.
        links: By (source, destination); ``HOST`` is host memory, of each machine its own.
        enqueue_s: Seconds of the host for each command.
        source: Where the numbers came from, for people.
        machines: The machine of each device, see ``machine_of``; empty for one machine.
        network: By names of (source, destination) what was measured of messages between machines.
    """

    devices: tuple[Rates, ...]
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    enqueue_s: float = 2e-6
    source: str = GUESSES
    machines: tuple[str, ...] = ()
    network: Mapping[tuple[str, str], Link] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Hash of all numbers; with one digest the same plans are made."""
        links = sorted((k, asdict(v)) for k, v in self.links.items())
        plain = [[asdict(r) for r in self.devices], links, self.enqueue_s]
        if self.machines:
            between = sorted((k, asdict(v)) for k, v in self.network.items())
            plain += [list(self.machines), between]
        text = json.dumps(plain)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def link(self, src: int, dst: int) -> Link:
        """Return a link; one that has no direct path is the way over the host."""
        known = self.links.get((src, dst))
        if known is not None:
            return known
        if HOST in (src, dst):
            return _LINKS["accelerator"]
        ways = [self.link(src, HOST), self.link(HOST, dst)]
        between = self.between(src, dst)
        if between is not None:
            ways.append(between)
        pace = 1 / sum(1 / way.bandwidth for way in ways)
        return Link(sum(way.latency_s for way in ways), pace)

    def between(self, src: int, dst: int) -> Link | None:
        """Return what a message from the machine of a device to that of another costs, if any."""
        if not self.machines or self.machines[src] == self.machines[dst]:
            return None
        return self.network.get((self.machines[src], self.machines[dst]), _NETWORK)


_SLOW: Final = tuple(KernelRate(name, rate, 2 * rate) for name, rate in (
    ("scan", 2e9), ("nd.top_k:first-of-2048", 3e8), ("nd.top_k:first-of-16384", 3e8)
))  # fmt: skip
"""Guesses for GPUs, on which a thread adds up a row, and few of a row are found by all pairs."""

_BY_KIND: Final[Mapping[Kind, Rates]] = {
    # One stream: the backend cpu lets all its threads compute each node.
    "cpu": Rates(80e9, 24e9, 33e9, 1, 3e-7, 60e-6, 5e-6),
    "accelerator": Rates(80e9, 30e9, 33e9, 1, 6e-6, 60e-6),
    "integrated": Rates(1e12, 45e9, 50e9, 2, 8e-6, 20e-6),
    "gpu": Rates(20e12, 800e9, 800e9, 4, 3e-6, 4e-6, 0.0, _SLOW),
}

_BESIDE_CPU: Final = Rates(40e9, 12e9, 33e9, 1, 10e-6, 60e-6, launch_s=20e-6)
"""Of other devices on the processor of the host, as PoCL's: half of what the backend cpu reaches.

So nothing is placed there by a guess that the backend cpu could do as well.
"""

CAUTION: Final = 4.0
"""``Rates.caution`` of such a device, so that one rate it has does not stand for another one."""

_LINKS: Final[Mapping[Kind, Link]] = {
    "cpu": Link(3e-6, 10e9),
    "accelerator": Link(20e-6, 8e9),
    "integrated": Link(10e-6, 12e9),
    "gpu": Link(8e-6, 20e9),
}
"""Between host memory and a device of that kind."""


_NETWORK: Final = Link(60e-6, 1.1e9)
"""Between machines: 10 Gbit/s Ethernet."""


def machine_of(facts: DeviceFacts) -> str:
    """Return the machine of a device as names say it, ``ray://red`` of ``ray://red/cpu:0``."""
    scheme, separator, rest = facts.name.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else ""


def machines_of(topology: Topology) -> tuple[str, ...]:
    """Return the machine of each device; nothing where all are of this one."""
    found = tuple(machine_of(facts) for facts in topology.devices)
    return found if any(found) else ()


def rates_of(facts: DeviceFacts) -> Rates:
    """Return the guessed rates of a device."""
    if is_beside_cpu(facts):
        return _BESIDE_CPU
    return _BY_KIND[facts.kind]


def beside_cpu(cpu: Rates) -> Rates:
    """Return guessed rates of another device on the processor of one that was measured."""
    kernels = tuple(
        KernelRate(k.name, k.flops / 2, k.bandwidth / 2, 2 * k.step_s) for k in cpu.kernels
    )
    most = replace(
        _BESIDE_CPU,
        flops=min(_BESIDE_CPU.flops, cpu.flops / 2),
        bandwidth=min(_BESIDE_CPU.bandwidth, cpu.bandwidth / 2),
        total_bandwidth=min(_BESIDE_CPU.total_bandwidth, cpu.total_bandwidth),
    )
    return replace(most, kernels=kernels)


def is_beside_cpu(facts: DeviceFacts) -> bool:
    """Whether a device computes on the cores of the host and is not the backend cpu."""
    return facts.processor == HOST_PROCESSOR and facts.kind != "cpu"


def link_of(facts: DeviceFacts) -> Link:
    """Return the guessed link between host memory and a device, either way."""
    return _LINKS[facts.kind]


def guessed_rates(topology: Topology) -> MachineRates:
    """Return guesses for a machine, by kind of device."""
    links: dict[tuple[int, int], Link] = {}
    for i, facts in enumerate(topology.devices):
        links[HOST, i] = links[i, HOST] = link_of(facts)
    for src, dst in topology.copy_paths:
        a, b = links[HOST, src], links[HOST, dst]
        if topology.devices[src].is_host:  # its memory is the host's
            a = b
        elif topology.devices[dst].is_host:
            b = a
        links[src, dst] = Link(max(a.latency_s, b.latency_s), min(a.bandwidth, b.bandwidth))
    rates = tuple(rates_of(facts) for facts in topology.devices)
    return MachineRates(rates, links, machines=machines_of(topology))


def node_seconds(rates: Rates, work: Work, streams: float = 1) -> float:
    """Return the seconds of a node while ``streams`` streams are busy."""
    kernel = rates.of_kernel(work.op, work.family)
    bandwidth = min(kernel.bandwidth, rates.total_bandwidth / streams)
    slowdown = max(1.0, streams / rates.parallel)
    limit = max(slowdown * work.flops / kernel.flops, work.nbytes / bandwidth)
    return rates.node_s + (work.steps - 1) * kernel.step_s + limit
