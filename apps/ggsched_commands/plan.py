"""``ggsched plan``: make the plan of a model's micro-batch, without running or loading it."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ggsched.cli.console import messages, write_folded
from ggsched.cli.options import PLANNING, at_least, json_option, option, settings_options
from ggsched.cli.topology_file import topology_option, written_devices
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched_commands.help_groups import GroupedCommand
from ggsched_commands.model_options import draft_options, model_options, open_session
from ggsched_commands.onnx_plan import onnx_plan_options
from ggsched_commands.plan_explain import explain_option, print_explanation
from ggsched_commands.plan_memory import memory_options, print_memory
from ggsched_commands.plan_output import no_files, print_plan, save_plan, write_dot, write_plan_page
from ggsched_commands.plan_output import with_graph as graph_included
from ggsched_llm.default_devices import GENERATED

if TYPE_CHECKING:
    from ggsched_llm.session import Session


@click.command(cls=GroupedCommand)
@model_options
@option("--n-tokens", "Tokens of the micro-batch; 1 is a decoding step.", at_least(1), 1)
@option("--n-past", "Tokens that are in the cache already.", at_least(0), 0)
@click.option("-v", "--verbose", is_flag=True, help="List every command and every tensor's home.")
@option(
    "-o --output",
    "Write the plan's JSON form to a file.",
    click.Path(dir_okay=False, writable=True),
    metavar="FILE.json",
)
@click.option(
    "--with-graph",
    is_flag=True,
    help="Let the plan's JSON form carry its graph, so that 'ggsched check' compares them.",
)
@option(
    "--html",
    "Write a page: the timeline that is expected, memory, splits.",
    click.Path(dir_okay=False, writable=True),
    metavar="FILE",
)
@option(
    "--dot",
    "Write commands, waits and hazards in the DOT language of Graphviz, 500 commands at most.",
    click.Path(dir_okay=False, writable=True),
    metavar="FILE",
)
@topology_option
@explain_option
@memory_options
@draft_options
@json_option
@click.pass_obj
@settings_options(*PLANNING)
@onnx_plan_options
def plan(
    settings: Settings,
    /,
    n_tokens: int,
    n_past: int,
    verbose: bool,
    output: str | None,
    with_graph: bool,
    html: str | None,
    dot: str | None,
    topology: str | None,
    explain: str | None,
    memory: bool,
    prompt_tokens: int | None,
    n_predict: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the plan of MODEL: placement, memory, commands, waits.

    It is that of one micro-batch.
    """
    no_files(
        {"--memory": memory, "--explain": explain}, {"-o": output, "--html": html, "--dot": dot}
    )
    if settings.streams == "autotune":
        settings = replace(settings, streams="auto")  # only runs can be measured
    if memory:
        settings = replace(settings, verify=False, sanitize="off")  # nothing is going to run
    devices = written_devices(topology, options["devices"])
    expected = (prompt_tokens, n_predict) if memory else (n_tokens, 0)
    with open_session(options, settings, devices=devices, expected=_expected(*expected)) as session:
        if session.default_devices is not None and not as_json:
            messages().print(session.default_devices.reason(), soft_wrap=False)
        if memory:
            print_memory(session, prompt_tokens, n_predict, as_json=as_json)
            return
        if n_past + n_tokens > session.options.n_ctx:
            raise UsageError(
                f"{n_past} + {n_tokens} tokens do not fit the context",
                why=f"it holds {session.options.n_ctx}",
                hint="use a larger -c",
            )
        if explain is not None:
            print_explanation(session, explain, n_tokens, n_past, as_json=as_json)
            return
        graph = session.graph(n_tokens, n_past, 1)
        made = session.plan_of(graph)
        if with_graph:
            planned = session.scheduler.planned_graph(graph, session.constraints)
            made = graph_included(made, planned)
        if output is not None:
            save_plan(output, made)
        if html is not None:
            write_plan_page(session, n_tokens, n_past, html)
        if dot is not None:
            write_dot(made, dot)
        print_plan(made, as_json=as_json, verbose=verbose)
        if verbose and not as_json:
            _print_homes(session)


def _expected(prompt: int | None, answer: int) -> Callable[[object], tuple[int, int]] | None:
    """Return what returns the tokens that devices are chosen for; None for those of a run."""
    if prompt is None or prompt + answer <= 1:
        return None
    return lambda _model: (prompt, answer if answer >= 0 else GENERATED)


def _print_homes(session: "Session") -> None:
    names = [d.name for d in session.scheduler.topology.devices]
    for name, device in session.homes.devices.items():
        reason = session.homes.reasons[name]
        write_folded(f"home  {names[device]:<10} {name:<32} {reason}", indent=6)
