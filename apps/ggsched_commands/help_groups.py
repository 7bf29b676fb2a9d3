"""Commands with many options: their help is in groups, each with a heading."""

from collections.abc import Mapping
from typing import Any, Final

import click

from ggsched.cli.output_files import refuse_overwriting
from ggsched.cli.spelling import Foreign
from ggsched.flags import HOMES, PIPELINES
from ggsched_commands.llama_cpp import llama_cpp_options
from ggsched_llm.draft_options import SPECULATION

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Model": ("model_option", "metadata", "weights", "cache_type_k", "cache_type_v"),
    "Prompt and text": (
        "prompt", "prompt_file", "escapes", "text_file", "tokens", "n_predict", "chat",
        "single_turn", "system", "parse_special", "stops", "ignores_end", "shifts", "keep",
        "prompts", "generations", "pairs", "depths", "parallels", "repetitions",
    ),
    "Sampling": (),
    SPECULATION: (),
    "ONNX models": ("inputs", "shapes", "constants", "dims"),
    HOMES: ("devices",),
    "Sizes": ("n_tokens", "n_past", "prompt_tokens"),
    PIPELINES: (),
    "Checks": ("verify", "checks_memory", "retries"),
    "Output": (
        "output", "form", "compare", "as_json", "logits", "trace", "html", "report", "verbose",
        "explain", "memory", "with_graph", "dot", "topology",
    ),
}  # fmt: skip
"""Parameters of options by heading, besides those of fields, which say their heading themselves.

What has no heading stands below the others."""


class GroupedCommand(click.Command):
    """A command whose ``--help`` lists its options under the headings of ``GROUPS``.

    No two of the files that it writes are the same, and none is one that it reads.
    """

    def foreign_options(self) -> Mapping[str, Foreign]:
        """Return the options of llama.cpp."""
        return llama_cpp_options()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            UsageError: a file would be written over.
        """
        refuse_overwriting(ctx)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        for heading, names in GROUPS.items():
            own = [p for name in names for p in options if p.name == name]
            own += [p for p in options if getattr(p, "heading", "") == heading]
            options = [p for p in options if p not in own]
            _section(formatter, heading, [p.get_help_record(ctx) for p in own])
        _section(formatter, "Other options", [p.get_help_record(ctx) for p in options])


def _section(
    formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str] | None]
) -> None:
    shown = [row for row in rows if row is not None]
    if shown:
        with formatter.section(heading):
            formatter.write_dl(shown)
