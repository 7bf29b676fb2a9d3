"""Train a small mixture-of-experts transformer to add, and write it as a GGUF file.

The model reads ``417+385=`` one character at a time and answers ``802<|end|>``. It has the
architecture ``qwen3moe`` of llama.cpp: RMSNorm, grouped-query attention with a norm on each head
of q and k, RoPE on the pairs (i, i + head_dim / 2), and SwiGLU experts of which a router picks two
for each token.

    python train.py --out addition-moe.gguf        # train, write, check
    python train.py --check addition-moe.gguf      # only check

``--check`` reads the file and adds with a forward pass in numpy of its own. It needs no torch.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGUFReader, GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "qwen3moe"
LIMIT = 1000  # operands are 0 .. LIMIT - 1
CHARACTERS = "0123456789+="
END = len(CHARACTERS)  # the id of <|end|>
WIDTH = len("999+999=1998") + 1  # the longest equation with its end token
# A byte-pair vocabulary must have merges of known tokens. The halves of this one never arise.
MERGES = ["<| end|>"]
VOCABULARY = [*CHARACTERS, "<|end|>", "<|", "end|>", "[UNUSED15]"]
# The tensors of a block with their axes, slowest first: d embedding, q query, k key, h one head,
# e expert, f hidden width of an expert.
BLOCK = (
    "attn_norm d, attn_q q d, attn_k k d, attn_v k d, attn_output d q, attn_q_norm h, attn_k_norm h"
    ", ffn_norm d, ffn_gate_inp e d, ffn_gate_exps e f d, ffn_up_exps e f d, ffn_down_exps e d f"
)

Bools = NDArray[np.bool_]
Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


def is_held_out(a: int, b: int) -> bool:
    """Whether a + b belongs to the 2 % of all sums that are never trained on.

    The order of the operands does not matter: if 417+385 is held out, so is 385+417.
    """
    x = min(a, b) * 1000 + max(a, b) + 1
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return (x ^ (x >> 16)) % 50 == 0


def held_out_table() -> Bools:
    """``is_held_out`` for every pair, as a LIMIT x LIMIT table."""
    table = np.zeros((LIMIT, LIMIT), dtype=bool)
    for a in range(LIMIT):
        for b in range(a, LIMIT):
            table[a, b] = table[b, a] = is_held_out(a, b)
    return table


def held_out_sample(count: int, seed: int = 2026) -> list[tuple[int, int]]:
    """The test set: ``count`` different held-out pairs, drawn uniformly."""
    pairs = np.argwhere(held_out_table())
    chosen = np.random.default_rng(seed).choice(len(pairs), size=count, replace=False)
    return [(int(a), int(b)) for a, b in pairs[chosen]]


def training_pairs(rng: np.random.Generator, count: int, held_out: Bools) -> Ids:
    """``count`` pairs, none held out: half uniform, a quarter short numbers, a quarter carries.

    Carries are hard because the first digit is said first: it depends on the units whenever the
    tens add up to 9. Short numbers are rare among uniform pairs.
    """
    drawn = count + count // 8  # some to spare for those that are held out
    a, b = rng.integers(0, LIMIT, size=(2, drawn))
    kind = rng.integers(0, 4, size=drawn)
    short = kind == 0
    a[short] //= 10 ** rng.integers(0, 3, size=short.sum())
    b[short] //= 10 ** rng.integers(0, 3, size=short.sum())
    b = np.where(kind == 1, b // 100 * 100 + (9 - a // 10 % 10) * 10 + b % 10, b)
    hundreds = (kind == 1) & (rng.random(drawn) < 0.5)
    b = np.where(hundreds, (9 - a // 100) * 100 + b % 100, b)
    return np.asarray(np.stack([a, b], axis=1)[~held_out[a, b]][:count])


def encode(pairs: Ids) -> tuple[Ids, Bools]:
    """Equations as rows of tokens, filled up with <|end|>, and which of the tokens 1.. to learn."""
    text = "".join(f"{a}+{b}={a + b}".ljust(WIDTH, "E") for a, b in pairs)
    ids = np.full(256, END, dtype=np.int64)
    ids[np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)] = np.arange(len(CHARACTERS))
    rows = ids[np.frombuffer(text.encode(), dtype=np.uint8)].reshape(len(pairs), WIDTH)
    known = rows[:, :-1]
    return rows, ((known == CHARACTERS.index("=")).cumsum(axis=1) > 0) & (known != END)


@dataclass(frozen=True)
class Shape:
    """The numbers that make up a model; all of them stand in the file's metadata."""

    embedding: int = 64
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    experts: int = 8
    used: int = 2
    expert_width: int = 64
    context: int = 64
    rope_base: float = 100.0
    epsilon: float = 1e-6

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor's name and its shape, slowest axis first."""
        size = {"e": self.experts, "f": self.expert_width, "d": self.embedding, "h": self.head_dim}
        size |= {"q": self.heads * self.head_dim, "k": self.kv_heads * self.head_dim}
        yield "token_embd.weight", (len(VOCABULARY), self.embedding)
        for layer in range(self.layers):
            for entry in BLOCK.split(","):
                name, *axes = entry.split()
                yield f"blk.{layer}.{name}.weight", tuple(size[axis] for axis in axes)
        yield "output_norm.weight", (self.embedding,)
        yield "output.weight", (len(VOCABULARY), self.embedding)


def initial_weights(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Norms of one, matrices of variance 1 / fan_in, less for what adds to the residual."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in shape.tensors():
        value = torch.ones(size)
        if not name.endswith("norm.weight"):
            last = 2 * shape.layers if "attn_output" in name or "ffn_down" in name else 1
            value = torch.randn(size, generator=generator) / math.sqrt(size[-1] * last)
        weights[name] = value.requires_grad_()
    return weights


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def rotate(x: Tensor, base: float) -> Tensor:
    """RoPE on x of (batch, heads, position, head_dim); positions count from 0."""
    import torch

    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attention(weights: dict[str, Tensor], block: str, x: Tensor, shape: Shape) -> Tensor:
    import torch

    def heads(kind: str) -> Tensor:
        y = x @ weights[f"{block}attn_{kind}.weight"].T
        return y.view(len(x), x.shape[1], -1, shape.head_dim).transpose(1, 2)

    q, k, v = heads("q"), heads("k"), heads("v")
    q = rotate(rms_norm(q, weights[block + "attn_q_norm.weight"], shape.epsilon), shape.rope_base)
    k = rotate(rms_norm(k, weights[block + "attn_k_norm.weight"], shape.epsilon), shape.rope_base)
    group = shape.heads // shape.kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    score = (q @ k.mT / math.sqrt(shape.head_dim)).masked_fill(later, -math.inf)
    y = score.softmax(-1) @ v
    return y.transpose(1, 2).flatten(-2) @ weights[block + "attn_output.weight"].T


def experts(weights: dict[str, Tensor], block: str, x: Tensor, used: int) -> tuple[Tensor, Tensor]:
    """The routed experts on x of (batch, position, embedding), and the load-balancing loss.

    All experts are computed and those not chosen count 0, which is what leaving them out gives.
    The loss is 1 when all experts are chosen equally often, and more otherwise.
    """
    import torch

    odds = (x @ weights[block + "ffn_gate_inp.weight"].T).softmax(-1)
    best, chosen = odds.topk(used, dim=-1)
    share = torch.zeros_like(odds).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
    gate = x @ weights[block + "ffn_gate_exps.weight"].flatten(0, 1).T
    up = x @ weights[block + "ffn_up_exps.weight"].flatten(0, 1).T
    hidden = (torch.nn.functional.silu(gate) * up).view(*odds.shape, -1) * share[..., None]
    down = weights[block + "ffn_down_exps.weight"].transpose(0, 1).flatten(1)
    load = (share > 0).float().mean((0, 1)) / used
    return hidden.flatten(-2) @ down.T, odds.shape[-1] * (load * odds.mean((0, 1))).sum()


def forward(weights: dict[str, Tensor], tokens: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Logits of every position, and the mean load-balancing loss of the layers."""
    x = weights["token_embd.weight"][tokens]
    balance = x.new_zeros(())
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        y = rms_norm(x, weights[block + "attn_norm.weight"], shape.epsilon)
        x = x + attention(weights, block, y, shape)
        y = rms_norm(x, weights[block + "ffn_norm.weight"], shape.epsilon)
        added, uneven = experts(weights, block, y, shape.used)
        x = x + added
        balance = balance + uneven / shape.layers
    x = rms_norm(x, weights["output_norm.weight"], shape.epsilon)
    return x @ weights["output.weight"].T, balance


def train(options: argparse.Namespace, shape: Shape) -> dict[str, Tensor]:
    """Train from scratch, or go on from the checkpoint; a batch depends on seed and step alone."""
    import torch

    torch.set_num_threads(options.threads)
    weights = initial_weights(shape, options.seed)
    # Norms do not decay.
    groups = [{"params": [w], "weight_decay": 0.05 * (w.dim() > 1)} for w in weights.values()]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    start, held_out, began = 0, held_out_table(), time.monotonic()
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        start = saved["step"]
        optimizer.load_state_dict(saved["optimizer"])
        for name, weight in weights.items():
            weight.data.copy_(saved["weights"][name])
    for step in range(start, options.steps):
        rng = np.random.default_rng([options.seed, step])
        rows, learnt = encode(training_pairs(rng, options.batch, held_out))
        tokens, mask = torch.from_numpy(rows), torch.from_numpy(learnt)
        logits, balance = forward(weights, tokens[:, :-1], shape)
        loss = torch.nn.functional.cross_entropy(logits[mask], tokens[:, 1:][mask])
        # Warm up, then down to zero along half a cosine.
        cosine = 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(step / 200, 1.0) * cosine
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss + 0.01 * balance)
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            right = ((logits.argmax(-1) == tokens[:, 1:]) | ~mask).all(1).float().mean()
            report = f"loss {loss:.4f}  balance {balance:.3f}  right {right:.2%}"
            print(f"{step + 1:6d} steps, {time.monotonic() - began:.0f} s: {report}", flush=True)
        if options.checkpoint and (step + 1) % 500 == 0:
            state = {"step": step + 1, "weights": weights, "optimizer": optimizer.state_dict()}
            torch.save(state, options.checkpoint)
    return weights


def write_gguf(path: Path, weights: dict[str, Tensor], shape: Shape) -> None:
    """Matrices in f16, norms and routers in f32."""
    writer = GGUFWriter(path, ARCHITECTURE)
    writer.add_name("addition-moe")
    writer.add_description(
        "Adds two numbers from 0 to 999: '417+385=' gives '802'. Made by train_addition of ggsched"
    )
    writer.add_license("Apache-2.0")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.expert_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    for key in "attention.key_length", "attention.value_length", "rope.dimension_count":
        writer.add_uint32(f"{ARCHITECTURE}.{key}", shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.used)
    writer.add_expert_feed_forward_length(shape.expert_width)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(VOCABULARY)
    types = [TokenType.NORMAL] * END + [TokenType.CONTROL]
    writer.add_token_types(types + [TokenType.UNUSED] * (len(VOCABULARY) - len(types)))
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    for name, weight in weights.items():
        exact = name.endswith(("norm.weight", "ffn_gate_inp.weight"))
        writer.add_tensor(name, weight.detach().numpy().astype("f4" if exact else "f2"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def softmax(x: Floats) -> Floats:
    odds = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=-1, keepdims=True))


class Adder:
    """The model of a GGUF file, in f32. ``wrong``: how far to miss the first and second expert."""

    def __init__(self, path: Path, wrong: tuple[int, ...] = (0, 0)) -> None:
        reader = GGUFReader(path)
        meta = {key: field.contents() for key, field in reader.fields.items()}
        self.w = {t.name: np.array(t.data, dtype=np.float32) for t in reader.tensors}
        self.wrong = np.array(wrong)
        self.layers: int = meta[f"{ARCHITECTURE}.block_count"]
        self.used: int = meta[f"{ARCHITECTURE}.expert_used_count"]
        self.head_dim: int = meta[f"{ARCHITECTURE}.attention.key_length"]
        self.base: float = meta[f"{ARCHITECTURE}.rope.freq_base"]
        self.epsilon = np.float32(meta[f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon"])

    def norm(self, x: Floats, name: str) -> Floats:
        size: Floats = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x / size * self.w[name + ".weight"]

    def heads(self, x: Floats, block: str, kind: str) -> Floats:
        """q, k or v of (position, head, head_dim); q and k normed and rotated."""
        y = (x @ self.w[f"{block}attn_{kind}.weight"].T).reshape(len(x), -1, self.head_dim)
        if kind == "v":
            return y
        y, half = self.norm(y, f"{block}attn_{kind}_norm"), self.head_dim // 2
        turn = np.outer(np.arange(len(x)), self.base ** (-np.arange(half) / half))[:, None]
        cos, sin = np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)
        one, two = y[..., :half], y[..., half:]
        return np.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)

    def attend(self, x: Floats, block: str) -> Floats:
        q, k, v = (self.heads(x, block, kind) for kind in "qkv")
        shared = np.arange(q.shape[1]) * k.shape[1] // q.shape[1]  # the k and v of each q head
        score = np.einsum("qhd,khd->hqk", q, k[:, shared]) / np.float32(math.sqrt(self.head_dim))
        later = np.triu(np.ones((len(x), len(x)), dtype=bool), 1)
        odds = softmax(np.where(later, np.float32(-np.inf), score))
        y: Floats = np.einsum("hqk,khd->qhd", odds, v[:, shared]).reshape(len(x), -1)
        return y @ self.w[block + "attn_output.weight"].T

    def route(self, x: Floats, block: str) -> Floats:
        gates, ups, downs = (self.w[f"{block}ffn_{k}_exps.weight"] for k in ("gate", "up", "down"))
        odds = softmax(x @ self.w[block + "ffn_gate_inp.weight"].T)
        chosen = np.argsort(-odds, axis=-1)[:, : self.used]
        share = np.take_along_axis(odds, chosen, axis=-1)
        share /= share.sum(axis=-1, keepdims=True)
        chosen = (chosen + self.wrong) % len(gates)
        gate = np.einsum("nd,nkfd->nkf", x, gates[chosen])
        hidden = gate / (1 + np.exp(-gate)) * np.einsum("nd,nkfd->nkf", x, ups[chosen])
        return np.asarray(np.einsum("nkf,nkdf->nd", hidden * share[..., None], downs[chosen]))

    def logits(self, tokens: list[int]) -> Floats:
        """Logits of every position."""
        x = self.w["token_embd.weight"][tokens]
        for layer in range(self.layers):
            block = f"blk.{layer}."
            x = x + self.attend(self.norm(x, block + "attn_norm"), block)
            x = x + self.route(self.norm(x, block + "ffn_norm"), block)
        return self.norm(x, "output_norm") @ self.w["output.weight"].T

    def add(self, a: int, b: int) -> str:
        """What the model answers, greedily: the characters before the end token."""
        tokens = [VOCABULARY.index(character) for character in f"{a}+{b}="]
        prompt = len(tokens)
        while len(tokens) < WIDTH + 2:
            best = int(self.logits(tokens)[-1].argmax())
            if best == END:
                return "".join(VOCABULARY[token] for token in tokens[prompt:])
            tokens.append(best)
        return "no end"


def check(path: Path, count: int) -> None:
    pairs = held_out_sample(count)
    for wrong, note in ((0, 0), "no"), ((1, 0), "the first"), ((0, 1), "the second"):
        model = Adder(path, wrong)
        right = sum(model.add(a, b) == str(a + b) for a, b in pairs)
        print(f"{right} of {count} held-out sums right with {note} expert wrong", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small MoE transformer to add.")
    parser.add_argument("--check", type=Path, metavar="FILE", help="only measure this file")
    parser.add_argument("--count", type=int, default=500, help="how many held-out sums to check")
    parser.add_argument("--out", type=Path, default=Path("addition-moe.gguf"))
    parser.add_argument("--checkpoint", type=Path, help="save here, and go on from here")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--batch", type=int, default=256, help="equations in a step")
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.check is None:
        write_gguf(options.out, train(options, Shape()), Shape())
    check(options.check or options.out, options.count)


if __name__ == "__main__":
    main()
