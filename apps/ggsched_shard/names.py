"""Names of parts: ``blk.0.attn_q.weight#1`` is what participant 1 has of that weight."""

from typing import Final

MARK: Final = "#"


def name_of(name: str, part: int) -> str:
    """Return the name of a participant's part or copy of a weight or state."""
    return f"{name}{MARK}{part}"


label_of = name_of


def part_of(name: str) -> tuple[str, int | None]:
    """Return name and participant of a part; None for what is not a part.

    Labels of a joined graph end with ``@`` and the number of the joined part.
    """
    base, mark, rest = name.rpartition(MARK)
    number, at, joined = rest.partition("@")
    if not mark or not number.isascii() or not number.isdigit():
        return name, None
    return base + at + joined, int(number)
