"""The table of facts of the reference page, from their declarations.

python -m ggsched_commands.capabilities_page docs/reference/capabilities.md
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from ggsched.files.reading import read_text
from ggsched.topology.caps import DeviceFacts, capabilities

_TYPES: Final = {bool: "boolean", int: "integer", str: "string"}
_BEGIN: Final = "<!-- capabilities -->\n"
_END: Final = "<!-- end -->\n"
_IDENTITY: Final = {
    "name": "As on the command line, e.g. `opencl:0`",
    "backend": "Name of the plug-in",
    "description": "For people, e.g. the name of the processor",
    "processor": "Name of the processor that computes, e.g. `host`; devices of one name take turns "
    "on its cores, which predictions count. Empty for one of the device's own",
}


def filled(text: str) -> str:
    """Return the text of the page with the table as the declarations have it now."""
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    return "\n".join((f"{before}{_BEGIN}", *_rows(), "", f"{_END}{after}"))


def _rows() -> Iterator[str]:
    yield "| field | type, default | meaning |"
    yield "| --- | --- | --- |"
    hints, declared = get_type_hints(DeviceFacts), capabilities()
    for fact in fields(DeviceFacts):
        meaning = _IDENTITY.get(fact.name)
        if meaning is None:
            rules = ", ".join(f"[{r}](contract.md#{r.lower()})" for r in declared[fact.name].rules)
            meaning = f"{declared[fact.name].meaning} ({rules})"
        yield f"| `{fact.name}` | {_kind(hints[fact.name], fact.default)} | {meaning} |"


def _kind(kind: Any, default: Any) -> str:
    if get_origin(kind) is Literal:
        text = " or ".join(f"`{value}`" for value in get_args(kind))
    else:
        text = "array of strings" if get_origin(kind) is frozenset else _TYPES[kind]
    if default is MISSING:
        return text
    plain = sorted(default) if isinstance(default, frozenset) else default
    return f"{text}, optional, `{json.dumps(plain)}`"


if __name__ == "__main__":
    _PAGE = Path(sys.argv[1])
    _PAGE.write_text(filled(read_text(_PAGE)), encoding="utf-8")
