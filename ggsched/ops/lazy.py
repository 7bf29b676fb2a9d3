"""numpy, loaded when a reference is first called.

Planning and checking read records of ops and compute nothing, so they do not load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    Array = Any

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            found = vars(self)[name] = getattr(import_module("numpy"), name)
            return found

    np = _Numpy()

__all__ = ["Array", "np"]
