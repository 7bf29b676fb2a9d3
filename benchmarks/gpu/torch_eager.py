"""A prompt of 8B in bf16 beside PyTorch eager: ``python -m benchmarks.gpu.torch_eager``.

PyTorch computes the whole prompt as one batch: products, SDPA and ``rms_norm``, all in bf16, with
no cache, logits of the last token. The session is fed the same batch, and has the same shapes and
random weights of its own. Both take turns in one process; one line of JSON says tokens per second
of each, and ``ratio``, ours by PyTorch's, of the best of ``ROUNDS``.
"""

import argparse
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.gpu.running import model_of
from ggsched.ir.dtype import BF16
from ggsched_llm.hparams import HParams
from ggsched_llm.session import Session, SessionOptions
from tests.support.shapes import LLAMA_8B, SMALL, random_weights, spec_of

ROUNDS: Final = 5
MODELS: Final = {"llama-8b": LLAMA_8B, "small": SMALL}


def eager_step(hp: HParams, n_tokens: int, device: str) -> Callable[[], torch.Tensor]:
    """Return what computes the logits of the last of some tokens by PyTorch."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16) * 0.02

    n, width, inner = hp.n_embd, hp.head_dim, hp.n_ff
    heads, kept = hp.n_head * width, hp.n_head_kv * width
    shapes = {
        "q": (heads, n), "k": (kept, n), "v": (kept, n), "o": (n, heads),
        "gate": (inner, n), "up": (inner, n), "down": (n, inner),
    }  # fmt: skip
    layers = [{name: drawn(*shape) for name, shape in shapes.items()} for _ in range(hp.n_layer)]
    embedding, output = drawn(hp.n_vocab, n), drawn(hp.n_vocab, n)
    norms = [drawn(n) + 1 for _ in range(2 * hp.n_layer + 1)]
    tokens = torch.randint(0, hp.n_vocab, (n_tokens,), device=device)
    turns = torch.arange(0, width, 2, device=device).float() / width
    angles = torch.outer(torch.arange(n_tokens, device=device).float(), 5e5**-turns)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def rope(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def normed(x: torch.Tensor, i: int) -> torch.Tensor:
        return F.rms_norm(x, (n,), norms[i], 1e-5)

    def step() -> torch.Tensor:
        x = embedding[tokens]
        for i, w in enumerate(layers):
            h = normed(x, 2 * i)
            q, k, v = ((h @ w[m].T).view(n_tokens, -1, width).transpose(0, 1) for m in "qkv")
            y = F.scaled_dot_product_attention(
                rope(q)[None], rope(k)[None], v[None], is_causal=True, enable_gqa=True
            )[0]
            x = x + y.transpose(0, 1).reshape(n_tokens, heads) @ w["o"].T
            h = normed(x, 2 * i + 1)
            x = x + (F.silu(h @ w["gate"].T) * (h @ w["up"].T)) @ w["down"].T
        return normed(x[-1:], 2 * hp.n_layer) @ output.T

    return step


def main() -> int:
    """Measure both sides in turns."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.torch_eager", description=__doc__
    )
    parser.add_argument("--model", choices=sorted(MODELS), default="llama-8b")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--ubatch", type=int, help="tokens of a micro-batch; auto if not given")
    parser.add_argument("--device", default="cuda:0", help="of ggsched")
    parser.add_argument("--torch-device", default="cuda")
    asked = parser.parse_args()
    hp, count = MODELS[asked.model], asked.tokens
    spec = spec_of(hp, BF16)
    options = SessionOptions(n_ctx=count, n_batch=count, n_ubatch=asked.ubatch)
    tokens = np.random.default_rng(1).integers(0, hp.n_vocab, count).tolist()
    wait = torch.cuda.synchronize if asked.torch_device == "cuda" else (lambda: None)
    torch.set_grad_enabled(False)
    step = eager_step(hp, count, asked.torch_device)
    with (
        model_of(spec, random_weights(spec)) as model,
        Session(model, [asked.device], options) as session,
    ):

        def ours() -> None:
            session.reset()
            session.feed(tokens)

        def eager() -> None:
            step()
            wait()

        rates: dict[str, list[float]] = {"ggsched": [], "torch": []}
        for i in range(2 + ROUNDS):
            for name, run in (("ggsched", ours), ("torch", eager)):
                began = perf_counter()
                run()
                if i > 1:  # the first ones compile, and capture
                    rates[name].append(count / (perf_counter() - began))
        found: dict[str, Any] = {"model": f"{asked.model} bf16", "tokens": count}
        found |= {"n_ubatch": session.batches.step, "tokens_per_s": rates}
        found["ratio"] = max(rates["ggsched"]) / max(rates["torch"])
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
