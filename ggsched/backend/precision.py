"""How far a product may round what its weights meet (LCH-3), in one table.

A device may round the activations of a product, and weights that it unpacks, no more
coarsely than the weight's own type rounds: elements of bf16 have 8 bits, those of f16 and of the
block types, whose scales are f16 or powers of two, at most 11. An element of the result is then off
by ``2 ** -9`` (bf16) or twice ``2 ** -11`` (the others: both factors are rounded) of the sum of the
magnitudes that it adds up. The table has room for twice the first.

A device whose ``precision`` is not ``f32`` may round both factors of products and convolutions of
f32 to that type; an element is then off by twice ``2 ** -11`` (tf32) or ``2 ** -8`` (bf16) of that
sum. f16 is not among them: it has the bits of tf32, and what exceeds 65,504 would become infinite.

A device that declares ``rounds_to_8_bits`` may round activations beside packed weights further: to
8 bits, in blocks of 32 elements with a scale each, as llama.cpp does on CPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ggsched.backend.settings import setting
from ggsched.ir.dtype import QUANTIZED_DTYPES

Activations = Literal["auto", "f32"]
"""``auto``: as the table allows; ``f32``: no product is rounded beyond f32."""

Precision = Literal["f32", "tf32", "bf16"]
"""What a device may round the factors of products and convolutions of f32 to, not their sums."""

FACTORS: Final[Mapping[Precision, float]] = {"f32": 0.0, "tf32": 2.0**-10, "bf16": 2.0**-7}
"""The same as ``ROUNDING``, for weights of f32."""

ROUNDING: Final[Mapping[str, float]] = {
    "bf16": 2.0**-8,
    "f16": 2.0**-10,
    **{dtype.name: 2.0**-10 for dtype in QUANTIZED_DTYPES},
}
"""By type of the weight: most of ``sum |w| |x|`` that an element of a product may be off by.

0 for types that are not named. It comes on top of what every op is allowed.
"""

BLOCK: Final = 32
"""Elements of a block of activations that are rounded to 8 bits together."""

ROUNDING_TO_8_BITS: Final = 1 / 252
"""Where activations are rounded to 8 bits: most of ``sum |w| max |x|``, with the largest ``|x|`` of
each block, that an element of a product may be off by (a little more than half a step of 1/127)."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How a device declares that it rounds operands of products.

    Attributes:
        to_8_bits: ``DeviceFacts.rounds_to_8_bits``.
        precision: ``DeviceFacts.precision``.
    """

    to_8_bits: bool = False
    precision: Precision = "f32"


EXACT: Final = Rounds()
"""No more than the type of the weight."""


def rounding_of(dtype: str, precision: Precision = "f32") -> float:
    """Return the entry of a type, 0 where there is none."""
    return FACTORS[precision] if dtype == "f32" else ROUNDING.get(dtype, 0.0)


def activations() -> Activations:
    """Return ``GGSCHED_ACTIVATIONS``, ``auto`` where it is not set.

    Raises:
        UsageError: it is neither of the two.
    """
    found: Activations | None = setting("activations")
    return found or "auto"


def precision() -> Precision:
    """Return ``GGSCHED_PRECISION``, ``f32`` where it is not set.

    Raises:
        UsageError: it is none of the three.
    """
    found: Precision = setting("precision")
    return found


__all__ = [
    "BLOCK",
    "EXACT",
    "FACTORS",
    "ROUNDING",
    "ROUNDING_TO_8_BITS",
    "Activations",
    "Precision",
    "Rounds",
    "activations",
    "precision",
    "rounding_of",
]
