"""Arrays as other libraries have them, as good or as bad as a test wants them."""

import numpy as np


class ByDlpack:
    """Offers DLPack and nothing else."""

    def __init__(self, array, device=(1, 0), is_old=False):
        self.array, self.device, self.is_old = array, device, is_old
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.is_old and options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(options)
        return self.array.__dlpack__(**options)


class ByDescription:
    """Offers ``__array_interface__`` and nothing else."""

    def __init__(self, array, **changes):
        self.array, self.changes = array, changes

    @property
    def __array_interface__(self):
        return {**self.array.__array_interface__, **self.changes}


class Both(ByDlpack, ByDescription):
    """Offers both; what DLPack gives is ``handed``."""

    def __init__(self, array, handed, device=(1, 0)):
        self.array, self.changes, self.handed, self.device = array, {}, handed, device

    def __dlpack__(self, **options):
        if isinstance(self.handed, Exception):
            raise self.handed
        return self.handed


def strided(values, axes, reverse):
    """Return a view with these values whose axes are permuted, and reversed where asked."""
    turned = np.ascontiguousarray(values.transpose(axes)).transpose(np.argsort(axes))
    for axis, is_reversed in enumerate(reverse):
        if is_reversed:
            turned = np.flip(np.flip(turned, axis).copy(order="K"), axis)
    return turned
