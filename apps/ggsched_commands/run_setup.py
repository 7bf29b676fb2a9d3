"""What ``--report`` needs to know of a run in order to advise options that work."""

from typing import TYPE_CHECKING

from ggsched.trace.setup import RunSetup, Stage
from ggsched_llm.offload import host_index, layer_devices, stages

if TYPE_CHECKING:
    from ggsched_llm.session import Session


def run_setup(session: "Session", n_prompt: int) -> RunSetup:
    """Return how a session was set up.

    Args:
        n_prompt: Tokens of the prompt.
    """
    options, spec = session.options, session.spec
    offload, devices = options.offload, session.scheduler.topology.devices
    if session.sharing is not None:  # nothing is divided by layers, so nothing is advised
        return RunSetup((), None, False, session.batches.step, options.n_batch, n_prompt)
    free = session.scheduler.free_nbytes()
    layers = layer_devices(spec.hparams, devices, offload)
    largest = max(1, 2 * session.model.weight_nbytes() // len(layers))

    def stage(index: int) -> Stage:
        return Stage(devices[index].name, layers.count(index), free[index] // largest)

    targets, host = stages(devices, offload), host_index(devices, offload)
    return RunSetup(
        stages=tuple(stage(t) for t in targets),
        host=None if host in targets else stage(host),
        is_by_layers=options.is_by_layers and options.fit is None and not offload.overrides,
        n_ubatch=session.batches.step,
        n_batch=options.n_batch,
        n_prompt=n_prompt,
    )
