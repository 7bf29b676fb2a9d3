"""Decides how a model is spread, where that was left open: by cost, or so that it fits."""

from dataclasses import replace

from ggsched.ir.graph import Graph
from ggsched.models.balance import balanced_layers
from ggsched.models.batch_schedule import BatchSize, kv_bucket
from ggsched.models.fit import Fit, fit
from ggsched.models.offload import Homes, stages
from ggsched.models.session_options import SessionOptions
from ggsched.models.spec import ModelSpec
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates


def constraints_of(homes: Homes, rates: MachineRates) -> Constraints:
    """Return what all plans of a session are made with."""
    return homes.constraints(rates)


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
        return scheduler.draft(graph, constraints_of(homes, rates))

    chosen = fit(
        spec,
        scheduler.topology,
        rates,
        scheduler.free_nbytes(),
        options.offload,
        options.fit,
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

    Raises:
        UsageError: there are no devices to divide layers among, or no split fits.
    """
    offload = options.offload
    if offload.split_by != "cost" or offload.tensor_split or offload.stage_layers:
        return options
    topology = scheduler.topology
    free = scheduler.free_nbytes()
    step = min(options.step, options.n_ctx)
    split = balanced_layers(
        spec,
        topology,
        rates,
        offload,
        BatchSize(step, kv_bucket(step, options.n_ctx), 1),
        n_ctx=options.n_ctx,
        limits=[free[t] for t in stages(topology.devices, offload)],
    )
    return replace(options, offload=replace(offload, stage_layers=split.counts))
