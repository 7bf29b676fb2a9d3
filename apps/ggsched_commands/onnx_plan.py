"""``ggsched plan model.onnx``: the plan of an ONNX model."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from ggsched.cli.options import option
from ggsched.config import Settings
from ggsched_commands.onnx_options import CONSTANT, DIM, is_given, onnx_command, open_model
from ggsched_commands.plan_output import print_plan, save_plan, with_graph, write_dot

F = TypeVar("F", bound=Callable[..., Any])

_SHARED: Final = ("verbose", "output", "with_graph", "dot")
"""Options that mean the same for every model."""


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, value = text.partition("=")
    extents = value.split(",") if value else []
    if not (name and equals and all(n.isascii() and n.isdigit() for n in extents)):
        raise click.BadParameter(f"{text!r} is not of the form NAME=1,576")
    return name, tuple(map(int, extents))


SHAPE: Final = option(
    "--shape shapes",
    "The shape of an input of an ONNX model. May be repeated.",
    _shape,
    metavar="NAME=1,576",
    multiple=True,
)


def onnx_plan_options(function: F) -> F:
    """Add the options; a model whose name ends in ``.onnx`` is planned here."""
    return onnx_command(function, _plan, _SHARED, (SHAPE, DIM, CONSTANT))


def _plan(
    settings: Settings,
    given: dict[str, Any],
    *,
    constants: tuple[tuple[str, str], ...],
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    from ggsched.scheduler import Scheduler

    bound = open_model(given["model"], dims, constants).bind(shapes=dict(shapes))
    placement = given["placement"] if is_given("placement") else "cost"
    with Scheduler(
        given["devices"], weights=bound.weights, settings=settings, placement=placement
    ) as scheduler:
        made = scheduler.plan(bound.graph)
        planned = scheduler.planned_graph(bound.graph)
    if given["with_graph"]:
        made = with_graph(made, planned)
    if given["output"] is not None:
        save_plan(given["output"], made)
    if given["dot"] is not None:
        write_dot(made, given["dot"])
    print_plan(made, as_json=given["as_json"], verbose=given["verbose"])
