"""Damage to valid input: bytes of any file, values of JSON, numbers of fixed width."""

import json
import random
import struct
from typing import Any, Final

from tests.fuzz.readers import Input

_TOKENS: Final = (
    b"\0", b"\xff", b"\n", b"[" * 3000, b"{", b'"', b"-1", b"1e999", b"9" * 5000, b"\xed\xa0\x80",
    b"\\ud800", b"null", b"NaN", b"..", b"/", b"%s" * 50, b"{{", b"}}", b"{%", b"(" * 200,
)  # fmt: skip
_NUMBERS: Final = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1, 2, 1 << 31, 1 << 63, 1 << 64, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "\0", "\ud800", "../x", "x" * 5000, [], {}, [None], [[]], {"": 0},
)  # fmt: skip


def mutant(corpus: list[Input], rng: random.Random) -> Input:
    """Return a copy of one of some inputs with a few things damaged."""
    files = dict(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        name = rng.choice([n for n in files if files[n]] or list(files))
        other = rng.choice(corpus).get(name, b"")
        files[name] = _json(files[name], rng) or _bytes(files[name], other, rng)
    return files


def _bytes(data: bytes, other: bytes, rng: random.Random) -> bytes:
    # Headers come first and are what is read, so half of the places are there.
    at = rng.randrange(len(data) + 1)
    if rng.random() < 0.5:
        at = min(at, rng.randrange(4096))
    n = rng.choice((1, 1, 2, 4, 8, 64, 1000))
    match rng.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + n :]
        case 2:
            return data[:at] + data[at : at + n] * 2 + data[at + n :]
        case 3:
            return data[:at] + rng.choice(_TOKENS) + data[at:]
        case 4:
            form = rng.choice("<>") + rng.choice("BHIQ")
            size = struct.calcsize(form)
            value = rng.choice(_NUMBERS) % (1 << 8 * size)
            return data[:at] + struct.pack(form, value) + data[at + size :]
        case 5:
            start = rng.randrange(len(other) + 1)
            return data[:at] + other[start : start + n] + data[at + n :]
        case 6:
            lines = data.split(b"\n")
            rng.shuffle(lines)
            return b"\n".join(lines)
        case _:
            flipped = bytes([data[at] ^ (1 << rng.randrange(8))]) if at < len(data) else b"\0"
            return data[:at] + flipped + data[at + 1 :]


def _json(data: bytes, rng: random.Random) -> bytes | None:
    """Return JSON, or lines of it, with one value changed; None if it is none, or by chance."""
    if data[:1] not in (b"{", b"[") or rng.random() < 0.3:
        return None
    lines = data.split(b"\n")
    at = 0 if rng.random() < 0.3 else rng.randrange(len(lines))
    try:
        value = json.loads(data if len(lines) > 1 and at == 0 else lines[at])
        is_whole = len(lines) > 1 and at == 0
    except (ValueError, RecursionError):
        try:
            value, is_whole = json.loads(lines[at]), False
        except (ValueError, RecursionError):
            return None
    try:
        text = json.dumps(_changed(value, rng)).encode()
    except (ValueError, RecursionError, TypeError):
        return None
    return text if is_whole else b"\n".join((*lines[:at], text, *lines[at + 1 :]))


def _changed(value: Any, rng: random.Random) -> Any:
    """Change one value in a tree of them, in place where it is a container."""
    parent, key, node = None, None, value
    while isinstance(node, dict | list) and node and (parent is None or rng.random() < 0.85):
        parent, key = node, rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node = node[key]
    if parent is None:
        return rng.choice(_VALUES)
    match rng.randrange(6):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[rng.choice(("", "x", "\ud800", f"{key}2"))] = parent.pop(key)
        case 2 if isinstance(parent, list):
            parent.extend(parent[: rng.choice((1, 2, 1000))])
        case 3 if isinstance(node, int) and not isinstance(node, bool):
            parent[key] = rng.choice(
                (
                    node + 1,
                    node - 1,
                    -node,
                    node * 2,
                    node << 40,
                    node + 0.5 if abs(node) < 1 << 60 else 0.5,
                )
            )
        case 4:
            for _ in range(rng.choice((1, 3, 500))):
                node = [node]
            parent[key] = node
        case _:
            parent[key] = rng.choice(_VALUES)
    return value
