"""Block layouts of the quantised types of GGUF files (ggml's ``block_q8_0`` and so on)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ggsched.ir.blocks import Bits, BlockLayout, Integers, Real

_NIBBLES: Final = Bits(at=0, count=32, width=4, run=16)
_FIFTH: Final = Bits(at=0, count=32, width=1, up=4)
# Twice the e2m1 numbers; scales are halved in turn.
_E2M1: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
_IQ4: Final = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)


def _at(at: int, bits: Bits) -> Bits:
    return replace(bits, at=at)


def _six_bits(at: int, which: int) -> Integers:
    """Eight scales (0) or mins (1) of 6 bits, as q4_k and q5_k pack them in twelve bytes."""
    here = at + 4 * which
    return Integers(
        (
            Bits(here, 4, 4, run=4),
            Bits(here, 4, 2, run=4, low=4, up=4),
            Bits(at + 8, 4, 4, run=4, start=4, low=4 * which),
            Bits(here, 4, 2, run=4, start=4, low=6, up=4),
        )
    )


LAYOUTS: Final[Mapping[str, BlockLayout]] = {
    "q8_0": BlockLayout(Integers((Bits(2, 32, width=8),), is_signed=True), Real(0)),
    "q4_0": BlockLayout(Integers((_at(2, _NIBBLES),), zero=8), Real(0)),
    "q4_1": BlockLayout(Integers((_at(4, _NIBBLES),)), Real(0), Real(2)),
    "q5_0": BlockLayout(Integers((_at(6, _NIBBLES), _at(2, _FIFTH)), zero=16), Real(0)),
    "q5_1": BlockLayout(Integers((_at(8, _NIBBLES), _at(4, _FIFTH))), Real(0), Real(2)),
    "mxfp4": BlockLayout(
        Integers((_at(1, _NIBBLES),), table=(*_E2M1, *(-x for x in _E2M1))),
        Real(0, "e8m0_half"),
    ),
    "iq4_nl": BlockLayout(Integers((_at(2, _NIBBLES),), table=_IQ4), Real(0)),
    "q2_k": BlockLayout(
        Integers((Bits(16, 256, 2, run=32),)),
        Real(80),
        Real(82, sign=-1),
        Integers((Bits(0, 16, 4, run=16),)),
        Integers((Bits(0, 16, 4, run=16, low=4),)),
    ),
    "q3_k": BlockLayout(
        Integers((Bits(32, 256, 2, run=32), Bits(0, 256, 1, run=32, up=2)), zero=4),
        Real(108),
        sub_scales=Integers((Bits(96, 16, 4, run=8), Bits(104, 16, 2, run=4, up=4)), zero=32),
    ),
    "q4_k": BlockLayout(
        Integers((Bits(16, 256, 4, run=32),)),
        Real(0),
        Real(2, sign=-1),
        _six_bits(4, 0),
        _six_bits(4, 1),
    ),
    "q5_k": BlockLayout(
        Integers((Bits(48, 256, 4, run=32), Bits(16, 256, 1, run=32, up=4))),
        Real(0),
        Real(2, sign=-1),
        _six_bits(4, 0),
        _six_bits(4, 1),
    ),
    "q6_k": BlockLayout(
        Integers((Bits(0, 256, 4, run=64), Bits(128, 256, 2, run=32, up=4)), zero=32),
        Real(208),
        sub_scales=Integers((Bits(192, 16, 8),), is_signed=True),
    ),
    "iq4_xs": BlockLayout(
        Integers((Bits(8, 256, 4, run=16),), table=_IQ4),
        Real(0),
        sub_scales=Integers((Bits(4, 8, 4), Bits(2, 8, 2, up=4)), zero=32),
    ),
}
"""By name, as in GGUF files."""
