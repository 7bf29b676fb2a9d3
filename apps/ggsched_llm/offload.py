"""Where the tensors of a model live: llama.cpp's rules, as constraints for the planner.

Blocks count from the output: ``-ngl N`` puts the last N of the blocks and the output layer (which
counts as one, and first) on the accelerators; the others stay on the host device, which is the last
CPU of the list, or its last device. The token embedding stays on a CPU; without one it lives with
the first block, because a lookup on the last device would make each micro-batch wait until the one
before it has left the pipeline. A block's KV cache lives with its attention, or on the host device
where the block's device cannot write it. ``--n-cpu-moe N``
keeps the experts of the first N blocks on the host device, and ``-ot REGEX=DEVICE`` wins over
everything, for weights and caches alike.

A tied embedding looks tokens up and makes logits. Where the first and the last block live on
different devices, one home for both makes each micro-batch wait for the one before it, or hands the
hidden state back to the first device. A second copy of the matrix costs its bytes once and removes
both. llama.cpp keeps two copies as well.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, Literal

from ggsched.errors import UsageError
from ggsched.flags import HOMES, flag
from ggsched.passes.place import Constraints
from ggsched.topology.caps import DeviceFacts, offers, op_key
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology
from ggsched_llm.hparams import HParams
from ggsched_llm.spec import CACHE_DTYPES, ModelSpec, block_of, expert_block_of
from ggsched_llm.token_inputs import NEXT_TOKEN
from ggsched_offload.offload import ExpertPolicy

_CACHE: Final = re.compile(r"[hkv]_cache$")
_WITH_FIRST: Final = (
    "the embedding lives with block 0: on a later stage, each micro-batch would wait there for the "
    "one before it"
)


@dataclass(frozen=True, slots=True)
class OverrideRule:
    """Tensors whose name contains a match go to a device.

    Attributes:
        pattern: Searched for in weight and cache names.
        device: Name of a device; a backend's name alone stands for its first device.
    """

    pattern: re.Pattern[str]
    device: str


def _layers(text: str) -> int | None:
    if text in ("all", "auto", "-1"):
        return None
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a number of layers nor 'all'") from None
    if number < 0:
        raise ValueError(f"{number} layers: a number of layers is not negative")
    return number


def read_shares(text: str) -> tuple[float, ...]:
    """Read ``3,1``: shares of several devices, of which one at least is above 0.

    Raises:
        ValueError: it is none.
    """
    try:
        numbers = tuple(float(part) for part in re.split("[,/]", text))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of shares such as 3,1") from None
    if not all(math.isfinite(n) and n >= 0 for n in numbers) or not any(numbers):
        raise ValueError(f"{text!r}: shares are 0 or more, and not all 0")
    return numbers


def read_overrides(text: str) -> tuple[OverrideRule, ...]:
    """Read ``REGEX=DEVICE,...``; a comma within REGEX, as in ``{1,2}``, stays.

    Raises:
        ValueError: a rule names no device, or what is not a regular expression.
    """
    rules, left = [], ""
    for part in re.split("([,;])", text):
        left += part if left or part not in ",;" else ""
        if "=" in part:
            rules.append(_override(left))
            left = ""
    if left:
        _override(left)  # raises: it names no device
    return tuple(rules)


def _override(text: str) -> OverrideRule:
    pattern, _, device = text.rpartition("=")
    if not pattern or not device.strip():
        raise ValueError(f"{text!r} is not REGEX=DEVICE, as in 'ffn_.*_exps=cpu:0'")
    try:
        return OverrideRule(re.compile(pattern), device.strip())
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


SplitBy = Literal["memory", "cost", "equal"]


@dataclass(frozen=True, slots=True)
class Offload:
    """What the user requests.

    Attributes:
        n_gpu_layers: The output layer counts as the first; None for all.
        split_by: None for memory, and in a session for cost among accelerators of equal memory.
        stage_layers: Layers of each accelerator, which wins over shares; see ``balanced_layers``.
        stage_reasons: Why each of them gets as many, for people; none where nobody says so.
        experts: Whether layers and experts whose weights are on the host device are computed by
            accelerators all the same.
    """

    n_gpu_layers: int | None = flag(
        None, "-ngl --gpu-layers --n-gpu-layers", _layers,
        "Layers on accelerators, counted from the output layer. [default: all]",
        heading=HOMES, metavar="N",
    )  # fmt: skip
    n_cpu_moe: int = flag(
        0, "-ncmoe --n-cpu-moe", 0, "Keep the experts of the first N blocks on the CPU.",
        heading=HOMES,
    )  # fmt: skip
    tensor_split: tuple[float, ...] | None = flag(
        None, "-ts --tensor-split", read_shares,
        "Shares of the accelerators. [default: what --split-by says; equal with -sm tensor]",
        heading=HOMES, metavar="A,B,...",
    )  # fmt: skip
    overrides: tuple[OverrideRule, ...] = flag(
        (), "-ot --override-tensor", read_overrides,
        "Put matching weights and caches on a device. May be repeated; the first match wins.",
        heading=HOMES, metavar="REGEX=DEVICE,...", multiple=True,
    )  # fmt: skip
    split_by: SplitBy | None = flag(
        None, "--split-by", ("memory", "cost", "equal"),
        "How layers are divided among accelerators, or among all devices where there are none; "
        "cost: so that the slowest has the least to do. [default: cost among accelerators of "
        "equal memory, else memory]",
        heading=HOMES,
    )  # fmt: skip
    stage_layers: tuple[int, ...] | None = None
    stage_reasons: tuple[str, ...] = field(default=(), compare=False)
    experts: ExpertPolicy = field(default_factory=lambda: ExpertPolicy("auto", ring=2))


@dataclass(frozen=True, slots=True)
class Homes:
    """Device and reason of each weight and cache, by name.

    Attributes:
        devices: Index in the topology.
        reasons: Which rule decided, for people.
        unused: Override patterns that matched nothing.
        experts: As in ``Offload``.
    """

    devices: Mapping[str, int]
    reasons: Mapping[str, str]
    unused: tuple[str, ...] = field(default=())
    experts: ExpertPolicy = field(default_factory=ExpertPolicy)

    def constraints(self, rates: MachineRates | None = None) -> Constraints:
        """Return the homes as constraints for the planner, with rates to plan by.

        The token that a step chooses stays where the logits are, if one device has them all.
        """
        homes = dict(self.devices)
        last = homes.get(OUTPUT, homes.get(EMBEDDING))
        if last is not None:
            homes[NEXT_TOKEN] = last
        return Constraints(homes=homes, rates=rates, offload=self.experts)


def find_homes(spec: ModelSpec, topology: Topology, offload: Offload) -> Homes:
    """Apply the rules.

    Raises:
        UsageError: a negative count, shares that do not fit the devices, an override that names
            a device which is not in use.
    """
    hp = spec.hparams
    devices = topology.devices
    host = host_index(devices, offload)
    targets = [find_device(rule.device, devices) for rule in offload.overrides]
    layer_device = layer_devices(hp, devices, offload)
    used = [False] * len(targets)
    homes: dict[str, int] = {}
    reasons: dict[str, str] = {}
    entry = entry_index(spec, devices, offload, layer_device)
    in_stage = _stage_reasons(hp, devices, offload, layer_device)
    why = _rule_of_layers(devices, offload)
    for name in (*spec.weights, *hp.state_names):
        homes[name], reasons[name] = _by_layer(name, spec, layer_device, host, entry, why)
        reasons[name] = _with_stage(name, reasons[name], in_stage, hp.n_layer)
        if _is_stranded(name, spec, devices, homes[name], host):
            reasons[name] = _lacks_writes(spec, devices[homes[name]])
            homes[name] = host
        experts = expert_block_of(name)
        if experts is not None and experts < offload.n_cpu_moe and homes[name] != host:
            homes[name], reasons[name] = host, "experts stay on the host (--n-cpu-moe)"
        matching = [i for i, r in enumerate(offload.overrides) if r.pattern.search(name)]
        for i in matching:
            used[i] = True
        if matching:
            first = matching[0]
            reason = f"-ot {offload.overrides[first].pattern.pattern}"
            homes[name], reasons[name] = targets[first], reason
    unused = tuple(
        rule.pattern.pattern for rule, hit in zip(offload.overrides, used, strict=True) if not hit
    )
    return Homes(homes, reasons, unused, offload.experts)


def check_caches(homes: Homes, spec: ModelSpec, devices: Sequence[DeviceFacts]) -> str:
    """Return why KV caches are not with their layers, or an empty text.

    Raises:
        UsageError: a cache is where nothing can write it.
    """
    found = ""
    for name in filter(_CACHE.search, homes.devices):
        home = devices[homes.devices[name]]
        if not offers(home.ops, "set_rows", spec.cache_dtype.name):
            raise UsageError(
                f"the KV cache cannot be written: {_lacks_writes(spec, home)}",
                hint="choose a type that it can write (-ctk), or add cpu:0 to the devices",
            )
        if "set_rows" in homes.reasons[name]:
            found = found or f"KV caches stay on {home.name}: {homes.reasons[name]}"
    return found


def _lacks_writes(spec: ModelSpec, device: DeviceFacts) -> str:
    """Say which op a device lacks to write a cache, and the types that it can write."""
    able = [t for t in CACHE_DTYPES if offers(device.ops, "set_rows", t)]
    instead = f" (-ctk {able[0]})" if able else " (-ctk)"
    return f"{device.name} lacks {op_key('set_rows', spec.cache_dtype.name)}{instead}"


def _is_stranded(
    name: str, spec: ModelSpec, devices: Sequence[DeviceFacts], home: int, host: int
) -> bool:
    """Whether a KV cache cannot be written by the device of its layer, but by the host device."""
    if not _CACHE.search(name):
        return False
    able = [offers(devices[i].ops, "set_rows", spec.cache_dtype.name) for i in (home, host)]
    return able == [False, True]


def accelerators(devices: Sequence[DeviceFacts]) -> list[int]:
    """Return the devices that ``-ngl`` counts layers onto: all that are not CPUs."""
    return [i for i, d in enumerate(devices) if d.kind != "cpu"]


def stages(devices: Sequence[DeviceFacts], offload: Offload) -> list[int]:
    """Return the devices that layers are divided among: the accelerators.

    Where there are none and a split is requested, all devices, so that several CPU devices can
    make a pipeline.
    """
    found = accelerators(devices)
    asked = offload.tensor_split or offload.split_by or offload.stage_layers
    if not found and asked and len(devices) > 1:
        return list(range(len(devices)))
    return found


def host_index(devices: Sequence[DeviceFacts], offload: Offload) -> int:
    """Return the device of what is not offloaded: the last CPU, or the last device.

    Where several CPUs are the stages of a pipeline it is the first of them, because that is where
    a micro-batch enters.
    """
    found = stages(devices, offload)
    if found and not accelerators(devices):
        return found[0]
    cpus = [i for i, d in enumerate(devices) if d.kind == "cpu"]
    return cpus[-1] if cpus else len(devices) - 1


def has_cpu_host(devices: Sequence[DeviceFacts], offload: Offload) -> bool:
    """Whether what belongs to no layer stays on a CPU beside the accelerators."""
    host = host_index(devices, offload)
    return devices[host].kind == "cpu" and bool(accelerators(devices))


def entry_index(
    spec: ModelSpec,
    devices: Sequence[DeviceFacts],
    offload: Offload,
    layer_device: Sequence[int],
) -> int:
    """Return the device of what belongs to no layer: the token embedding and rotation factors.

    It is a CPU beside the accelerators, or else the device of the first block; the latter also
    where the embedding was copied, because the lookup ran on an accelerator before that.

    Args:
        devices: Of the machine.
        offload: What the user requests.
        layer_device: Device of each layer, see ``layer_devices``.
    """
    stays = has_cpu_host(devices, offload) and not spec.has_copied_output
    return host_index(devices, offload) if stays else layer_device[0]


def _by_layer(
    name: str, spec: ModelSpec, layer_device: Sequence[int], host: int, entry: int, why: str
) -> tuple[int, str]:
    layer = block_of(name)
    if layer is not None:
        device = layer_device[layer]
        where = "offloaded" if device != host else "on the host"
        return device, f"block {layer} is {where} ({why})"
    if name == "token_embd.weight" and not spec.is_tied:
        if entry == host:
            return host, "the embedding stays on the host"
        return entry, _WITH_FIRST
    if name.startswith("rope_"):
        return entry, "read by all blocks"
    if name == "token_embd.weight":
        return layer_device[-1], "output layer, whose matrix is the embedding (tied)"
    if name == "output.weight" and spec.has_copied_output:
        return layer_device[-1], "output layer, a second copy of the embedding (tied)"
    return layer_device[-1], "output layer"


def _rule_of_layers(devices: Sequence[DeviceFacts], offload: Offload) -> str:
    """Return what decides which blocks are offloaded, for people."""
    if len(devices) == 1:
        return "the only device in use"
    if not stages(devices, offload):
        return "no accelerator is in use"
    return "as all blocks are without -ngl" if offload.n_gpu_layers is None else "-ngl"


def _stage_reasons(
    hp: HParams, devices: Sequence[DeviceFacts], offload: Offload, layer_device: Sequence[int]
) -> dict[int, str]:
    """Return why each offloaded layer is in its stage, where there are several stages."""
    layers = hp.n_layer + 1
    wanted = layers if offload.n_gpu_layers is None else offload.n_gpu_layers
    offloaded = range(layers - min(wanted, layers), layers)
    targets = stages(devices, offload)
    used = (
        sorted({layer_device[layer] for layer in offloaded}, key=targets.index) if targets else []
    )
    if len(used) < 2:
        return {}
    found: dict[int, str] = {}
    for k, device in enumerate(used):
        own = [layer for layer in offloaded if layer_device[layer] == device]
        which = f"stage {k + 1} of {len(used)} ({span_text(own[0], own[-1], hp.n_layer)})"
        for layer in own:
            found[layer] = f"{which}: {_rule_of_stages(offload, targets.index(device))}"
    return found


def _with_stage(name: str, reason: str, in_stage: Mapping[int, str], n_layer: int) -> str:
    """Return the reason for a tensor, with its stage if its layer is in one of several."""
    block = block_of(name)
    if block is not None and block in in_stage:
        return f"block {block} is in {in_stage[block]}"
    if n_layer in in_stage and reason.startswith("output layer"):
        return f"{reason}; {in_stage[n_layer]}"
    return reason


def _rule_of_stages(offload: Offload, stage: int) -> str:
    if offload.stage_reasons:
        return offload.stage_reasons[stage]
    if offload.stage_layers is not None:
        return "as many layers as were chosen (--fit)"
    if offload.tensor_split is not None:
        return f"in shares of {', '.join(f'{s:g}' for s in offload.tensor_split)} (-ts)"
    if offload.split_by == "equal":
        return "in equal numbers (--split-by equal)"
    return "in shares of the devices' memory"


def span_text(first: int, last: int, n_layer: int) -> str:
    """Return the names of layers in a row; the one behind the blocks is the output layer."""
    ends = [f"block {i}" if i < n_layer else "the output layer" for i in (first, last)]
    if first == last:
        return ends[0]
    if last == n_layer and last - first > 1:
        return f"blocks {first} to {last - 1} and the output layer"
    return f"{ends[0]} and {ends[1]}" if last == n_layer else f"blocks {first} to {last}"


def layer_devices(hp: HParams, devices: Sequence[DeviceFacts], offload: Offload) -> list[int]:
    """Return the device of each block and, last, of the output layer.

    Raises:
        UsageError: a negative count, shares or numbers of layers that do not fit the devices.
    """
    host = host_index(devices, offload)
    layers = hp.n_layer + 1
    wanted = layers if offload.n_gpu_layers is None else offload.n_gpu_layers
    if wanted < 0 or offload.n_cpu_moe < 0:
        raise UsageError(
            f"-ngl {wanted}, --n-cpu-moe {offload.n_cpu_moe}",
            why="a number of layers is not negative",
            hint=f"this model has {layers} layers to offload, the output layer among them",
        )
    targets = stages(devices, offload)
    offloaded = min(wanted, layers)
    if offload.stage_layers is not None:
        return [host] * (layers - offloaded) + _by_counts(targets, offload.stage_layers, offloaded)
    shares = _shares(targets, devices, offload)
    if not targets:
        return [host] * layers
    bounds = [s / sum(shares) for s in accumulate(shares)]
    out = [host] * (layers - offloaded)
    for i in range(offloaded):
        k = bisect_right(bounds, i / offloaded)
        out.append(targets[min(k, len(targets) - 1)])
    return out


def _by_counts(targets: Sequence[int], counts: tuple[int, ...], offloaded: int) -> list[int]:
    if len(counts) != len(targets) or sum(counts) != offloaded or min(counts, default=0) < 0:
        raise UsageError(
            f"{', '.join(map(str, counts))} layers",
            why=f"one number for each of {len(targets)} devices, {offloaded} in all",
        )
    return [t for t, count in zip(targets, counts, strict=True) for _ in range(count)]


def _shares(
    targets: Sequence[int], devices: Sequence[DeviceFacts], offload: Offload
) -> list[float]:
    split = offload.tensor_split
    if split is None and offload.split_by == "equal":
        return [1.0] * len(targets)
    if split is None:
        return [float(max(1, devices[t].memory_nbytes)) for t in targets]
    is_share = all(math.isfinite(s) and s >= 0 for s in split) and any(split)
    if len(split) > len(targets) or not is_share:
        names = ", ".join(devices[t].name for t in targets) or "none"
        raise UsageError(
            f"-ts {','.join(f'{s:g}' for s in split)}",
            why=f"one share of 0 or more for each accelerator, not all 0; there are: {names}",
        )
    return [*split, *([0.0] * (len(targets) - len(split)))]


def find_device(name: str, devices: Sequence[DeviceFacts], option: str = "-ot") -> int:
    """Return a device by name, or by its backend's name alone (``CPU`` as in llama.cpp).

    Raises:
        UsageError: it is not in use.
    """
    for i, device in enumerate(devices):
        if name.lower() in (device.name.lower(), device.backend.lower()):
            return i
    known = ", ".join(d.name for d in devices)
    raise UsageError(f"{option} names the device {name!r}", hint=f"devices in use: {known}")


EMBEDDING: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"

LEFT_FOR_RESULTS: Final = 0.1
"""Share of a device's free memory that is left to intermediate results."""


def source_name(spec: ModelSpec, name: str) -> str:
    """Return the name of the weight in the file whose bytes a weight of the graph has."""
    return EMBEDDING if name == OUTPUT and spec.has_copied_output else name


def copied_output(spec: ModelSpec) -> ModelSpec:
    """Return a tied model with an output matrix of its own, a copy of the embedding."""
    weights = {**spec.weights, OUTPUT: spec.weights[EMBEDDING]}
    return replace(spec, weights=weights, has_copied_output=True)


def wants_copy(spec: ModelSpec, topology: Topology, offload: Offload) -> bool:
    """Whether the embedding is tied and its two users live on different devices.

    A rule of the caller for the embedding (``-ot``) wins: then there is one matrix, there.

    Raises:
        UsageError: numbers of layers or shares that do not fit the devices.
    """
    if not spec.is_tied or any(r.pattern.search(EMBEDDING) for r in offload.overrides):
        return False
    layers = layer_devices(spec.hparams, topology.devices, offload)
    return layers[0] != layers[-1]
