"""Verbs: pure functions from earlier artifacts and the topology to the next artifact.

Graph --place--> Placement --split--> Splits --assign--> Streams
      --liveness, allocate--> Memory --hazards, sync--> Commands   =  Plan
"""

from ggsched.passes.pipeline import make_plan
from ggsched.passes.place import Constraints

__all__ = ["Constraints", "make_plan"]
