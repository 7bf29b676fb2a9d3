"""Which rows of an operand there are, where only some have been copied."""


class ChosenRows:
    """Called before each launch that reads the operand, for checks of the rows read.

    Attributes:
        ranges: Bytes of the rows, each (first, one past the last), from the operand's first byte.
    """

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: tuple[tuple[int, int], ...] = ()
