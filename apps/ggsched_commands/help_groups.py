"""Commands with many options: their help is in groups, each with a heading."""

from collections.abc import Mapping
from typing import Any, Final

import click

from ggsched.cli.output_files import refuse_overwriting
from ggsched.cli.spelling import Foreign
from ggsched_commands.llama_cpp import llama_cpp_options

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Model": ("model_option", "metadata", "weights", "cache_type_k", "cache_type_v"),
    "Prompt and text": (
        "prompt", "prompt_file", "escapes", "text_file", "tokens", "n_predict", "chat",
        "single_turn", "system", "parse_special", "stops", "ignores_end", "shifts", "keep",
        "prompts", "generations", "pairs", "depths", "parallels", "repetitions",
    ),
    "Sampling": (
        "temperature", "seed", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n",
    ),
    "ONNX models": ("inputs", "shapes", "constants", "dims"),
    "Devices, and what lives where": (
        "devices", "n_gpu_layers", "n_cpu_moe", "cpu_moe", "overrides", "tensor_split",
        "split_mode", "tensor_group", "split_by", "placement", "fit", "fit_margin",
        "memory_budget", "op_offload", "expert_staging_buffers", "expert_cache",
    ),
    "Sizes": ("n_ctx", "n_batch", "n_ubatch", "n_tokens", "n_past", "prompt_tokens"),
    "Threads, streams and pipelines": (
        "threads", "activations", "streams", "pipelining", "pipeline_buffers", "packing_effort",
    ),
    "Checks": ("verify", "checks_memory", "retries"),
    "Output": (
        "output", "form", "compare", "as_json", "logits", "trace", "html", "report", "verbose",
        "explain", "memory", "with_graph", "dot", "topology",
    ),
}  # fmt: skip
"""Parameters of options by heading. What is in none stands below the others."""


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
        rest = {p.name: p for p in self.get_params(ctx) if isinstance(p, click.Option)}
        for heading, names in GROUPS.items():
            rows = [rest.pop(name).get_help_record(ctx) for name in names if name in rest]
            _section(formatter, heading, rows)
        _section(formatter, "Other options", [p.get_help_record(ctx) for p in rest.values()])


def _section(
    formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str] | None]
) -> None:
    shown = [row for row in rows if row is not None]
    if shown:
        with formatter.section(heading):
            formatter.write_dl(shown)
