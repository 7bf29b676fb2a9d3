"""``--fit`` with ``-sm tensor``: shares of the devices, what stays on the CPU, and the context.

Shares are equal, as free memory, or as memory is read. Where a CPU is beside the devices, experts
of leading blocks stay there, and if that is not enough, leading layers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ggsched.plan.bundle import Plan
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates
from ggsched_llm.batches import BatchSize
from ggsched_llm.expert_sharing import ExpertOptions
from ggsched_llm.fit import DECODING_STEPS, Fit, fastest
from ggsched_llm.offload import EMBEDDING, Offload
from ggsched_llm.session_options import SessionOptions
from ggsched_llm.sharing import Sharing, participants_of
from ggsched_llm.spec import ModelSpec, block_of, expert_block_of
from ggsched_shard.layout import Split


@dataclass(frozen=True, slots=True)
class SharedChoice:
    """One way to share a model.

    Attributes:
        n_ctx: Rows of the KV cache.
        shares: Of the devices; None for equal ones.
        n_cpu_moe: Leading blocks whose experts stay on the CPU.
    """

    n_ctx: int
    shares: tuple[float, ...] | None = None
    n_gpu_layers: int | None = None
    n_cpu_moe: int = 0

    def text(self) -> str:
        """Return it as options, e.g. ``-ts 3,1 --n-cpu-moe 3 -c 4096``."""
        words = [f"-ts {','.join(f'{s:g}' for s in self.shares)}"] if self.shares else []
        words += [f"-ngl {self.n_gpu_layers}"] if self.n_gpu_layers is not None else []
        words += [f"--n-cpu-moe {self.n_cpu_moe}"] if self.n_cpu_moe else []
        return " ".join(["-sm tensor", *words, f"-c {self.n_ctx}"])


@dataclass(frozen=True, slots=True)
class _Part:
    """Weights and caches that an option puts on the CPU together: a layer, or its experts.

    Attributes:
        layer: None for what belongs to none; the output layer is the last.
        seconds: By device, of what is shared.
        nbytes: By device, of weights.
        states: By device, of caches, for each row of the context.
        host: The same three on the CPU.
    """

    layer: int | None
    has_experts: bool
    seconds: dict[int, float]
    nbytes: Counter[int]
    states: dict[int, float]
    host: list[float]

    def is_on_host(self, choice: SharedChoice, layers: int) -> bool:
        """Whether a choice puts it there."""
        if self.layer is None:
            return False
        n_host = 0 if choice.n_gpu_layers is None else layers - choice.n_gpu_layers
        return self.layer < max(n_host, choice.n_cpu_moe if self.has_experts else 0)


class InShares:
    """The ways to share a model; see ``ggsched_llm.fit.FitSpace``."""

    def __init__(
        self, spec: ModelSpec, scheduler: Scheduler, rates: MachineRates, options: SessionOptions
    ) -> None:
        """Take what is given, and how plans are made."""
        self._scheduler, self._rates, self._options = scheduler, rates, options
        devices = scheduler.topology.devices
        who = participants_of(options, devices)
        self._sharing_devices = who.devices[: len(who.shares)]
        self._host = who.devices[who.host]
        self._has_cpu = who.host not in who.groups[0]
        self._layers, self._has_experts = spec.hparams.n_layer, spec.hparams.n_expert > 0

        def shared(choice: SharedChoice, experts: ExpertOptions) -> Sharing:
            wanted = replace(options, offload=self.offload(choice), experts=experts)
            return Sharing.of(spec, devices, wanted, rates)

        self._shared = cache(shared)
        self._parts = cache(self._parts_of)

    def sharing(self, choice: SharedChoice) -> Sharing:
        """Return how a model is shared; experts are divided as if none were on the CPU."""
        base = self._base(choice.shares)
        experts = self._options.experts
        if experts.parallel == "auto" and not experts.split and base.why:
            experts = replace(experts, parallel="on" if base.is_by_expert else "off")
        made = self._shared(replace(choice, n_ctx=0), experts)  # the context changes nothing
        return replace(made, why=base.why)

    def _base(self, shares: tuple[float, ...] | None) -> Sharing:
        """Return how a model is shared with nothing on the CPU."""
        return self._shared(SharedChoice(0, shares), self._options.experts)

    def candidates(self, n_ctx: int, limits: Sequence[int]) -> Iterator[SharedChoice]:
        """Yield what there is to choose from; see ``FitSpace``."""
        given, layers = self._options.offload, self._layers
        experts: Sequence[int] = (given.n_cpu_moe,)
        if self._has_cpu and self._has_experts and not given.n_cpu_moe:
            experts = range(layers + 1)
        on_cpu = [(given.n_gpu_layers, n) for n in experts]
        if self._has_cpu and given.n_gpu_layers is None:
            on_cpu += [(n, experts[-1]) for n in range(layers, 0, -1)]
        for shares in self._shares(limits):
            for n_gpu_layers, n_cpu_moe in on_cpu:
                yield SharedChoice(n_ctx, shares, n_gpu_layers, n_cpu_moe)

    def _shares(self, limits: Sequence[int]) -> list[tuple[float, ...] | None]:
        """Return the shares that are worth considering: percentages that differ by 5 or more."""
        if self._options.offload.tensor_split is not None:
            return [self._options.offload.tensor_split]
        found: list[tuple[float, ...] | None] = [None]
        speeds = [self._rates.devices[d].bandwidth for d in self._sharing_devices]
        for sizes in ([float(limits[d]) for d in self._sharing_devices], speeds):
            parts = tuple(max(1.0, round(100 * n / max(1.0, sum(sizes)))) for n in sizes)
            if max(parts) - min(parts) >= 5 and parts not in found:
                found.append(parts)
        return found

    def offload(self, choice: SharedChoice) -> Offload:
        """Return a choice as options of a session; see ``FitSpace``."""
        return replace(
            self._options.offload,
            tensor_split=choice.shares,
            n_gpu_layers=choice.n_gpu_layers,
            n_cpu_moe=choice.n_cpu_moe,
        )

    def _parts_of(self, shares: tuple[float, ...] | None) -> list[_Part]:
        shared, rates = self._base(shares), self._rates.devices
        hp, layers, n_ctx = shared.spec.hparams, self._layers, self._options.n_ctx
        states, tokens = shared.spec.state_nbytes(n_ctx), min(self._options.step, n_ctx)
        found: dict[tuple[int | None, bool], _Part] = {}
        for source in (*shared.spec.weights, *states):
            block, has_experts = block_of(source), expert_block_of(source) is not None
            layer = layers if block is None and source.startswith("output") else block
            part = found.setdefault(
                (layer, has_experts),
                _Part(layer, has_experts, {}, Counter(), {}, [0.0, 0.0, 0.0]),
            )
            layout = shared.shards.layout(source)
            if source in states:
                part.host[2] += states[source] / n_ctx
                for _, p in shared.shards.members(source):
                    own = states[source] / n_ctx
                    if isinstance(layout, Split):
                        own *= layout.extent(p) / sum(map(sum, layout.segments))
                    device = shared.who.devices[p]
                    part.states[device] = part.states.get(device, 0.0) + own
                continue
            weight = shared.spec.weights[source]
            used = hp.n_expert_used / hp.n_expert if has_experts else 1.0
            each = weight.dtype.block / weight.dtype.block_nbytes  # elements of a byte

            def seconds(nbytes: float, d: int, used: float = used, each: float = each) -> float:
                prompt = 2.0 * tokens * used * nbytes * each / rates[d].flops
                read = nbytes / rates[d].bandwidth
                begun = (1 + DECODING_STEPS) * (rates[d].node_s + rates[d].launch_s)
                return begun + max(read, prompt) + DECODING_STEPS * used * read

            is_read = source != EMBEDDING
            part.host[0] += seconds(weight.nbytes, self._host) * is_read
            part.host[1] += weight.nbytes
            for name, p in shared.shards.members(source):
                nbytes, device = shared.nbytes(name), shared.who.devices[p]
                part.nbytes[device] += nbytes
                more = seconds(nbytes, device) * is_read
                part.seconds[device] = part.seconds.get(device, 0.0) + more
        return list(found.values())

    def least_bytes(self, choice: SharedChoice) -> Mapping[int, int]:
        """Return what weights and caches take; see ``FitSpace``. With overrides nothing is sure."""
        used = Counter[int]()
        if self._options.offload.overrides:
            return used
        for part in self._parts(choice.shares):
            if part.is_on_host(choice, self._layers + 1):
                used[self._host] += int(part.host[1] + part.host[2] * choice.n_ctx)
            else:
                used += part.nbytes
                used += Counter({d: int(n * choice.n_ctx) for d, n in part.states.items()})
        return used

    def estimate(self, choice: SharedChoice) -> float:
        """Return about how long a micro-batch and some steps take; see ``FitSpace``.

        Devices that share a layer work at once, so the slowest counts; layers follow each other,
        and each hands something over, to the devices or to the CPU and back.
        """
        crossing = (1 + DECODING_STEPS) * self._rates.devices[self._host].event_s
        return sum(
            part.host[0] + 2 * crossing
            if part.is_on_host(choice, self._layers + 1)
            else max(part.seconds.values(), default=0.0) + crossing
            for part in self._parts(choice.shares)
        )

    def plans(self, choice: SharedChoice) -> Callable[[BatchSize], Plan]:
        """Return what makes the plan of a micro-batch; see ``FitSpace``."""
        shared = self.sharing(choice)
        wanted = replace(shared.homes.constraints(self._rates), reads_peers=True)

        def make(batch: BatchSize) -> Plan:
            graph = shared.graph(batch.graph(shared.spec, choice.n_ctx))
            return self._scheduler.draft(graph, wanted)

        return make


def fit_in_shares(
    spec: ModelSpec, scheduler: Scheduler, rates: MachineRates, options: SessionOptions
) -> tuple[SessionOptions, Fit, Sharing]:
    """Return the options with what ``--fit`` chose for devices that share layers, why, and how.

    Raises:
        OutOfDeviceMemory: nothing fits.
        UsageError: see ``Sharing.of``.
    """
    assert options.fit is not None
    space = InShares(spec, scheduler, rates, options)
    chosen = fastest(
        space,
        scheduler.topology,
        scheduler.free_nbytes(),
        options.fit,
        n_ctx=options.n_ctx,
        step=options.step,
    )
    scheduler.keep_plans(chosen.plans_kept)
    found = replace(
        options, offload=chosen.offload, n_ctx=chosen.n_ctx, plans_kept=chosen.plans_kept
    )
    offload = chosen.offload
    choice = SharedChoice(0, offload.tensor_split, offload.n_gpu_layers, offload.n_cpu_moe)
    return found, chosen, space.sharing(choice)
