"""``ggsched plan --explain``: why a node or a tensor is where it is."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from ggsched.cli.console import output, write_json
from ggsched.cli.options import option
from ggsched.ir.graph import Node
from ggsched.ir.tensor import Role
from ggsched.units import nbytes_text, seconds_text

if TYPE_CHECKING:
    from ggsched_llm.session import Session

explain_option = option(
    "--explain",
    "Say why it is where it is and what it would cost elsewhere: n12, t7, a node's label, or "
    "the name of a weight, a cache or an input.",
    metavar="NODE|TENSOR",
)


def print_explanation(
    session: "Session", name: str, n_tokens: int, n_past: int, *, as_json: bool
) -> None:
    """Explain a node or a tensor of the plan of a micro-batch.

    Raises:
        UsageError: there is none of that name.
    """
    data = explanation(session, name, n_tokens, n_past)
    if as_json:
        write_json(data)
        return
    for line in _lines(data):
        output().print(line)


def explanation(session: "Session", name: str, n_tokens: int, n_past: int) -> dict[str, Any]:
    """Return what is known as plain JSON data; seconds and bytes.

    Raises:
        UsageError: there is none of that name.
    """
    from ggsched.plan.text import gain_text
    from ggsched_commands.explain import explain_home, explain_node, find_subject
    from ggsched_commands.tensor_locations import places_of

    wanted, scheduler = session.constraints, session.scheduler
    planned = scheduler.planned(session.graph(n_tokens, n_past, 1), wanted)
    graph, constraints = planned.graph, planned.constraints
    subject = find_subject(graph, name)
    plan = scheduler.plan(graph, constraints)

    def replan(other: Any) -> Any:
        if planned.origin:  # what is moved is the op of which the node is a part
            pins = {planned.origin[node]: device for node, device in other.pins.items()}
            other = replace(other, pins=pins, placed=None)
        moved = scheduler.planned(planned.before, other)
        return moved.graph, scheduler.draft(moved.graph, moved.constraints)

    if isinstance(subject, Node):
        reasons = explain_node(graph, plan, subject, constraints, session.rates, replan)
        data = asdict(reasons)
        data["reason"] = _rule(session, reasons.cause, reasons.detail)
        data["candidates"] = to_builtins(reasons.candidates)
        data["result"] = _places(places_of(plan, graph.tensors[subject.output].storage))
        data["no_alternative"] = _no_alternative(session, plan)
        parts = plan.splits.splits
        data["streams"] = next(
            (
                gain_text(gain)
                for gain in plan.streams.gains
                if parts[gain.split].first <= subject.id < parts[gain.split].end
            ),
            "",
        )
        return data
    root = graph.tensors[subject.storage]
    now, others = explain_home(graph, plan, root, constraints, session.rates, replan)
    home = plan.placement.homes.get(root.id)
    return {
        "tensor": root.name or name,
        "role": root.role.value,
        "dtype": root.dtype.name,
        "shape": list(root.shape),
        "nbytes": root.nbytes,
        "home": None if home is None else plan.devices[home].name,
        "reason": session.homes.reasons.get(root.name, _made_by(plan, graph, root.id)),
        "places": _places(places_of(plan, root.id)),
        "step_s": now,
        "alternatives": [asdict(other) for other in others],
        "no_alternative": _no_alternative(session, plan, is_input=root.role is Role.INPUT),
        "rates": session.rates.source,
        "candidates": to_builtins(plan.placement.candidates),
    }


def _no_alternative(session: "Session", plan: Any, *, is_input: bool = False) -> str:
    """Return why there are no alternatives, or "" if there are."""
    if is_input:
        return "an input is set by the host, and has no home of its own"
    if len(plan.devices) > 1:
        return ""
    only = f"{plan.devices[0].name} is the only device in use"
    chosen = session.default_devices
    others = [c.name for c in chosen.candidates if c.name not in chosen.names] if chosen else []
    if not others:
        return only
    return f"{only}; chosen among others, see above: --devices {plan.devices[0].name},{others[0]}"


def _rule(session: "Session", cause: str, detail: str) -> str:
    """Return the rule in words, with the reason for the tensor that it went by."""
    why = session.homes.reasons.get(detail, "")
    words = {
        "pin": "it is pinned",
        "weights": f"it reads {detail}",
        "owner": f"it writes {detail}",
        "expand-down": f"it follows {detail}, which is there",
        "expand-up": f"it comes before {detail}, which is there",
        "upgrade": f"{detail}",
        "cost": f"the least predicted time of the whole graph ({detail})",
        "decomposed": f"it is a part of {detail}",
        "fill": "nothing else decides, and this is the first device that can",
    }
    text = words.get(cause, f"{cause} {detail}".strip())
    return f"{text}: {why}" if why else text


def _made_by(plan: Any, graph: Any, storage: int) -> str:
    for node, choice in zip(graph.nodes, plan.placement.choices, strict=True):
        if graph.tensors[node.output].storage == storage:
            return f"made by {graph.label(node)} ({choice.cause})"
    return "set by the host before each run"


def _places(places: Iterable[Any]) -> list[dict[str, Any]]:
    return [{**asdict(place), "shared_with": list(place.shared_with)} for place in places]


def _lines(data: dict[str, Any]) -> Iterator[str]:
    if "node" in data:
        yield f"{data['node']} runs on {data['device']}: {data['reason']}"
        own, step = seconds_text(data["seconds"]), seconds_text(data["step_s"])
        yield f"it takes {own} of a step of {step} there"
        yield from [f"streams there: {data['streams']}"] if data["streams"] else ()
    else:
        shape = ", ".join(map(str, data["shape"]))
        where = f"lives on {data['home']}" if data["home"] else "lives in host memory"
        yield f"{data['role']} {data['tensor']} ({shape}) {data['dtype']}, {data['nbytes']:,} bytes"
        yield f"{where}: {data['reason']}"
    places = data.get("places", data.get("result", []))
    yield "its bytes" if "node" not in data else "its result"
    for place in places:
        life = f"{place['first']} to {place['last']}" if place["first"] != "always" else "always"
        yield f"  {place['value']} {place['kind']} on {place['device']} {place['region']}, {life}"
        if place["shared_with"]:
            yield f"    shares bytes with {_some(place['shared_with'])}"
    yield f"elsewhere (by {data['rates']})"
    for other in data["alternatives"]:
        yield _alternative(other)
    if data["no_alternative"]:
        yield f"  {data['no_alternative']}"
    if data["candidates"]:
        yield "placements of the whole graph that were compared"
    for found in data["candidates"]:
        yield _candidate(found)


def _alternative(other: dict[str, Any]) -> str:
    if other["step_s"] is None:
        return f"  {other['device']}: not possible: {other['reason']}"
    pace = "slower" if other["step_s"] >= 0 else "faster"
    return (
        f"  {other['device']}: a step {seconds_text(abs(other['step_s']))} {pace}, "
        f"{_more(other['copied'])} copied, {_more(other['arenas'])} of arenas"
    )


def _candidate(found: dict[str, Any]) -> str:
    took = found["reason"] if found["seconds"] is None else seconds_text(found["seconds"])
    lacks = f", lacks {nbytes_text(found['shortage_nbytes'])}" if found["shortage_nbytes"] else ""
    return f"  {found['name']}: {took}{lacks}{' (taken)' if found['is_taken'] else ''}"


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _more(nbytes: int) -> str:
    return f"{'+' if nbytes >= 0 else '-'}{nbytes_text(abs(nbytes))}"
