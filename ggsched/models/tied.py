"""Tied embeddings: one matrix that looks tokens up and makes logits, wanted on two devices.

The lookup begins a micro-batch and the product with the output matrix ends it. Where the first and
the last block live on different devices, one home for both makes each micro-batch wait for the one
before it, or hands the hidden state back to the first device. A second copy of the matrix costs its
bytes once and removes both. llama.cpp keeps two copies as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ggsched.models.layer_cost import weight_nbytes
from ggsched.models.offload import Offload, cache_names, find_homes, layer_devices
from ggsched.models.spec import ModelSpec
from ggsched.topology.model import Topology

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


def first_and_last(spec: ModelSpec, topology: Topology, offload: Offload) -> tuple[int, int]:
    """Return the devices of the first block and of the output layer.

    Raises:
        UsageError: numbers of layers or shares that do not fit the devices.
    """
    layers = layer_devices(spec.hparams, topology.devices, offload)
    return layers[0], layers[-1]


def wants_copy(spec: ModelSpec, topology: Topology, offload: Offload) -> bool:
    """Whether the embedding is tied and its two users live on different devices.

    A rule of the caller for the embedding (``-ot``) wins: then there is one matrix, there.

    Raises:
        UsageError: numbers of layers or shares that do not fit the devices.
    """
    if not spec.is_tied or any(r.pattern.search(EMBEDDING) for r in offload.overrides):
        return False
    first, last = first_and_last(spec, topology, offload)
    return first != last


def has_room(
    spec: ModelSpec, topology: Topology, offload: Offload, free: Sequence[int], n_ctx: int
) -> bool:
    """Whether the device of the first block has room for the copy beside its weights and caches.

    Args:
        spec: The model, tied.
        topology: The machine.
        offload: Where layers live.
        free: Bytes that are free on each device.
        n_ctx: Rows of the KV cache.

    Raises:
        UsageError: a rule that makes no sense.
    """
    first, _ = first_and_last(spec, topology, offload)
    homes = find_homes(spec, topology, offload).devices
    used = sum(weight_nbytes(w) for name, w in spec.weights.items() if homes[name] == first)
    cache = 4 * n_ctx * spec.hparams.n_embd_kv
    used += sum(cache for name in cache_names(spec.hparams) if homes[name] == first)
    copy = weight_nbytes(spec.weights[EMBEDDING])
    largest = topology.devices[first].max_allocation_nbytes
    return copy <= largest and used + copy <= (1 - LEFT_FOR_RESULTS) * free[first]
