"""How a model's weights and caches are shared among devices that compute each layer together.

Attention is divided by heads of keys and values: each device has the rows of Q, K and V of its
heads, their part of the cache, and the columns of the output matrix that multiply them. The network
is divided by its inner width: rows of ``up`` and ``gate``, columns of ``down``; experts likewise,
each of them on all devices, or some of them whole on each (``expert_sharing``). So both end in one
sum over the devices. The output matrix is divided by rows; norms, routers and biases behind a sum
are whole on every device, the token embedding on one.

Layers that are not offloaded (``-ngl``), experts that stay on the CPU (``--n-cpu-moe``) and what
``-ot`` names live whole on one device: beside the devices that share layers the CPU takes part as
one more, which computes what it has; the others get the result.

Shares are kept as nearly as blocks of quantised types and whole heads allow. A device whose share
of the heads comes to none takes part in the network alone.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, lcm
from typing import Final

from ggsched.errors import UsageError
from ggsched.topology.caps import DeviceFacts
from ggsched_llm.expert_sharing import Division
from ggsched_llm.offload import EMBEDDING, OUTPUT, Homes, Offload, OverrideRule, find_device
from ggsched_llm.spec import ModelSpec, block_of, expert_block_of
from ggsched_llm.token_inputs import NEXT_TOKEN
from ggsched_offload.offload import ExpertPolicy
from ggsched_shard.layout import Layout, Split, Whole, even_parts
from ggsched_shard.rewrite import Shards

_DOWN: Final = re.compile(r"^(blk\.(\d+)\.ffn_)down(.*)\.weight$")
_WIDTH: Final = 64
"""Products are fast where parts of the inner width are multiples of this, if they can be."""

_FEWEST: Final = 4
"""Pieces for each device that are to be left, so that shares can be kept."""


@dataclass(frozen=True, slots=True)
class Participants:
    """The devices that share layers.

    Attributes:
        devices: Index of each in the topology; behind those that share layers come others, which
            have what is whole on one device.
        shares: Of each that shares layers, above 0.
        groups: Numbers of participants that share the same layers, in the order of the layers.
        host: The participant that has the embedding; a device of its own behind the others, where
            a CPU is left over.
    """

    devices: tuple[int, ...]
    shares: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    host: int


def find_participants(
    devices: Sequence[DeviceFacts],
    split: Sequence[float] | None,
    group_size: int | None = None,
    overrides: Sequence[OverrideRule] = (),
) -> Participants:
    """Return which devices share layers: the accelerators, or all where there are not two of them.

    Args:
        devices: Of the topology.
        split: Shares (``-ts``); equal ones if not given. A device with a share of 0 is left out.
        group_size: Devices that share a layer; all of them if not given.
        overrides: Rules (``-ot``), whose devices take part too.

    Raises:
        UsageError: shares that do not fit the devices, fewer than two devices, a number of devices
            that groups do not divide, or a device that is not in use.
    """
    candidates = [i for i, d in enumerate(devices) if d.kind != "cpu"]
    if len(candidates) < 2:
        candidates = list(range(len(devices)))
    shares = list(split) if split is not None else [1.0] * len(candidates)
    names = ", ".join(devices[c].name for c in candidates)
    if len(shares) > len(candidates) or not all(math.isfinite(s) and s >= 0 for s in shares):
        raise UsageError(
            f"-ts {','.join(f'{s:g}' for s in shares)} with -sm tensor",
            why=f"one share of 0 or more for each device; there are: {names}",
        )
    used = [(c, s) for c, s in zip(candidates, shares, strict=False) if s > 0]
    if len(used) < 2:
        raise UsageError(
            f"-sm tensor over {len(used)} device{'s' * (len(used) != 1)}",
            why="layers are shared by two devices or more",
            hint=f"devices in use: {', '.join(d.name for d in devices)}; add some with --devices",
        )
    size = len(used) if group_size is None else group_size
    if size < 2 or len(used) % size:
        raise UsageError(
            f"groups of {size} for {len(used)} devices", why="they must divide them, and have two"
        )
    groups = tuple(tuple(range(i, i + size)) for i in range(0, len(used), size))
    beside = [i for i, d in enumerate(devices) if d.kind == "cpu" and i not in candidates]
    host = len(used) if beside else 0
    named = [find_device(rule.device, devices) for rule in overrides]
    found = tuple(dict.fromkeys((*(c for c, _ in used), *beside[-1:], *named)))
    return Participants(found, tuple(s for _, s in used), groups, host)


@dataclass(frozen=True, slots=True)
class Alone:
    """Weights and caches that are not shared because the user says so.

    Attributes:
        homes: By name the participant that has it, and the rule that decided.
        n_host: Number of layers that are not shared, from the first on; the output layer counts.
        unused: Override patterns that matched nothing.
    """

    homes: Mapping[str, tuple[int, str]]
    n_host: int = 0
    unused: tuple[str, ...] = ()


def find_alone(
    spec: ModelSpec, devices: Sequence[DeviceFacts], who: Participants, offload: Offload
) -> Alone:
    """Return what ``-ngl``, ``--n-cpu-moe`` and ``-ot`` put on one device.

    Args:
        devices: Of the topology.
        who: The devices that share layers.
        offload: What the user requests.

    Raises:
        UsageError: layers or experts for a CPU where none is beside the devices that share layers.
    """
    hp = spec.hparams
    layers = hp.n_layer + 1
    n_host = 0 if offload.n_gpu_layers is None else max(0, layers - offload.n_gpu_layers)
    if (n_host or offload.n_cpu_moe) and who.host in who.groups[0]:
        asked = f"-ngl {offload.n_gpu_layers}" if n_host else f"--n-cpu-moe {offload.n_cpu_moe}"
        names = ", ".join(devices[d].name for d in who.devices)
        raise UsageError(
            f"{asked} with -sm tensor",
            why=f"no CPU is beside the devices that share layers: {names}",
            hint="add cpu:0 to --devices, beside two accelerators or more",
        )
    targets = [who.devices.index(find_device(rule.device, devices)) for rule in offload.overrides]
    used = set()
    homes: dict[str, tuple[int, str]] = {}
    for name in (*spec.weights, *hp.state_names):
        block, experts = block_of(name), expert_block_of(name)
        is_last = block is None and name.startswith("output")
        layer = hp.n_layer if is_last else block
        if layer is not None and layer < n_host:
            what = "the output layer" if is_last else f"block {block}"
            homes[name] = who.host, f"{what} is on the host (-ngl)"
        elif experts is not None and experts < offload.n_cpu_moe:
            homes[name] = who.host, "experts stay on the host (--n-cpu-moe)"
        matching = [i for i, rule in enumerate(offload.overrides) if rule.pattern.search(name)]
        used.update(matching)
        if matching:
            pattern = offload.overrides[matching[0]].pattern.pattern
            homes[name] = targets[matching[0]], f"-ot {pattern}"
    for layer in range(hp.n_layer):  # attention runs where its cache is
        cache = homes.get(f"blk.{layer}.k_cache")
        if cache is not None and f"blk.{layer}.attn_sinks.weight" in spec.weights:
            homes.setdefault(f"blk.{layer}.attn_sinks.weight", (cache[0], "where its cache is"))
    for name, (home, _) in tuple(homes.items()):  # a bias of some experts is added to no whole row
        bias = name.removesuffix("weight") + "bias"
        if expert_block_of(name) is not None and bias in spec.weights:
            homes.setdefault(bias, (home, "where its weight is"))
    patterns = [rule.pattern.pattern for rule in offload.overrides]
    unused = tuple(pattern for i, pattern in enumerate(patterns) if i not in used)
    return Alone(homes, n_host, unused)


_NOTHING: Final = Alone({})


def split_model(
    spec: ModelSpec,
    who: Participants,
    alone: Alone = _NOTHING,
    division: Division = Division(),  # noqa: B008  # frozen
) -> Shards:
    """Return how weights and caches are shared. The model must have an output matrix of its own.

    Args:
        alone: What is not shared.
        division: How experts are divided.

    Raises:
        UsageError: nothing of the model can be divided, or its experts cannot be in that way.
    """
    hp = spec.hparams
    layouts: dict[str, Layout] = dict.fromkeys((EMBEDDING, NEXT_TOKEN), Whole((who.host,)))
    n_host = min(alone.n_host, hp.n_layer)
    names: dict[int | None, list[str]] = {}
    for name in spec.weights:
        names.setdefault(block_of(name), []).append(name)
    for layer in range(n_host, hp.n_layer):
        group = who.groups[(layer - n_host) * len(who.groups) // (hp.n_layer - n_host)]
        own = _Group(spec, who, group, division)
        own_names = names.get(layer, [])
        for name in (*own_names, *hp.states_of(layer)):
            layouts[name] = Whole(group)
        layouts.update(own.attention(layer))
        layouts.update(own.networks(own_names))
    last = _Group(spec, who, who.groups[-1], division)
    layouts["output_norm.weight"] = Whole(who.groups[-1])
    layouts[OUTPUT] = last.split(0, (hp.n_vocab, 1.0, 1))
    layouts |= {name: Whole((p,)) for name, (p, _) in alone.homes.items()}
    if not any(isinstance(layout, Split) for layout in layouts.values()):
        raise UsageError(
            "nothing of this model can be shared",
            where="-sm tensor",
            why="every layer is on the host (-ngl)"
            if alone.n_host > hp.n_layer
            else "it has one head of keys, and a network of one block of its weights' type",
        )
    return Shards(len(who.devices), layouts, who.groups)


def shard_homes(
    spec: ModelSpec, shards: Shards, who: Participants, alone: Alone = _NOTHING, why: str = ""
) -> Homes:
    """Return the device and the reason of each part of a weight or cache, by its new name.

    Args:
        alone: What is not shared.
        why: Experts are divided as they are.
    """
    devices: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for source in (*spec.weights, *spec.hparams.state_names):
        layout = shards.layout(source)
        for name, p in shards.members(source):
            devices[name] = who.devices[p]
            _, asked = alone.homes.get(source, (p, ""))
            reasons[name] = asked or _reason(
                layout, p, why if expert_block_of(source) is not None else ""
            )
    return Homes(devices, reasons, alone.unused, ExpertPolicy())


def _reason(layout: Layout, part: int, why: str) -> str:
    if isinstance(layout, Split):
        spans = [span for span in layout.spans(part) if span[0] < span[1]]
        at = " and ".join(f"{first}:{stop}" for first, stop in spans)
        return f"{at} of axis {layout.axis} (-sm tensor{why and f', {why}'})"
    return (
        "whole on one device (-sm tensor)" if len(layout.on or ()) == 1 else "a copy (-sm tensor)"
    )


class _Group:
    """The participants that share a layer."""

    def __init__(
        self, spec: ModelSpec, who: Participants, group: tuple[int, ...], division: Division
    ) -> None:
        self._spec, self._hp, self._group = spec, spec.hparams, group
        self._division = division
        self._count = len(who.devices)
        self._shares = [who.shares[p] if p in group else 0.0 for p in range(len(who.shares))]
        self._shares += [0.0] * (self._count - len(self._shares))

    def split(self, axis: int, *segments: tuple[int, float, int]) -> Layout:
        """Return an axis divided by the shares.

        Args:
            axis: Of the weight.
            segments: Length, how many elements of the axis one of it stands for, smallest piece.
        """
        found = []
        for length, times, unit in segments:
            parts = even_parts(length, self._shares, unit)
            found.append(tuple(int(n * times) for n in parts))
        return self._made(Split(axis, tuple(found)))

    def attention(self, layer: int) -> dict[str, Layout]:
        """Return the weights and caches of attention that are split."""
        hp, blk = self._hp, f"blk.{layer}"
        out = f"{blk}.attn_output.weight"
        if hp.is_recurrent(layer):
            return {}  # each device computes with the whole state
        if hp.latent is not None:
            return self._latent(blk, out)
        per_group = hp.n_head // hp.n_head_kv
        unit = self._heads(out, per_group * hp.head_dim, hp.n_head_kv)
        heads = even_parts(hp.n_head_kv, self._shares, unit)

        def parts(width: int) -> tuple[int, ...]:
            return tuple(n * width for n in heads)

        q, kv = parts(per_group * hp.head_dim), parts(hp.head_dim)
        asked = tuple(2 * n for n in q) if hp.gates_attention else q
        # A norm over all heads needs all of them, so Q and K are whole in front of it.
        whole = self._spec.norm_width(f"{blk}.attn_q_norm") > hp.head_dim
        found: dict[str, Layout] = {}
        for name, axis, segments in (
            ("attn_q.weight", 0, (asked,)),
            ("attn_q.bias", 0, (q,)),
            ("attn_k.weight", 0, (kv,)),
            ("attn_k.bias", 0, (kv,)),
            ("attn_v.weight", 0, (kv,)),
            ("attn_v.bias", 0, (kv,)),
            ("attn_qkv.weight", 0, (q, kv, kv)),
            ("attn_qkv.bias", 0, (q, kv, kv)),
            ("attn_sinks.weight", 0, (parts(per_group),)),
            ("attn_output.weight", 1, (q,)),
        ):
            is_normed = whole and name.startswith(("attn_q.", "attn_k."))
            if f"{blk}.{name}" in self._spec.weights and not is_normed:
                found[f"{blk}.{name}"] = self._made(Split(axis, segments))
        for kind in ("k", "v"):
            found[f"{blk}.{kind}_cache"] = self._made(Split(1, (kv,)))
        return found

    def networks(self, names: Sequence[str]) -> Iterator[tuple[str, Layout]]:
        """Yield the weights of the networks, experts among them, that are split, of a block's."""
        weights = self._spec.weights
        for name in names:
            match = _DOWN.match(name)
            if match is None:
                continue
            down = weights[name]
            if self._division.is_by_expert and expert_block_of(name) is not None:
                count = down.shape[0]
                split = Split(0, self._division.segments(self._group, self._shares, count))
                for part, kind in product(("down", "up", "gate"), ("weight", "bias")):
                    other = f"{match[1]}{part}{match[3]}.{kind}"
                    if other in weights:
                        yield other, self._made(split)
                continue
            axis, width = len(down.shape) - 1, down.shape[-1]
            parts = even_parts(width, self._shares, self._piece(width, down.dtype.block))
            yield name, self._made(Split(axis, (parts,)))
            for part in ("up", "gate"):
                for kind in ("weight", "bias"):
                    other = f"{match[1]}{part}{match[3]}.{kind}"
                    if other in weights:
                        own = weights[other].shape[axis - 1]
                        segments = (parts,) * (own // width)
                        yield other, self._made(Split(axis - 1, segments))

    def _latent(self, blk: str, out: str) -> dict[str, Layout]:
        """Return the split of attention with one latent row for all heads, which is whole."""
        hp, weights = self._hp, self._spec.weights
        width = weights[out].shape[1] // hp.n_head
        unit = self._heads(out, width, hp.n_head)
        heads = even_parts(hp.n_head, self._shares, unit)
        found: dict[str, Layout] = {}
        for name, axis in (
            ("attn_q", 0), ("attn_q_b", 0), ("attn_k_b", 0), ("attn_v_b", 0), ("attn_output", 1)
        ):  # fmt: skip
            whole = weights.get(f"{blk}.{name}.weight")
            if whole is not None:
                each = whole.shape[axis] // hp.n_head
                parts = tuple(n * each for n in heads)
                found[f"{blk}.{name}.weight"] = self._made(Split(axis, (parts,)))
        return found

    def _heads(self, out: str, width: int, n_heads: int) -> int:
        """Return how many heads stay together, so that no block of the output matrix is cut."""
        block = self._spec.weights[out].dtype.block
        return min(n_heads, lcm(width, block) // width)

    def _piece(self, width: int, block: int) -> int:
        """Return the smallest piece of an inner width."""
        devices = sum(share > 0 for share in self._shares)
        piece = lcm(block, gcd(width, _WIDTH))
        while piece % 2 == 0 and piece // 2 % block == 0 and width // piece < _FEWEST * devices:
            piece //= 2
        return piece

    def _made(self, split: Split) -> Layout:
        """Return the split; what one device has alone is whole."""
        return Whole(split.on) if len(split.on) == 1 else split
