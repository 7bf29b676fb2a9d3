"""How a run of a model was set up, as far as advice on it needs to know."""

import msgspec


class Stage(msgspec.Struct, frozen=True):
    """A device that has layers.

    Attributes:
        device: Its name.
        room: Layers that its free memory could take in addition.
    """

    device: str
    layers: int
    room: int


class RunSetup(msgspec.Struct, frozen=True):
    """Options of a run.

    Attributes:
        stages: Devices that ``-ts`` divides layers among, in its order.
        host: The device of layers that are not offloaded, unless it is one of the stages.
        is_by_layers: Whether options that divide layers may be added: no other option decides.
        n_ubatch: Tokens of a micro-batch at most.
        n_batch: Tokens of a batch at most.
        n_prompt: Tokens of the prompt.
    """

    stages: tuple[Stage, ...]
    host: Stage | None
    is_by_layers: bool
    n_ubatch: int
    n_batch: int
    n_prompt: int
