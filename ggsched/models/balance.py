"""Divides the layers of a model among devices by what they cost there."""

from collections.abc import Sequence

from ggsched.errors import UsageError
from ggsched.models.batch_schedule import BatchSize
from ggsched.models.layer_cost import layer_costs
from ggsched.models.layer_split import LayerSplit, split_layers
from ggsched.models.offload import Offload, has_cpu_host, host_index, stages
from ggsched.models.spec import ModelSpec
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology


def balanced_layers(
    spec: ModelSpec,
    topology: Topology,
    rates: MachineRates,
    offload: Offload,
    size: BatchSize,
    *,
    n_ctx: int,
    limits: Sequence[int | None] = (),
) -> LayerSplit:
    """Return how many of the offloaded layers each stage gets, so that the slowest is fastest.

    Args:
        spec: The model.
        topology: The machine.
        rates: Of the machine.
        offload: Which layers are offloaded, and whose experts stay on the host.
        size: The micro-batch that is balanced for.
        n_ctx: Rows of the KV cache.
        limits: Bytes of weights and caches that each stage has room for, None for any number.

    Raises:
        UsageError: there is nothing to divide among, or no split fits.
    """
    targets = stages(topology.devices, offload)
    if not targets:
        names = ", ".join(d.name for d in topology.devices)
        raise UsageError(
            "there are no devices to divide layers among",
            why=f"devices: {names}",
            hint="name several in --devices",
        )
    host = host_index(topology.devices, offload)
    graph = size.graph(spec, n_ctx)
    costs = layer_costs(
        spec,
        graph,
        rates.devices,
        host,
        n_cpu_moe=offload.n_cpu_moe,
        with_embedding=not has_cpu_host(topology.devices, offload),
    )
    layers = spec.hparams.n_layer + 1
    wanted = layers if offload.n_gpu_layers is None else min(layers, offload.n_gpu_layers)
    first = layers - wanted
    found = split_layers([costs.seconds[t][first:] for t in targets], costs.nbytes[first:], limits)
    if found is None:
        raise UsageError(
            f"no split of {wanted} layers fits {len(targets)} devices",
            hint="offload fewer layers (-ngl), or let --fit choose",
        )
    return found
