"""Chooses the homes of a session's weights and caches: by layers, so that all fits, or by cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology
from ggsched_llm.batches import BatchSize, kv_bucket
from ggsched_llm.fit import Fit, fit
from ggsched_llm.layer_costs import layer_costs
from ggsched_llm.offload import (
    EMBEDDING,
    LEFT_FOR_RESULTS,
    Homes,
    copied_output,
    find_homes,
    layer_devices,
    stages,
    wants_copy,
)
from ggsched_llm.session_options import SessionOptions
from ggsched_llm.spec import ModelSpec
from ggsched_llm.stage_balance import balanced_layers, split_reasons


@dataclass(frozen=True, slots=True)
class ChosenHomes:
    """Where a model's weights and caches live, and what was chosen for that.

    Attributes:
        spec: The model, with an output matrix of its own where a tied one is wanted twice.
        options: Of the session, with everything chosen that was left open.
        homes: Device and reason of each weight and cache.
        fit: What ``--fit`` found; None where it was not requested.
    """

    spec: ModelSpec
    options: SessionOptions
    homes: Homes
    fit: Fit | None


def choose_homes(
    spec: ModelSpec, scheduler: Scheduler, rates: MachineRates, options: SessionOptions
) -> ChosenHomes:
    """Decide where the tensors of a session live: by its placement policy, by layers, or to fit.

    Raises:
        OutOfDeviceMemory: nothing fits, with ``--fit``.
        UsageError: a rule that makes no sense, or there is nothing to choose.
        PlanError: the placement policy finds no placement.
    """
    if not options.is_by_layers:
        homes = homes_by_policy(spec, scheduler, rates, options)
        return ChosenHomes(spec, options, homes, None)
    chosen = None
    if options.fit is None:
        options = balance_options(spec, scheduler, rates, options)
    else:
        options, chosen = fit_options(spec, scheduler, rates, options)
    spec = untie_embedding(spec, scheduler, options, chosen)
    return ChosenHomes(spec, options, find_homes(spec, scheduler.topology, options.offload), chosen)


def homes_by_policy(
    spec: ModelSpec, scheduler: Scheduler, rates: MachineRates, options: SessionOptions
) -> Homes:
    """Return the homes that the scheduler's placement policy chooses for a decoding step.

    The step fills the context. All graphs of a session share weights and caches, so these are the
    homes in all of them.

    Raises:
        UsageError: an override that names a device which is not in use.
        PlanError: the policy finds no placement.
    """
    rules = find_homes(spec, scheduler.topology, options.offload)
    fixed = {name: d for name, d in rules.devices.items() if rules.reasons[name].startswith("-ot ")}
    graph = BatchSize(1, options.n_ctx, 1).graph(spec, options.n_ctx)
    wanted = Constraints(homes=fixed, rates=rates, offload=rules.experts)
    plan = scheduler.draft(graph, wanted)
    devices = {
        name: plan.placement.homes[graph.named(name).id] if name in graph else device
        for name, device in rules.devices.items()
    }
    why = "chosen by --placement for a step of decoding"
    reasons = {name: rules.reasons[name] if name in fixed else why for name in devices}
    return Homes(devices, reasons, rules.unused, rules.experts)


def fit_options(
    spec: ModelSpec, scheduler: Scheduler, rates: MachineRates, options: SessionOptions
) -> tuple[SessionOptions, Fit]:
    """Return the options with what ``--fit`` chose, and why.

    Raises:
        OutOfDeviceMemory: nothing fits.
        UsageError: there is nothing to choose, or an override makes no sense.
    """
    assert options.fit is not None

    def make(graph: Graph, homes: Homes) -> Plan:
        return scheduler.draft(graph, homes.constraints(rates))

    chosen = fit(
        spec,
        scheduler.topology,
        rates,
        scheduler.free_nbytes(),
        options.offload,
        options.fit,
        n_ctx=options.n_ctx,
        step=options.step,
        make=make,
    )
    scheduler.keep_plans(chosen.plans_kept)
    found = replace(
        options, offload=chosen.offload, n_ctx=chosen.n_ctx, plans_kept=chosen.plans_kept
    )
    return found, chosen


def balance_options(
    spec: ModelSpec, scheduler: Scheduler, rates: MachineRates, options: SessionOptions
) -> SessionOptions:
    """Return the options, with layers counted out where they are divided by cost.

    That is where the caller says so and, if nothing is said, among accelerators of equal memory,
    as long as weights and caches leave room: shares of memory say nothing of the output layer then,
    which counts as a layer there and takes a fraction of one for a micro-batch of a prompt.

    Raises:
        UsageError: division by cost is requested, and there are no devices to divide layers among,
            or no split fits.
    """
    offload = options.offload
    if offload.tensor_split or offload.stage_layers:
        return options
    topology, free = scheduler.topology, scheduler.free_nbytes()
    targets = stages(topology.devices, offload)
    is_asked = offload.split_by == "cost"
    if not is_asked and (offload.split_by or not _are_alike(topology, targets)):
        return options
    if not targets:
        raise UsageError(
            "there are no devices to divide layers among",
            why=f"devices: {', '.join(d.name for d in topology.devices)}",
            hint="name several in --devices",
        )
    step = min(options.step, options.n_ctx)
    run = BatchSize(step, kv_bucket(step, options.n_ctx), 1), 1
    costs = layer_costs(spec, topology, rates, offload, [run], options.n_ctx)
    share, count = 1.0 if is_asked else 1 - LEFT_FOR_RESULTS, len(costs.nbytes)
    limits = [int(share * free[t]) for t in targets]
    wanted = count if offload.n_gpu_layers is None else min(count, offload.n_gpu_layers)
    split = balanced_layers(costs, wanted, offload.n_cpu_moe, limits)
    if split is None and is_asked:
        raise UsageError(
            f"no split of {wanted} layers fits {len(targets)} devices",
            hint="offload fewer layers (-ngl), or let --fit choose",
        )
    if split is None:
        return options
    reasons = split_reasons(costs, split.counts, offload.n_cpu_moe, limits, step)
    counted = replace(offload, stage_layers=split.counts, stage_reasons=reasons)
    return replace(options, offload=counted)


def _are_alike(topology: Topology, targets: Sequence[int]) -> bool:
    """Whether there are several devices, all of one kind and memory."""
    found = {(topology.devices[t].kind, topology.devices[t].memory_nbytes) for t in targets}
    return len(targets) > 1 and len(found) == 1


def untie_embedding(
    spec: ModelSpec, scheduler: Scheduler, options: SessionOptions, chosen: Fit | None
) -> ModelSpec:
    """Return the model, with an output matrix of its own where a tied one is wanted twice.

    That is where its two users live on different devices and memory allows a copy.

    Args:
        scheduler: Has the devices.
        options: Of the session, with everything chosen that was left open.
        chosen: What ``--fit`` found, whose limits count then.

    Raises:
        UsageError: a rule that makes no sense.
    """
    topology, offload = scheduler.topology, options.offload
    if not wants_copy(spec, topology, offload):
        return spec
    first = layer_devices(spec.hparams, topology.devices, offload)[0]
    copy = spec.weights[EMBEDDING].nbytes
    if chosen is not None:
        fits = chosen.has_room(chosen.need.plus(first, copy))
    else:
        homes = find_homes(spec, topology, offload).devices
        sizes = {name: weight.nbytes for name, weight in spec.weights.items()}
        sizes |= spec.state_nbytes(options.n_ctx)
        used = sum(nbytes for name, nbytes in sizes.items() if homes[name] == first)
        free = (1 - LEFT_FOR_RESULTS) * scheduler.free_nbytes()[first]
        fits = copy <= topology.devices[first].max_allocation_nbytes and used + copy <= free
    return copied_output(spec) if fits else spec
