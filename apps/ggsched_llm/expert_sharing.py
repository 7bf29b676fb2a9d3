"""How devices that share layers divide the experts of a layer: by columns, or by expert.

By columns each device has a part of the inner width of every expert, so all of them read the same
for a token, as nearly as blocks of quantised types allow. By expert (expert parallelism) each has
some of them whole: nothing is cut, and a step waits for the device that has most of the chosen
ones. In both ways each device computes a summand of the layer for all tokens.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import comb
from typing import Final, Literal

from ggsched.errors import UsageError
from ggsched.flags import HOMES, flag
from ggsched.topology.caps import DeviceFacts
from ggsched_llm.offload import find_device
from ggsched_llm.spec import ModelSpec, expert_block_of
from ggsched_shard.layout import Split, even_parts
from ggsched_shard.rewrite import Shards

_RANGE: Final = re.compile(r"(.+):(\d+)-(\d+)")

Segments = tuple[tuple[int, ...], ...]
"""See ``Split``."""


@dataclass(frozen=True, slots=True)
class ExpertRange:
    """Experts that a device is to have: from ``first`` on, up to ``stop``.

    Attributes:
        device: Its name, or its number in the order of ``--devices``.
    """

    device: str
    first: int
    stop: int

    @property
    def text(self) -> str:
        """As it is written."""
        return f"{self.device}:{self.first}-{self.stop - 1}"


def read_expert_split(text: str) -> tuple[ExpertRange, ...]:
    """Read ``0:0-15,1:16-31``.

    Raises:
        ValueError: a part is not a device and a range, or the range is empty.
    """
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is not DEVICE:FIRST-LAST, as in 0:0-15")
        found = ExpertRange(match[1], int(match[2]), int(match[3]) + 1)
        if found.first >= found.stop:
            raise ValueError(f"{part!r}: the last expert is before the first")
        ranges.append(found)
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """What the user requests of experts that devices share.

    Attributes:
        split: Empty for as many as the shares of the devices say.
    """

    parallel: Literal["auto", "on", "off"] = flag(
        "auto", "--expert-parallel", ("auto", "on", "off"),
        "With -sm tensor, each device has some experts of a layer whole (on), or columns and rows "
        "of each expert (off); auto: what fits, and is predicted to take less time in a step.",
        param="expert_parallel", heading=HOMES,
    )  # fmt: skip
    split: tuple[ExpertRange, ...] = flag(
        (), "--expert-split", read_expert_split,
        "With -sm tensor, which experts each device has, by its number or name. [default: as many "
        "as -ts says, if devices have whole ones]",
        param="expert_split", heading=HOMES, metavar="DEVICE:FIRST-LAST,...", multiple=True,
    )  # fmt: skip

    @property
    def said(self) -> tuple[str, ...]:
        """The options that are given."""
        found = {"--expert-parallel": self.parallel != "auto", "--expert-split": bool(self.split)}
        return tuple(name for name, is_said in found.items() if is_said)

    def check(self, n_expert: int) -> None:
        """Refuse what makes no sense for a model.

        Raises:
            UsageError: a model without experts, or ranges for devices that have columns.
        """
        if self.said and not n_expert:
            raise UsageError(f"{' and '.join(self.said)}", why="the model has no experts")
        if self.split and self.parallel == "off":
            raise UsageError(
                "--expert-split with --expert-parallel off",
                why="devices have columns of every expert then",
                hint="leave one of them out",
            )

    def ranges(
        self, devices: Sequence[DeviceFacts], sharing: Sequence[int]
    ) -> dict[int, ExpertRange]:
        """Return by participant the experts that it is to have.

        Args:
            devices: Of the topology.
            sharing: The devices that share layers, in the order of participants.

        Raises:
            UsageError: a device that is not there, shares no layers, or is named twice.
        """
        found: dict[int, ExpertRange] = {}
        for own in self.split:
            text = f"--expert-split {own.text}"
            if own.device.isdecimal() and int(own.device) >= len(devices):
                names = ", ".join(d.name for d in devices)
                raise UsageError(text, why=f"devices in use, from 0 on: {names}")
            device = (
                int(own.device)
                if own.device.isdecimal()
                else find_device(own.device, devices, "--expert-split")
            )
            if device not in sharing:
                raise UsageError(text, why=f"{devices[device].name} shares no layers")
            if sharing.index(device) in found:
                why = "kernels take the experts of one range"
                raise UsageError(f"{text}: {devices[device].name} has two ranges", why=why)
            found[sharing.index(device)] = own
        return found


@dataclass(frozen=True, slots=True)
class Division:
    """How experts are divided.

    Attributes:
        is_by_expert: Whether each device has some of them whole.
        ranges: By participant, if the user says which.
    """

    is_by_expert: bool = False
    ranges: Mapping[int, ExpertRange] = field(default_factory=dict)

    def segments(self, group: Sequence[int], shares: Sequence[float], count: int) -> Segments:
        """Return which experts the participants of a group have.

        Args:
            shares: Of all participants, 0 of those that are not in the group.
            count: Experts of a layer.

        Raises:
            UsageError: fewer experts than devices, or ranges that miss experts or overlap.
        """
        if self.ranges:
            return self._given(group, len(shares), count)
        if count < len(group):
            raise UsageError(
                f"--expert-parallel on: {len(group)} devices for {count} experts",
                why="each device has whole ones",
                hint="leave it out, or share layers in smaller groups (--tensor-group)",
            )
        return (even_parts(count, shares, 1),)

    def _given(self, group: Sequence[int], participants: int, count: int) -> Segments:
        own = [(self.ranges[p].first, self.ranges[p].stop, p) for p in group if p in self.ranges]
        end = 0
        for first, stop, p in sorted(own):
            text = f"--expert-split {self.ranges[p].text}"
            if first < end:
                raise UsageError(text, why=f"another device of the group has expert {first}")
            if stop > count:
                raise UsageError(text, why=f"the model has {count} experts, from 0 on")
            if first > end:
                break
            end = stop
        if end < count:
            raise UsageError(
                "--expert-split", why=f"no device of a group has expert {end} of {count}"
            )
        return tuple(
            tuple(stop - first if q == p else 0 for q in range(participants))
            for first, stop, p in sorted(own)
        )


def step_seconds(spec: ModelSpec, shards: Shards, bandwidths: Sequence[float]) -> float:
    """Return how long devices read the experts that a token chooses, layer by layer.

    Args:
        bandwidths: By participant, bytes per second.
    """
    used, seconds = spec.hparams.n_expert_used, 0.0
    for name, weight in spec.weights.items():
        layout = shards.layout(name)
        if expert_block_of(name) is None or len(weight.shape) < 3 or not isinstance(layout, Split):
            continue
        each = weight.nbytes / weight.shape[0]
        if layout.axis == 0:
            counts = tuple(layout.extent(p) for p in range(len(bandwidths)))
            seconds += expected_slowest(counts, used, tuple(each / b for b in bandwidths))
        else:
            width = weight.shape[layout.axis]
            parts = (layout.extent(p) / width / b for p, b in enumerate(bandwidths))
            seconds += used * each * max(parts)
    return seconds


@lru_cache(1024)  # layers are alike
def expected_slowest(counts: tuple[int, ...], used: int, each_s: tuple[float, ...]) -> float:
    """Return how long the slowest device is expected to take for the experts of a token.

    Every choice of ``used`` different experts counts the same.

    Args:
        counts: Experts of each device.
        each_s: Seconds that one of them takes there.
    """
    each = [(min(n, used), s) for n, s in zip(counts, each_s, strict=True)]
    times = sorted({k * s for most, s in each for k in range(most + 1)})
    before = seconds = 0.0
    for limit in times:
        ways = [1] + [0] * used  # by experts chosen so far
        for n, s in zip(counts, each_s, strict=True):
            some = [comb(n, k) if k * s <= limit else 0 for k in range(used + 1)]
            ways = [sum(ways[j] * some[i - j] for j in range(i + 1)) for i in range(used + 1)]
        now = ways[used] / comb(sum(counts), used)
        seconds += limit * (now - before)
        before = now
    return seconds
