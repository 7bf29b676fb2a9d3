"""The JSON form of a plan, documented in ``docs/reference/plan-format.md``.

The encoding is deterministic: two equal plans give the same bytes.
"""

import json
from typing import Any, Final

import msgspec

from ggsched.collector import collector_paused
from ggsched.errors import GgschedError, PlanError
from ggsched.ir.ops import OPS
from ggsched.plan.bundle import FORMAT, Plan


class _Head(msgspec.Struct, frozen=True):
    """The one field that is read before the others are understood."""

    format: str


_PLAN: Final = msgspec.json.Decoder(Plan)
"""Made once: msgspec is not safe against threads that meet a type for the first time."""


@collector_paused()
def plan_to_json(plan: Plan) -> bytes:
    """Return the plan as JSON."""
    plain = msgspec.to_builtins(plan, str_keys=True, order="deterministic")
    return msgspec.json.encode(plain)


@collector_paused()
def plan_from_json(data: bytes | str) -> Plan:
    """Read a plan back.

    Types, tags and required fields are checked here. The checker
    (``ggsched.sanitize``) checks what ids mean.

    Raises:
        PlanError: not JSON, not a plan, or a plan of another format.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise PlanError(
                f"format {head.format!r} instead of {FORMAT!r}",
                where="plan",
                hint="make the plan again with this version of ggsched",
            )
        plan = _PLAN.decode(data)
        _check_user_ops(plan)
        return plan
    except PlanError:
        raise
    except GgschedError as error:  # facts of a device that contradict themselves
        raise PlanError("not a plan", where="plan", why=error.one_line()) from error
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
        raise PlanError("not a plan", where="plan", why=_one_line(error)) from error


def _check_user_ops(plan: Plan) -> None:
    """Refuse user-defined ops that this process does not have in the plan's version."""
    for op, version in sorted({(n.op, n.version) for n in plan.nodes if n.version}):
        registered = OPS[op].version if op in OPS else ""
        if registered != version:
            found = (
                f"version {registered!r} is registered" if registered else "it is not registered"
            )
            raise PlanError(
                f"the plan contains the op {op!r}, version {version!r}",
                where="plan",
                why=found,
                hint="import the module that registers it, e.g. by GGSCHED_OPS=module",
            )


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of the format, as in ``docs/reference/plan.schema.json``."""
    (root,), components = msgspec.json.schema_components([Plan])
    definitions = {name: _plain(schema) for name, schema in sorted(components.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FORMAT,
        **root,
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the JSON Schema as it stands in the documentation."""
    return json.dumps(plan_schema(), indent=1) + "\n"


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Keep of a docstring its first sentence: the rest is for readers of the source."""
    text = schema.get("description")
    if text is None:
        return schema
    return {**schema, "description": " ".join(text.split("\n\n")[0].split())}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
