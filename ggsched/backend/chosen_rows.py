"""Which rows of an operand there are, where only some have been copied."""


class ChosenRows:
    """Told before each launch that reads the operand; for whoever judges what is read.

    Attributes:
        ranges: Bytes of the rows, each (first, one past the last), from the operand's first byte.
    """

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: tuple[tuple[int, int], ...] = ()
