"""``python -m benchmarks.torch_models [--precision f32,tf32,bf16] [--compile] [MODEL:BATCH ...]``.

Models of torchvision and transformers with random weights through ``torch.export``, beside PyTorch
of the same precision on the first GPU, or on the CPU where there is none. PyTorch has its defaults:
channels first, ``cudnn.benchmark`` off. In bf16 both sides get a module of bfloat16, and PyTorch
inputs of bfloat16, which are half as long. Written are the median of 20 runs by turns, from inputs
on the host to all results on the host, and the largest distance of the first result from that in
float64, of its largest. ``--jobs`` processes prepare models at the same time; then each of them
measures alone.
"""

import argparse
import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import numpy as np
import torch

import ggsched

WARM, ROUNDS = 4, 20
TOKENS: Final = 128
PLACE: Final = "cuda" if torch.cuda.is_available() else "cpu"

Given = dict[str, Any]
Call = Callable[[], Any]


def main() -> int:
    """Measure and print a row for each model and precision."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_models", description=__doc__)
    every = [f"{name}:{batch}" for name in MODELS for batch in (1, 16)]
    parser.add_argument("models", nargs="*", default=every, metavar="MODEL:BATCH")
    parser.add_argument(
        "--devices", default="cuda:0", help="each of them alone; with commas between"
    )
    parser.add_argument("--precision", default="f32", help="f32, tf32 or bf16; with commas between")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside eager")
    parser.add_argument("--jobs", type=int, default=1, help="models that are prepared at once")
    parser.add_argument("--waits", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jobs > 1:
        return _by_processes(options)
    for entry in options.models:
        rows = _prepared(entry, options)
        if options.waits:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.readline()
        for row in rows:
            sys.stdout.write(f"{row()}\n")
            sys.stdout.flush()
    return 0


def _by_processes(options: argparse.Namespace) -> int:
    """Let a process of its own measure each model; return how many of them failed."""
    command = [sys.executable, "-m", "benchmarks.torch_models", "--waits"]
    command += ["--devices", options.devices, "--precision", options.precision]
    command += ["--compile"] if options.compile else []
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    failed = 0
    for at in range(0, len(options.models), options.jobs):
        group = options.models[at : at + options.jobs]
        children = [subprocess.Popen([*command, entry], **pipes) for entry in group]
        for child in children:
            assert child.stdout is not None  # a pipe
            while (line := child.stdout.readline()) and line != "ready\n":
                sys.stdout.write(line)
        for child in children:
            sys.stdout.write(child.communicate("\n")[0])
            sys.stdout.flush()
            failed += child.returncode != 0
    return failed


def _prepared(entry: str, options: argparse.Namespace) -> list[Callable[[], str]]:
    """Return what measures a model, for each precision; all is compiled and has run."""
    name, _, batch = entry.partition(":")
    torch.manual_seed(0)
    model, given = MODELS[name](int(batch or 1))
    model.eval()
    graphs: dict[Any, Any] = {}
    rows = []
    with torch.no_grad():
        exact = _host(copy.deepcopy(model).to(PLACE).double()(**_moved(given, torch.float64)))
        for precision in options.precision.split(","):
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            module = copy.deepcopy(model).to(dtype)
            if dtype not in graphs:
                graphs[dtype] = _exported(module, _cast(given, dtype))
            sides = _sides(module, graphs[dtype], given, precision, options)
            rows.append(_row(f"{entry} {precision}", precision, sides, exact[0].numpy()))
    return rows


def _exported(module: Any, given: Given) -> Any:
    """Return the model as a graph, or why there is none."""
    try:
        return ggsched.from_torch(torch.export.export(module, (), given))
    except (ggsched.GgschedError, RuntimeError) as error:
        return " ".join(f"refused: {error}".split())


def _sides(
    module: Any, graph: Any, given: Given, precision: str, options: argparse.Namespace
) -> dict[str, Call]:
    """Return what each side calls, by its name; a side without a graph gives the reason."""
    _set(precision)
    sides: dict[str, Call] = {}
    arrays = {name: value.numpy() for name, value in given.items()}
    for device in options.devices.split(","):
        if isinstance(graph, str):
            sides[device] = lambda: graph
            continue
        scheduler = ggsched.Scheduler([device], weights=graph.weight)
        sides[device] = lambda on=scheduler: list(graph.run(on, arrays).values())
    there, inputs = module.to(PLACE), _cast(given, next(module.parameters()).dtype)
    sides["PyTorch"] = lambda: _host(there(**_moved(inputs)))
    if options.compile:
        # Otherwise a second batch of a model is compiled for any batch, which is slower.
        fast = torch.compile(there, mode="reduce-overhead", dynamic=False)
        sides["compiled"] = lambda: _host(fast(**_moved(inputs)))
    for side in sides.values():
        for _ in range(WARM):
            side()
    return sides


def _row(label: str, precision: str, sides: dict[str, Call], exact: Any) -> Callable[[], str]:
    """Return what measures the sides."""

    @torch.no_grad()
    def measured() -> str:
        _set(precision)
        results = {name: side() for name, side in sides.items()}
        refused = {name for name, found in results.items() if isinstance(found, str)}
        took = _ms({name: side for name, side in sides.items() if name not in refused})
        texts = []
        for name, found in results.items():
            if name in refused:
                texts.append(f"{name} {found}")
                continue
            first = found[0].double().numpy() if torch.is_tensor(found[0]) else found[0]
            off = np.abs(first - exact).max() / np.abs(exact).max()
            texts.append(f"{name} {took[name]:.2f} ms, off by {off:.1e}")
        return f"{label}: {'; '.join(texts)}"

    return measured


def _set(precision: str) -> None:
    os.environ["GGSCHED_PRECISION"] = precision
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _cast(given: Given, dtype: Any) -> Given:
    """Return inputs whose floating-point ones have a type."""
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in given.items()
    }


def _moved(given: Given, dtype: Any = None) -> Given:
    """Return inputs where PyTorch computes."""
    cast = given if dtype is None else _cast(given, dtype)
    return {name: value.to(PLACE) for name, value in cast.items()}


def _host(result: Any) -> list[Any]:
    """Return all results on the host."""
    if isinstance(result, torch.Tensor):
        return [result.cpu()]
    each = result.values() if hasattr(result, "values") else result or ()
    return [found for value in each for found in _host(value)]


def _ms(calls: dict[str, Call]) -> dict[str, float]:
    """Return the median time of each call, by turns; their results are on the host then."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: 1e3 * median(each) for name, each in seconds.items()}


# --- models -----------------------------------------------------------------------------------


def _vision(name: str) -> Callable[[int], tuple[Any, Given]]:
    def made(batch: int) -> tuple[Any, Given]:
        import torchvision

        return getattr(torchvision.models, name)(weights=None), {
            "x": torch.randn(batch, 3, 224, 224)
        }

    return made


def _bert(batch: int) -> tuple[Any, Given]:
    import transformers

    ids = torch.randint(0, 30_000, (batch, TOKENS))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return transformers.BertModel(transformers.BertConfig()), given


def _gpt2(batch: int) -> tuple[Any, Given]:
    import transformers

    config = transformers.GPT2Config(use_cache=False)
    return transformers.GPT2LMHeadModel(config), {
        "input_ids": torch.randint(0, config.vocab_size, (batch, TOKENS))
    }


def _whisper(batch: int) -> tuple[Any, Given]:
    import transformers

    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, use_cache=False,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(batch, 80, 3000),
        "decoder_input_ids": torch.randint(0, config.vocab_size, (batch, 8)),
    }


MODELS: Final[dict[str, Callable[[int], tuple[Any, Given]]]] = {
    **{name: _vision(name) for name in (
        "resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "vit_b_16")},
    "bert": _bert,
    "gpt2": _gpt2,
    "whisper_tiny": _whisper,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
