"""The default devices of a model: those that are predicted to be fastest.

GPUs are all used, with a CPU beside them. Devices that compute in the host's memory, numpy and
OpenCL on the same processor for instance, would only share it out, so one of them is chosen: the
one that has the shortest predicted time for a prompt and some tokens, and that the model fits. By
calibrated rates, where there are any; else the product that takes most of the time is measured.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ggsched.backend.free_memory import free_nbytes
from ggsched.backend.probe import probe
from ggsched.backend.protocols import Device
from ggsched.calibrate.cache import load_rates
from ggsched.config import Settings
from ggsched.ir.dtype import DType
from ggsched.run.release import close_all
from ggsched.run.runtime import opened
from ggsched.topology.caps import op_key
from ggsched.units import nbytes_text, seconds_text
from ggsched_llm.batches import BatchSize, kv_bucket
from ggsched_llm.layer_costs import Candidate, layer_costs
from ggsched_llm.offload import LEFT_FOR_RESULTS, Offload
from ggsched_llm.quick_rates import WORTH_NBYTES, with_products
from ggsched_llm.spec import ModelSpec

PROMPT: Final = 512
GENERATED: Final = 128
"""The prompt and the answer for which times are compared where none are expected."""

Expected = tuple[int, int] | None
"""Tokens of a prompt and of its answer; as many as the context holds count."""


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """A device in the host's memory.

    Attributes:
        name: Of the device.
        seconds: Predicted for the prompt and the answer; None if it cannot run the model.
        why_not: Why it cannot.
    """

    name: str
    seconds: float | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class DefaultDevices:
    """The devices of a session that names none.

    Attributes:
        names: In order of priority.
        candidates: What was compared; nothing where there was no choice.
        tokens: Of the prompt and of the answer for which times were compared.
        source: Where the rates came from, for people.
    """

    names: tuple[str, ...]
    candidates: tuple[DeviceTime, ...] = ()
    tokens: tuple[int, int] = (0, 0)
    source: str = ""

    def reason(self) -> str:
        """Return what was chosen, and why, on one line."""
        line = f"devices: {', '.join(self.names)}"
        if len(self.candidates) < 2:
            return line
        parts = [
            f"{c.name} {c.why_not}" if c.seconds is None else f"{c.name} {seconds_text(c.seconds)}"
            for c in sorted(self.candidates, key=_rank)
        ]
        what = f"{self.tokens[0]} + {self.tokens[1]} tokens"
        return f"{line}: predicted for {what}: {', '.join(parts)} ({self.source})"


def default_devices(
    spec: ModelSpec, n_ctx: int, settings: Settings, expected: Expected = None
) -> DefaultDevices:
    """Choose the devices for a model. All are opened for that, and closed again.

    Raises:
        BackendUnavailable: there is no device.
    """
    devices, _ = opened(None, settings)
    try:
        return choose_devices(spec, n_ctx, devices, settings, expected)
    finally:
        close_all(devices)


def choose_devices(
    spec: ModelSpec,
    n_ctx: int,
    devices: Sequence[Device],
    settings: Settings,
    expected: Expected = None,
) -> DefaultDevices:
    """Choose among open devices; see above."""
    names = tuple(d.facts.name for d in devices)
    on_host = [d for d in devices if d.facts.is_host or d.facts.imports_host_memory]
    # Of several logical devices of a backend the first stands for all.
    on_host = [d for d in on_host if d.facts.name.endswith(":0")] or on_host[:1]
    others = [d for d in devices if not (d.facts.is_host or d.facts.imports_host_memory)]
    if settings.backends is not None or len(on_host) < 2:
        return DefaultDevices(names)
    if others:
        hosts = [d.facts.name for d in on_host if d.facts.kind == "cpu"][:1]
        return DefaultDevices((*(d.facts.name for d in others), *hosts))
    topology = probe(devices)
    rates = load_rates(topology, settings.rates)
    indices = [devices.index(d) for d in on_host]
    tokens = prompt, steps = _tokens(n_ctx, expected)
    runs = (
        (BatchSize(prompt, kv_bucket(prompt, n_ctx), 1), 1),
        (BatchSize(1, kv_bucket(min(n_ctx, prompt + steps), n_ctx), 1), steps),
    )
    heaviest, source = _heaviest(spec), rates.source
    if spec_nbytes(spec) >= WORTH_NBYTES:
        known, rates = rates, with_products(rates, devices, {i: [heaviest] for i in indices})
        if rates.devices != known.devices:
            source = f"mul_mat:{heaviest.name} measured"
    costs = layer_costs(spec, topology, rates, Offload(), runs, n_ctx)
    needs = [
        op_key(node.op, graph.tensors[node.inputs[0]].dtype.name)
        for graph in (size.graph(spec, n_ctx) for size, _ in runs)
        for node in graph.nodes
    ]

    def compared(index: int) -> DeviceTime:
        name = devices[index].facts.name
        why_not = _why_not(spec, n_ctx, devices[index], set(needs))
        if why_not:
            return DeviceTime(name, None, why_not)
        alone = replace(costs, stages=(), host=index, rest_with_first=False)
        launches_s = (1 + steps) * rates.devices[index].launch_s
        return DeviceTime(name, launches_s + alone.estimate(Candidate(n_ctx)))

    candidates = tuple(map(compared, indices))
    able = [c for c in candidates if c.seconds is not None]
    chosen = (min(able, key=_rank).name,) if able else names
    return DefaultDevices(chosen, candidates, tokens, source)


def spec_nbytes(spec: ModelSpec) -> int:
    """Return the bytes of all weights."""
    return sum(w.nbytes for w in spec.weights.values())


def _rank(candidate: DeviceTime) -> float:
    return float("inf") if candidate.seconds is None else candidate.seconds


def _tokens(n_ctx: int, expected: Expected) -> tuple[int, int]:
    """Return the tokens of the prompt and of the answer."""
    prompt, answer = expected or (PROMPT, GENERATED)
    prompt = max(1, min(prompt, n_ctx - 1))
    return prompt, max(0, min(answer, n_ctx - prompt))


def _heaviest(spec: ModelSpec) -> DType:
    """Return the type that most bytes of the matrices have."""
    nbytes = Counter[DType]()
    for weight in spec.weights.values():
        if len(weight.shape) > 1:
            nbytes[weight.dtype] += weight.nbytes
    return nbytes.most_common(1)[0][0]


def _why_not(spec: ModelSpec, n_ctx: int, device: Device, ops: set[str]) -> str:
    """Return why a device cannot run the model, which needs some ops, by itself, or nothing."""
    facts = device.facts
    if ops - facts.ops:
        return f"has no {min(ops - facts.ops)}"
    states = sum(spec.state_nbytes(n_ctx).values())
    wanted = (spec_nbytes(spec) + states) / (1 - LEFT_FOR_RESULTS)
    free = free_nbytes(device)
    if wanted > free:
        return f"has {nbytes_text(free)} of {nbytes_text(int(wanted))} that are wanted"
    largest = max(w.nbytes for w in spec.weights.values())
    if largest > facts.max_allocation_nbytes:
        return f"has no buffers of {nbytes_text(largest)}"
    return ""
