"""``ggsched demo``: a trained mixture-of-experts model that adds numbers, split over two devices.

A race or a wrong copy shows as a wrong sum, and the same prompts on one device must give the same
tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from ggsched.backend.registry import BackendStatus, discover
from ggsched.cli.console import columns, output, write_json
from ggsched.cli.options import device_names, json_option, option, settings_options
from ggsched.config import Settings
from ggsched.errors import InternalError
from ggsched.printable import write_out
from ggsched_commands.model_file import BUNDLED, bundled_model
from ggsched_commands.run_stats import measured_lines, session_stats, stats_line

if TYPE_CHECKING:
    from ggsched_llm.load import Model
    from ggsched_llm.session import Session

_SUMS: Final = ((417, 385), (7, 995), (123, 456), (999, 1), (640, 64), (88, 912))


@dataclass(frozen=True, slots=True)
class Sum:
    """One prompt and what came out on the split devices and on a single one."""

    prompt: str
    expected: str
    tokens: list[int]
    text: str
    single: list[int]

    @property
    def is_right(self) -> bool:
        """Whether the sum is right and both runs gave the same tokens."""
        return self.text == self.expected and self.tokens == self.single


@click.command()
@option(
    "--devices",
    "Devices to split over. [default: opencl:0,cpu:0, or two logical CPU devices]",
    device_names,
    metavar="NAME:N,...",
)
@json_option
@click.pass_obj
@settings_options("streams")
def demo(settings: Settings, devices: tuple[str, ...] | None, as_json: bool) -> int:
    """Split a small model over two devices; check its answers."""
    with bundled_model() as path:
        return _demo(str(path), settings, devices, as_json)


def _demo(path: str, settings: Settings, names: Sequence[str] | None, as_json: bool) -> int:
    from ggsched_llm.load import load_model

    model = load_model(path)
    chosen, missing = _choose(settings, names)
    options = _session_options(model, chosen)
    with _open(model, chosen, options, settings) as session:
        if not as_json:
            _introduce(session, chosen, missing)
        split_runs = [_answer(session, prompt) for prompt, _ in _prompts()]
        stats = session_stats(session)
    with _open(model, [chosen[-1]], None, settings) as session:
        single_runs = [_answer(session, prompt) for prompt, _ in _prompts()]
    sums = [
        Sum(prompt, expected, tokens, text, single)
        for (prompt, expected), (tokens, text), (single, _) in zip(
            _prompts(), split_runs, single_runs, strict=True
        )
    ]
    _write_sums(sums, chosen, stats, as_json)
    return 0 if all(s.is_right for s in sums) else 1


def _prompts() -> list[tuple[str, str]]:
    return [(f"{a}+{b}=", str(a + b)) for a, b in _SUMS]


def _choose(settings: Settings, names: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the devices to split over, and remarks on what is missing."""
    if names is not None:
        return list(names), []
    statuses = discover(allow=settings.backends)
    ready = [d.name for s in statuses for d in s.devices if d.state == "ready"]
    missing = [_remark(s) for s in statuses if s.state != "ready"]
    other = next((name for name in ready if not name.startswith("cpu")), "cpu:1")
    return [other, "cpu:0"], missing


def _remark(status: BackendStatus) -> str:
    hint = f" (try: {status.hint})" if status.hint else ""
    return f"{status.name} is {status.state}: {status.reason}{hint}"


def _session_options(model: "Model", devices: Sequence[str]) -> Any:
    """Put the first half of the blocks, and all experts of the last, on the last device."""
    import re

    from ggsched_llm.offload import Offload, OverrideRule
    from ggsched_llm.session import SessionOptions

    layers = model.hparams.n_layer
    blocks = "|".join(str(i) for i in range(layers // 2, layers))
    rules = (
        OverrideRule(re.compile(rf"^blk\.{layers - 1}\.ffn_.*_exps\."), devices[-1]),
        OverrideRule(re.compile(rf"^(blk\.({blocks})\.|output)"), devices[0]),
        OverrideRule(re.compile(r"^blk\.|^token_embd"), devices[-1]),
    )
    return SessionOptions(n_ctx=64, n_ubatch=4, offload=Offload(overrides=rules))


def _open(model: "Model", devices: Sequence[str], options: Any, settings: Settings) -> "Session":
    from ggsched_llm.session import Session, SessionOptions

    return Session(model, devices, options or SessionOptions(n_ctx=64), settings=settings)


def _answer(session: "Session", prompt: str) -> tuple[list[int], str]:
    tokenizer = session.model.tokenizer
    session.reset()
    tokens = list(session.generate(tokenizer.encode(prompt), 8, stop=tokenizer.stop_ids))
    return tokens, tokenizer.decode(tokens)


def _introduce(session: "Session", devices: Sequence[str], missing: Sequence[str]) -> None:
    from ggsched.plan.text import plan_text
    from ggsched.sanitize import check_plan

    plan = session.plan(1, 8)
    console = output()
    hp = session.model.hparams
    console.print(
        f"model     {BUNDLED}: {hp.arch}, {hp.n_layer} blocks, {hp.n_expert} experts, "
        f"{hp.n_expert_used} used"
    )
    console.print(f"devices   {', '.join(devices)}")
    for remark in missing:
        console.print(f"          {remark}")
    console.print("\nThe plan of one decoding step:\n")
    write_out(plan_text(plan, width=columns()) + "\n")
    report = check_plan(plan)
    if not report.is_clean:
        raise InternalError("the sanitizer found a defect in the plan", where=plan.name)
    console.print(f"\nsanitizer {len(plan.commands)} commands, 3 runs in a row: no findings\n")


def _write_sums(
    sums: Sequence[Sum], devices: Sequence[str], stats: dict[str, Any], as_json: bool
) -> None:
    is_same = all(s.tokens == s.single for s in sums)
    is_right = all(s.text == s.expected for s in sums)
    if as_json:
        rows = [
            {
                "prompt": s.prompt,
                "text": s.text,
                "tokens": s.tokens,
                "single_device_tokens": s.single,
                "expected": s.expected,
            }
            for s in sums
        ]
        verdict = {"same": is_same, "right": is_right}
        write_json({"devices": list(devices), "sums": rows, **verdict, "stats": stats})
        return
    console = output()
    for s in sums:
        mark = "ok" if s.is_right else f"WRONG, expected {s.expected}"
        tokens = " ".join(str(t) for t in s.tokens)
        console.print(f"{s.prompt:>9}{s.text:<5} tokens {tokens:<12} {mark}")
    both = f"on {' + '.join(devices)} and on {devices[-1]} alone"
    console.print(f"\nThe tokens are {'the same' if is_same else 'NOT THE SAME'} {both}.")
    for line in (stats_line(stats), *measured_lines(stats)):
        console.print(line)
