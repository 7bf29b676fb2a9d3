"""Train a small mixture-of-experts transformer to add, and write it as a GGUF file.

The model reads ``417+385=`` one character at a time and answers ``802<|end|>``. It has the
architecture ``qwen3moe`` of llama.cpp: RMSNorm, grouped-query attention with a norm on each head
of q and k, RoPE on the pairs (i, i + head_dim / 2), and SwiGLU experts of which a router picks two
for each token.

    python train.py --out addition-moe.gguf        # train, write, check
    python train.py --check addition-moe.gguf      # only check

``--check`` reads the file back and adds with a forward pass in numpy that shares no code with the
training. It needs no torch; only training imports it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
VOCABULARY = [*CHARACTERS, "<|end|>", "[UNUSED13]", "[UNUSED14]", "[UNUSED15]"]
# A byte-pair vocabulary must have merges. The halves of this one can never arise.
MERGES = ["<| end|>"]

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


# ---------------------------------------------------------------------------------------------
# The task


def is_held_out(a: int, b: int) -> bool:
    """Whether a + b belongs to the 2 % of all sums that are never trained on.

    The order of the operands does not matter: if 417+385 is held out, so is 385+417.
    """
    x = min(a, b) * 1000 + max(a, b)
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return (x ^ (x >> 16)) % 50 == 0


def held_out_table() -> NDArray[np.bool_]:
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


def tokenize(text: str) -> list[int]:
    return [CHARACTERS.index(character) for character in text]


def training_pairs(rng: np.random.Generator, count: int, held_out: NDArray[np.bool_]) -> Ids:
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
    tens = b // 100 * 100 + (9 - a // 10 % 10) * 10 + b % 10
    b = np.where(kind == 1, tens, b)
    hundreds = (9 - a // 100) * 100 + b % 100
    b = np.where((kind == 1) & (rng.random(drawn) < 0.5), hundreds, b)
    pairs = np.stack([a, b], axis=1)[~held_out[a, b]]
    return pairs[:count]


def encode(pairs: Ids) -> tuple[Ids, NDArray[np.bool_]]:
    """Whole equations as rows of tokens, and which of the tokens 1.. are to be learnt.

    The rows are filled up with end tokens on the right; only the first of them is learnt.
    """
    prompts = [f"{a}+{b}=" for a, b in pairs]
    answers = [str(a + b) for a, b in pairs]
    letters = "".join((p + r).ljust(WIDTH, "E") for p, r in zip(prompts, answers, strict=True))
    ids = np.full(256, END, dtype=np.int64)
    ids[np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)] = np.arange(len(CHARACTERS))
    rows = ids[np.frombuffer(letters.encode(), dtype=np.uint8)].reshape(len(pairs), WIDTH)
    first = np.array([len(p) for p in prompts])[:, None]
    last = first + np.array([len(r) for r in answers])[:, None]  # the end token
    place = np.arange(1, WIDTH)[None, :]
    return rows, (first <= place) & (place <= last)


# ---------------------------------------------------------------------------------------------
# The model in torch, for training


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
        d, q, kv = self.embedding, self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd.weight", (len(VOCABULARY), d)
        for layer in range(self.layers):
            block = f"blk.{layer}."
            yield block + "attn_norm.weight", (d,)
            yield block + "attn_q.weight", (q, d)
            yield block + "attn_k.weight", (kv, d)
            yield block + "attn_v.weight", (kv, d)
            yield block + "attn_output.weight", (d, q)
            yield block + "attn_q_norm.weight", (self.head_dim,)
            yield block + "attn_k_norm.weight", (self.head_dim,)
            yield block + "ffn_norm.weight", (d,)
            yield block + "ffn_gate_inp.weight", (self.experts, d)
            yield block + "ffn_gate_exps.weight", (self.experts, self.expert_width, d)
            yield block + "ffn_up_exps.weight", (self.experts, self.expert_width, d)
            yield block + "ffn_down_exps.weight", (self.experts, d, self.expert_width)
        yield "output_norm.weight", (d,)
        yield "output.weight", (len(VOCABULARY), d)


def initial_weights(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Norms of one, matrices of variance 1 / fan_in, less for what adds to the residual."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in shape.tensors():
        if name.endswith("norm.weight"):
            value = torch.ones(size)
        else:
            value = torch.randn(size, generator=generator) / math.sqrt(size[-1])
            if "attn_output" in name or "ffn_down" in name:
                value /= math.sqrt(2 * shape.layers)
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

    def heads(kind: str, count: int) -> Tensor:
        y = x @ weights[f"{block}attn_{kind}.weight"].T
        return y.unflatten(-1, (count, shape.head_dim)).transpose(1, 2)

    q, k, v = heads("q", shape.heads), heads("k", shape.kv_heads), heads("v", shape.kv_heads)
    q = rotate(rms_norm(q, weights[block + "attn_q_norm.weight"], shape.epsilon), shape.rope_base)
    k = rotate(rms_norm(k, weights[block + "attn_k_norm.weight"], shape.epsilon), shape.rope_base)
    group = shape.heads // shape.kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    score = (q @ k.mT / math.sqrt(shape.head_dim)).masked_fill(later, -math.inf)
    y = score.softmax(-1) @ v
    return y.transpose(1, 2).flatten(-2) @ weights[block + "attn_output.weight"].T


def experts(
    weights: dict[str, Tensor], block: str, x: Tensor, shape: Shape
) -> tuple[Tensor, Tensor]:
    """The routed experts on x of (batch, position, embedding), and the load-balancing loss.

    All experts are computed and those not chosen count 0, which is what leaving them out gives.
    The loss is 1 when all experts are chosen equally often, and more otherwise.
    """
    import torch

    odds = (x @ weights[block + "ffn_gate_inp.weight"].T).softmax(-1)
    best, chosen = odds.topk(shape.used, dim=-1)
    share = torch.zeros_like(odds).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
    gate = x @ weights[block + "ffn_gate_exps.weight"].flatten(0, 1).T
    up = x @ weights[block + "ffn_up_exps.weight"].flatten(0, 1).T
    hidden = torch.nn.functional.silu(gate) * up
    hidden = (hidden.unflatten(-1, (shape.experts, -1)) * share[..., None]).flatten(-2)
    down = weights[block + "ffn_down_exps.weight"].transpose(0, 1).flatten(1)
    load = (share > 0).float().mean((0, 1)) / shape.used
    return hidden @ down.T, shape.experts * (load * odds.mean((0, 1))).sum()


def forward(weights: dict[str, Tensor], tokens: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Logits of every position, and the mean load-balancing loss of the layers."""
    x = weights["token_embd.weight"][tokens]
    balance = x.new_zeros(())
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        y = rms_norm(x, weights[block + "attn_norm.weight"], shape.epsilon)
        x = x + attention(weights, block, y, shape)
        y = rms_norm(x, weights[block + "ffn_norm.weight"], shape.epsilon)
        added, uneven = experts(weights, block, y, shape)
        x = x + added
        balance = balance + uneven / shape.layers
    x = rms_norm(x, weights["output_norm.weight"], shape.epsilon)
    return x @ weights["output.weight"].T, balance


# ---------------------------------------------------------------------------------------------
# Training


def learning_rate(step: int, steps: int, peak: float) -> float:
    """A short warm-up, then half a cosine down to zero."""
    warm_up = min(step / 200, 1.0)
    return peak * warm_up * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(options: argparse.Namespace, shape: Shape) -> dict[str, Tensor]:
    """Train from scratch, or go on from the checkpoint; the batch of a step depends on the seed
    and the step alone."""
    import torch

    torch.set_num_threads(options.threads)
    weights = initial_weights(shape, options.seed)
    norms = [w for w in weights.values() if w.dim() == 1]
    matrices = [w for w in weights.values() if w.dim() > 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    start, held_out, began = 0, held_out_table(), time.monotonic()
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        start = saved["step"]
        optimizer.load_state_dict(saved["optimizer"])
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(saved["weights"][name])
    for step in range(start, options.steps):
        rng = np.random.default_rng([options.seed, step])
        rows, learnt = encode(training_pairs(rng, options.batch, held_out))
        tokens, mask = torch.from_numpy(rows), torch.from_numpy(learnt)
        logits, balance = forward(weights, tokens[:, :-1], shape)
        loss = torch.nn.functional.cross_entropy(logits[mask], tokens[:, 1:][mask])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.rate)
        optimizer.zero_grad(set_to_none=True)
        (loss + 0.01 * balance).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            right = (logits.argmax(-1) == tokens[:, 1:]) | ~mask
            print(
                f"step {step + 1:6d}  loss {loss.item():.4f}  balance {balance.item():.3f}  "
                f"sums right {right.all(1).float().mean().item():.4f}  "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
        if options.checkpoint and (step + 1) % 500 == 0:
            state = {"step": step + 1, "weights": weights, "optimizer": optimizer.state_dict()}
            torch.save(state, options.checkpoint)
    return weights


# ---------------------------------------------------------------------------------------------
# The file


def write_gguf(path: Path, weights: dict[str, Tensor], shape: Shape) -> None:
    """Matrices in f16, norms and routers in f32."""
    writer = GGUFWriter(path, ARCHITECTURE)
    writer.add_name("addition-moe")
    writer.add_description(
        "Adds two numbers from 0 to 999: '417+385=' gives '802'. A mixture-of-experts transformer "
        "trained from scratch by examples/train_addition/train.py of ggsched."
    )
    writer.add_license("Apache-2.0")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.expert_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
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
        value = weight.detach().numpy()
        writer.add_tensor(name, value.astype(np.float32 if exact else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---------------------------------------------------------------------------------------------
# The check: the file alone, in numpy


class Adder:
    """The model of a GGUF file in f32. ``wrong`` experts further on are used, for an ablation."""

    def __init__(self, path: Path, wrong: int = 0) -> None:
        reader = GGUFReader(path)
        self.w = {t.name: np.array(t.data, dtype=np.float32) for t in reader.tensors}
        self.wrong = wrong

        def number(key: str) -> Any:
            field = reader.get_field(f"{ARCHITECTURE}.{key}")
            if field is None:
                raise KeyError(f"{path} has no {ARCHITECTURE}.{key}")
            return field.contents()

        self.layers, self.used = number("block_count"), number("expert_used_count")
        self.experts, self.head_dim = number("expert_count"), number("attention.key_length")
        self.base = number("rope.freq_base")
        self.epsilon = np.float32(number("attention.layer_norm_rms_epsilon"))

    def norm(self, x: Floats, name: str) -> Floats:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.epsilon) * self.w[name + ".weight"]

    def heads(self, x: Floats, block: str, kind: str) -> Floats:
        y = x @ self.w[f"{block}attn_{kind}.weight"].T
        y = y.reshape(len(x), -1, self.head_dim)
        if kind == "v":
            return y
        y, half = self.norm(y, f"{block}attn_{kind}_norm"), self.head_dim // 2
        turn = np.outer(np.arange(len(x)), self.base ** (-np.arange(half) / half))[:, None]
        cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
        one, two = y[..., :half], y[..., half:]
        return np.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)

    def attend(self, x: Floats, block: str) -> Floats:
        q, k, v = (self.heads(x, block, kind) for kind in "qkv")
        out = np.empty_like(q)
        for head in range(q.shape[1]):
            shared = head * k.shape[1] // q.shape[1]
            score = q[:, head] @ k[:, shared].T / np.float32(math.sqrt(self.head_dim))
            score[np.triu_indices(len(x), 1)] = -np.inf
            odds = np.exp(score - score.max(axis=1, keepdims=True))
            out[:, head] = odds / odds.sum(axis=1, keepdims=True) @ v[:, shared]
        return out.reshape(len(x), -1) @ self.w[block + "attn_output.weight"].T

    def route(self, x: Floats, block: str) -> Floats:
        gates, ups = self.w[block + "ffn_gate_exps.weight"], self.w[block + "ffn_up_exps.weight"]
        downs = self.w[block + "ffn_down_exps.weight"]
        score = x @ self.w[block + "ffn_gate_inp.weight"].T
        out = np.zeros_like(x)
        for row, token in enumerate(x):
            odds = np.exp(score[row] - score[row].max())
            chosen = np.argsort(-odds)[: self.used]
            for pick in chosen:
                expert = (pick + self.wrong) % self.experts
                gate = gates[expert] @ token
                hidden = gate / (1 + np.exp(-gate)) * (ups[expert] @ token)
                out[row] += odds[pick] / odds[chosen].sum() * (downs[expert] @ hidden)
        return out

    def logits(self, tokens: list[int]) -> Floats:
        """Logits of every position."""
        x = self.w["token_embd.weight"][tokens]
        for layer in range(self.layers):
            block = f"blk.{layer}."
            x = x + self.attend(self.norm(x, block + "attn_norm"), block)
            x = x + self.route(self.norm(x, block + "ffn_norm"), block)
        return self.norm(x, "output_norm") @ self.w["output.weight"].T

    def add(self, a: int, b: int) -> str:
        """What the model answers, greedily."""
        tokens = tokenize(f"{a}+{b}=")
        prompt = len(tokens)
        while len(tokens) < WIDTH + 2:
            best = int(self.logits(tokens)[-1].argmax())
            if best == END:
                break
            tokens.append(best)
        return "".join(VOCABULARY[token] for token in tokens[prompt:])


def count_right(path: Path, pairs: list[tuple[int, int]], wrong: int = 0) -> int:
    model = Adder(path, wrong)
    return sum(model.add(a, b) == str(a + b) for a, b in pairs)


def check(path: Path, count: int) -> None:
    pairs = held_out_sample(count)
    print(f"{count_right(path, pairs)} of {count} held-out sums right", flush=True)
    print(f"{count_right(path, pairs, wrong=1)} of {count} with the wrong experts (ablation)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small MoE transformer to add.")
    parser.add_argument("--check", type=Path, metavar="FILE", help="only measure this file")
    parser.add_argument("--count", type=int, default=500, help="how many held-out sums to check")
    parser.add_argument("--out", type=Path, default=Path("addition-moe.gguf"))
    parser.add_argument("--checkpoint", type=Path, help="save here, and go on from here")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=512, help="equations in a step")
    parser.add_argument("--rate", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.check is None:
        write_gguf(options.out, train(options, Shape()), Shape())
    check(options.check or options.out, options.count)


if __name__ == "__main__":
    main()
