"""A model that devices share layer by layer: what a session does differently for it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

from numpy.typing import NDArray

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.topology.caps import DeviceFacts, reads_peer
from ggsched.topology.cost import MachineRates, machine_of
from ggsched.topology.model import Topology
from ggsched.units import nbytes_text, seconds_text
from ggsched_llm.expert_sharing import Division, step_seconds
from ggsched_llm.hparams import HParams
from ggsched_llm.load import Model, weight_array
from ggsched_llm.offload import Homes, copied_output, source_name
from ggsched_llm.session_options import SessionOptions
from ggsched_llm.spec import ModelSpec
from ggsched_llm.tensor_split import (
    Alone,
    Participants,
    find_alone,
    find_participants,
    shard_homes,
    split_model,
)
from ggsched_llm.weights import part_array
from ggsched_offload.offload import ExpertPolicy
from ggsched_shard.layout import Split, part_nbytes, part_shape
from ggsched_shard.names import part_of
from ggsched_shard.place import ByParticipant
from ggsched_shard.rewrite import Shards, shard_graph

_LOG: Final = logging.getLogger("ggsched")

LANES: Final = 2
"""With more, each of which needs memory of its own, products wait for each other."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How devices share the layers of a model.

    Attributes:
        spec: The model, with an output matrix of its own.
        who: The devices.
        shards: Weights and caches.
        alone: Those that are not shared because the user says so.
        why: Experts are divided as they are; empty without experts.
    """

    spec: ModelSpec
    who: Participants
    shards: Shards
    alone: Alone
    why: str = ""

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        devices: Sequence[DeviceFacts],
        options: SessionOptions,
        rates: MachineRates | None = None,
    ) -> "Sharing":
        """Return how the devices share a model.

        Args:
            devices: Of the topology.
            rates: Of the devices; equal ones if not given.

        Raises:
            UsageError: shares that do not fit the devices, a model that cannot be divided, or an
                option that names a device which takes no part.
        """
        spec = copied_output(spec) if spec.is_tied else spec
        who = participants_of(options, devices)
        _warn_of_crossings(who, devices)
        alone = find_alone(spec, devices, who, options.offload)
        experts, peers = options.experts, _peers(who, devices)
        experts.check(spec.hparams.n_expert)

        def divided(division: Division, why: str) -> Sharing:
            shards = replace(split_model(spec, who, alone, division), peers=peers)
            return cls(spec, who, shards, alone, why)

        own = who.devices[: len(who.shares)]
        ranges = experts.ranges(devices, own)
        is_open = experts.parallel == "auto" and not ranges
        by_expert = bool(ranges) or experts.parallel == "on"
        unable = [devices[d].name for d in own if not devices[d].takes_expert_ranges]
        if by_expert and unable:
            raise UsageError(
                f"{' and '.join(experts.said)} with {', '.join(unable)}",
                why="products with some of the experts are not declared (takes_expert_ranges)",
                hint="leave it out: devices have columns of every expert then",
            )
        if not is_open or spec.hparams.n_expert < max(map(len, who.groups)):
            return divided(Division(by_expert, ranges), ", ".join(experts.said))
        if unable:
            why = f"by columns: {', '.join(unable)} takes all experts or none"
            return divided(Division(), why)
        speeds = [1e12 if rates is None else rates.devices[d].bandwidth for d in who.devices]
        ways = divided(Division(), "by columns"), divided(Division(True), "by expert")
        excess = [way.excess_nbytes(devices) for way in ways]
        seconds = [step_seconds(spec, way.shards, speeds) for way in ways]
        best, other = sorted((0, 1), key=lambda i: (excess[i], seconds[i]))
        more, words = excess[other] - excess[best], [ways[best].why, ways[other].why]
        if more:
            why = f"{words[0]}: {words[1]} needs {nbytes_text(more)} more than there is"
        else:
            times = [seconds_text(seconds[i]) for i in (best, other)]
            why = f"{words[0]}: a step reads its experts in {times[0]}, {words[1]} in {times[1]}"
        return replace(ways[best], why=why)

    def graph(self, graph: Graph) -> Graph:
        """Return the graph of a micro-batch in parts."""
        return shard_graph(graph, self.shards).graph

    @property
    def lanes(self) -> int:
        """Micro-batches that devices work on at once where those of a batch run together.

        With stages each has one. Where all devices share all layers, sums of one micro-batch, which
        move bytes between devices, run beside products of the next.
        """
        return LANES if len(self.who.groups) == 1 else 1

    @property
    def homes(self) -> Homes:
        """Where parts of weights and caches live, by their new names."""
        return shard_homes(self.spec, self.shards, self.who, self.alone, self.why)

    @property
    def is_by_expert(self) -> bool:
        """Whether devices have different experts of a layer."""
        return any(
            isinstance(layout, Split) and layout.axis == 0 and "ffn_down_exps.weight" in name
            for name, layout in self.shards.layouts.items()
        )

    def excess_nbytes(self, devices: Sequence[DeviceFacts]) -> int:
        """Return the bytes of weights for which devices have no memory."""
        used = [0] * len(devices)
        for source in self.spec.weights:
            for name, p in self.shards.members(source):
                used[self.who.devices[p]] += self.nbytes(name)
        return sum(max(0, n - d.memory_nbytes) for n, d in zip(used, devices, strict=True))

    def array(self, model: Model, name: str) -> NDArray[Any]:
        """Return the bytes of a part of a weight, as ``weight_array`` does of whole ones.

        Raises:
            ModelError: the model has no such weight.
        """
        source, part = part_of(name)
        whole = weight_array(model, source_name(self.spec, source))
        layout = self.shards.layout(source)
        if part is None or not isinstance(layout, Split):
            return whole
        return part_array(whole, self.spec.weights[source].dtype, layout, part)

    def is_mapped(self, name: str) -> bool:
        """Whether the bytes of a part stand together in the file."""
        layout = self.shards.layout(part_of(name)[0])
        if not isinstance(layout, Split):
            return True
        spans = layout.spans(part_of(name)[1] or 0)
        return layout.axis == 0 and sum(first < stop for first, stop in spans) == 1

    def nbytes(self, name: str) -> int:
        """Return the bytes of a part of a weight."""
        source, part = part_of(name)
        weight, layout = self.spec.weights[source], self.shards.layout(source)
        if part is None or not isinstance(layout, Split):
            return weight.nbytes
        return part_nbytes(part_shape(weight.shape, layout, part), weight.dtype)


def _peers(who: Participants, devices: Sequence[DeviceFacts]) -> frozenset[int]:
    """Return the participants that read each other's results, if all that share layers do."""
    own = [devices[who.devices[p]] for group in who.groups for p in group]
    if not all(reads_peer(a, b) for a, b in combinations(own, 2)):
        return frozenset()
    return frozenset(p for group in who.groups for p in group)


def placement_of(options: SessionOptions) -> ByParticipant:
    """Return what places the nodes of a model that devices share."""
    offload, size = options.offload, options.group_size
    named = ",".join(rule.device for rule in offload.overrides)

    def devices(topology: Topology) -> tuple[int, ...]:
        return participants_of(options, topology.devices).devices

    return ByParticipant(f"shares={offload.tensor_split}, groups of {size}, {named}", devices)


def participants_of(options: SessionOptions, devices: Sequence[DeviceFacts]) -> Participants:
    """Return which devices share layers, and which take part beside them.

    Raises:
        UsageError: see ``find_participants``.
    """
    offload = options.offload
    return find_participants(devices, offload.tensor_split, options.group_size, offload.overrides)


def check_sharing(options: SessionOptions, hparams: HParams) -> None:
    """Refuse what chooses where layers live beside ``-sm tensor``, and a head for drafts.

    Raises:
        UsageError: such an option is given, or the model was loaded with its head.
    """
    if hparams.predicts:
        raise UsageError(
            "the head that predicts further tokens with -sm tensor",
            why="its layer cannot be shared",
            hint="use -sm layer, a draft model (-md), or no draft",
        )
    understood = ("-ts", "-ngl", "--n-cpu-moe", "-ot", "--fit")
    said = [name for name in options.said if name not in understood]
    if said:
        raise UsageError(
            f"{', '.join(said)} with -sm tensor",
            why="devices share each layer, in the shares of -ts",
            hint="leave it out, or use -ts, -ngl, --n-cpu-moe, -ot and --fit",
        )


def sharing_options(options: SessionOptions, shared: Sharing) -> SessionOptions:
    """Return the options for devices that share layers.

    Nothing is offloaded: each device computes with what it has. Where all devices share all layers
    and results of others are copied, micro-batches run one by one unless the caller says otherwise.
    """
    offload = replace(options.offload, experts=ExpertPolicy())
    may_join = len(shared.who.groups) > 1 or bool(shared.shards.peers)
    is_chosen = may_join or options.pipelining == "on"
    pipelining = options.pipelining if is_chosen else "off"
    return replace(options, offload=offload, pipelining=pipelining)


def _warn_of_crossings(who: Participants, devices: Sequence[DeviceFacts]) -> None:
    """Warn where devices of several machines share layers: each waits for messages twice."""
    for group in who.groups:
        shared = [devices[who.devices[i]] for i in group]
        if len({machine_of(facts) for facts in shared}) > 1:
            names = ", ".join(facts.name for facts in shared)
            _LOG.warning(
                "devices of several machines share layers, and exchange sums in each of them: %s "
                "(name the devices of a machine together, and as many of each as --tensor-group)",
                names,
            )
