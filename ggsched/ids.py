"""One way to print each kind of id, the same in plans, traces, errors and reports.

Ids are plain integers, dense from zero, so that tables indexed by them are lists. The letter
in front exists only in text: ``n12`` node, ``t7`` tensor, ``v9`` value, ``s3`` split, ``q0``
stream, ``e7`` event, ``a1`` arena, ``c42`` command, ``d0`` device.
"""

from typing import Final, Literal

IdKind = Literal[
    "node", "tensor", "value", "split", "stream", "event", "arena", "command", "device"
]

LETTER: Final[dict[IdKind, str]] = {
    "node": "n",
    "tensor": "t",
    "value": "v",
    "split": "s",
    "stream": "q",
    "event": "e",
    "arena": "a",
    "command": "c",
    "device": "d",
}


def show(kind: IdKind, number: int) -> str:
    """Print an id, e.g. ``show("node", 12) == "n12"``."""
    return f"{LETTER[kind]}{number}"


def parse(kind: IdKind, text: str) -> int:
    """Read an id back, e.g. ``parse("node", "n12") == 12``.

    Raises:
        ValueError: the letter is another one, or no number follows it.
    """
    letter = LETTER[kind]
    if not text.startswith(letter) or not text[1:].isdigit():
        why = f"write {letter} and a number, as in {letter}12"
        raise ValueError(f"{text!r} is not a {kind} id: {why}")
    return int(text[1:])
