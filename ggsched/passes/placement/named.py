"""Policies by name, for options and the command line."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ggsched.errors import UsageError
from ggsched.passes.place import PlacementPolicy
from ggsched.passes.placement.automatic import Automatic
from ggsched.passes.placement.cost import CostBased
from ggsched.passes.placement.ggml import GgmlRules

PLACEMENTS: Final[Mapping[str, Callable[[], PlacementPolicy]]] = {
    "auto": Automatic,
    "autotune": partial(Automatic, is_measured=True),
    "ggml": GgmlRules,
    "cost": CostBased,
}


def placement_policy(wanted: PlacementPolicy | str) -> PlacementPolicy:
    """Return a policy that was given by name or as an object.

    Raises:
        UsageError: no policy has that name, or the object is not a policy.
    """
    if isinstance(wanted, str):
        if wanted in PLACEMENTS:
            return PLACEMENTS[wanted]()
    elif isinstance(getattr(wanted, "key", None), str) and callable(getattr(wanted, "place", None)):
        return wanted
    raise UsageError(
        f"invalid placement {wanted!r}",
        hint=f"use {' or '.join(map(repr, PLACEMENTS))}, or an object with 'key' and 'place' "
        "(see ggsched.passes.place.PlacementPolicy)",
    )
