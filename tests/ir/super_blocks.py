"""Layouts of types that ggsched does not have: what a layout must be able to say."""

from ggsched.ir.blocks import Bits, BlockLayout, Integers, Real

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _six_bits(at, which):
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


SUPER_BLOCKS = {
    "iq4_nl": BlockLayout(Integers((Bits(2, 32, 4, run=16),), table=IQ4), Real(0)),
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
        Integers((Bits(8, 256, 4, run=16),), table=IQ4),
        Real(0),
        sub_scales=Integers((Bits(4, 8, 4), Bits(2, 8, 2, up=4)), zero=32),
    ),
}
