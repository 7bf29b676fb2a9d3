"""What nodes, events and copies are predicted to cost on a device.

A roofline with a fixed cost per node: seconds = fixed + max(flops / rate, bytes / bandwidth). The
numbers are guesses by kind of device until a calibration replaces them; they decide between plans
that are all correct.
"""

from dataclasses import dataclass
from typing import Final

from ggsched.topology.caps import DeviceFacts


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a device.

    Attributes:
        flops: Operations per second on one stream.
        bandwidth: Bytes per second on one stream.
        total_bandwidth: Bytes per second that all streams share.
        parallel: Streams that run at full speed beside each other.
        node_s: Seconds that any node takes at least.
        event_s: Seconds from the end of the recorded work to the start of what waits for it.
    """

    flops: float
    bandwidth: float
    total_bandwidth: float
    parallel: int
    node_s: float
    event_s: float


_BY_KIND: Final = {
    "cpu": Rates(40e9, 24e9, 33e9, 2, 3e-6, 60e-6),
    "accelerator": Rates(80e9, 30e9, 33e9, 2, 6e-6, 60e-6),
    "gpu": Rates(20e12, 800e9, 800e9, 4, 4e-6, 4e-6),
}


def rates_of(facts: DeviceFacts) -> Rates:
    """Return the rates of a device."""
    return _BY_KIND[facts.kind]


def node_seconds(rates: Rates, flops: float, nbytes: float, streams: int) -> float:
    """Return the seconds of a node while ``streams`` streams are busy."""
    bandwidth = min(rates.bandwidth, rates.total_bandwidth / streams)
    slowdown = max(1.0, streams / rates.parallel)
    return rates.node_s + max(slowdown * flops / rates.flops, nbytes / bandwidth)
