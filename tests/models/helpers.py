"""Models for tests: small GGUF files made here, and micro-batches run by the oracle."""

import struct
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from ggsched.backend.registry import open_devices
from ggsched.errors import BackendUnavailable
from ggsched.ir.dtype import F32
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import Model, weight_array
from ggsched_testing.oracle.interpreter import run_oracle

ORACLE = Path(__file__).parent.parent / "data" / "oracle"
F32_CODE = int(GGMLQuantizationType.F32)


@dataclass(frozen=True)
class Stored:
    """A tensor as it goes into a file."""

    raw: bytes
    shape: tuple[int, ...]
    code: int = F32_CODE


def stored(array, kind=GGMLQuantizationType.F32):
    if kind is GGMLQuantizationType.I32:
        return Stored(np.asarray(array, np.int32).tobytes(), array.shape, int(kind))
    return Stored(quantize(array.astype(np.float32), kind).tobytes(), array.shape, int(kind))


def _text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value):
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str() | bytes():
            return 8, _text(value)
    code = _value(value[0])[0] if value else 8
    return 9, struct.pack("<IQ", code, len(value)) + b"".join(_value(v)[1] for v in value)


def write_gguf(path, meta: Mapping[str, object], tensors: Mapping[str, Stored], alignment=32):
    """Write a file; a list is an array, ints are u32, floats f32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    for key, value in meta.items():
        code, raw = _value(value)
        head += _text(key) + struct.pack("<I", code) + raw
    data = b""
    for name, t in tensors.items():
        shape = t.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", t.code, len(data))
        data += t.raw + bytes(-len(t.raw) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)
    return path


E, H, G, D, FF, V = 32, 4, 2, 8, 32, 8


def tiny_meta(arch, *, layers=1, experts=0, vocab=V):
    """Metadata of a model that fits ``tiny_tensors``."""
    meta = {
        "general.architecture": arch,
        f"{arch}.context_length": 64,
        f"{arch}.embedding_length": E,
        f"{arch}.block_count": layers,
        f"{arch}.feed_forward_length": FF,
        f"{arch}.attention.head_count": H,
        f"{arch}.attention.head_count_kv": G,
        f"{arch}.attention.key_length": D,
        f"{arch}.attention.value_length": D,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.dimension_count": D,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.vocab_size": vocab,
    }
    if experts:
        meta[f"{arch}.expert_count"] = experts
        meta[f"{arch}.expert_used_count"] = 2
        meta[f"{arch}.expert_feed_forward_length"] = FF
    if arch == "gpt-oss":
        meta[f"{arch}.attention.sliding_window"] = 4
    return meta


def tiny_arrays(arch, *, layers=1, experts=0, vocab=V, seed=0):
    """Random weights by name, float32."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (vocab, E)}
    for i in range(layers):
        b = f"blk.{i}."
        shapes |= {
            b + "attn_norm.weight": (E,),
            b + "attn_q.weight": (H * D, E),
            b + "attn_k.weight": (G * D, E),
            b + "attn_v.weight": (G * D, E),
            b + "attn_output.weight": (E, H * D),
        }
        norm = "post_attention_norm" if arch == "gpt-oss" else "ffn_norm"
        shapes[b + norm + ".weight"] = (E,)
        if arch == "qwen3moe":
            shapes |= {b + "attn_q_norm.weight": (D,), b + "attn_k_norm.weight": (D,)}
        lead = (experts,) if experts else ()
        suffix = "_exps" if experts else ""
        shapes |= {
            f"{b}ffn_gate{suffix}.weight": (*lead, FF, E),
            f"{b}ffn_up{suffix}.weight": (*lead, FF, E),
            f"{b}ffn_down{suffix}.weight": (*lead, E, FF),
        }
        if experts:
            shapes[b + "ffn_gate_inp.weight"] = (experts, E)
        if arch == "gpt-oss":
            shapes[b + "attn_sinks.weight"] = (H,)
            for name in [n for n in shapes if n.startswith(b) and "norm" not in n]:
                if "sinks" not in name:
                    shapes[name.replace(".weight", ".bias")] = shapes[name][:-1]
    shapes |= {"output_norm.weight": (E,), "output.weight": (vocab, E)}
    return {name: rng.standard_normal(s).astype(np.float32) * 0.3 for name, s in shapes.items()}


def tiny_gguf(path, arch="llama", *, meta=None, drop=(), arrays=None, **sizes):
    """Write a tiny model; ``meta`` replaces keys, ``drop`` leaves keys or tensors out."""
    if arch != "llama":
        sizes.setdefault("experts", 4)
    full = {**tiny_meta(arch, **sizes), **(meta or {})}
    weights = tiny_arrays(arch, **sizes) if arrays is None else arrays
    tensors = {n: a if isinstance(a, Stored) else stored(a) for n, a in weights.items()}
    return write_gguf(
        path,
        {k: v for k, v in full.items() if k not in drop},
        {n: t for n, t in tensors.items() if n not in drop},
    )


def llama_shapes(e, ff, layers, vocab):
    """Return shapes of the weights of a llama whose heads share nothing, by name."""
    shapes = {"token_embd.weight": (vocab, e), "output.weight": (vocab, e)}
    shapes["output_norm.weight"] = (e,)
    for b in (f"blk.{i}." for i in range(layers)):
        shapes |= {f"{b}{name}_norm.weight": (e,) for name in ("attn", "ffn")}
        shapes |= {f"{b}attn_{name}.weight": (e, e) for name in ("q", "k", "v", "output")}
        shapes |= {f"{b}ffn_{name}.weight": (ff, e) for name in ("gate", "up")}
        shapes[f"{b}ffn_down.weight"] = (e, ff)
    return shapes


def wide_gguf(path, *, e=512, ff=1024, layers=2, vocab=64, seed=0):
    """Write a llama whose products take longer than events, so that streams gain something."""
    meta, d = {"llama.embedding_length": e, "llama.feed_forward_length": ff}, 64
    meta |= {f"llama.attention.{name}": e // d for name in ("head_count", "head_count_kv")}
    meta |= {f"llama.attention.{name}_length": d for name in ("key", "value")}
    meta["llama.rope.dimension_count"] = d
    shapes = llama_shapes(e, ff, layers, vocab)
    rng = np.random.default_rng(seed)
    arrays = {n: rng.standard_normal(s).astype(np.float32) * 0.05 for n, s in shapes.items()}
    return tiny_gguf(path, meta=meta, arrays=arrays, layers=layers, vocab=vocab)


class Runner:
    """Feeds micro-batches of one sequence to a model and keeps its cache."""

    def __init__(self, model: Model, *, n_ctx=64, kv_dtype=F32, bucket=32):
        self.model = model
        self.weights = {name: weight_array(model, name) for name in model.spec.weights}
        self.states = {}
        self.n_past = 0
        self.n_ctx, self.kv_dtype, self.bucket = n_ctx, kv_dtype, bucket
        self.graphs = {}

    def graph(self, n_tokens, n_kv, n_out):
        """Return the graph of a micro-batch; most tokens that are decoded have that of the last."""
        sizes = n_tokens, n_kv, n_out
        if sizes not in self.graphs:
            self.graphs[sizes] = build_model_graph(
                self.model.spec,
                n_tokens=n_tokens,
                n_kv=n_kv,
                n_out=n_out,
                n_ctx=self.n_ctx,
                kv_dtype=self.kv_dtype,
            )
        return self.graphs[sizes]

    def feed(self, tokens, out_rows=None):
        """Return the logits (n_out, n_vocab) of some tokens, all by default."""
        n = len(tokens)
        rows = np.arange(n) if out_rows is None else np.asarray(out_rows)
        end = self.n_past + n
        n_kv = min(self.n_ctx, -(-end // self.bucket) * self.bucket)
        graph = self.graph(n, n_kv, len(rows))
        at = np.arange(self.n_past, end, dtype=np.int32)
        values = {
            **self.weights,
            "tokens": np.asarray(tokens, np.int32),
            "positions": at,
            "kv_rows": at,
            "bounds": np.stack([0 * at, at + 1], axis=-1),
            "out_rows": rows.astype(np.int32),
        }
        if self.model.hparams.recurrent is not None:
            values["slots"] = np.zeros(n, np.int32)
        window = self.model.hparams.window
        if window:
            values["bounds_window"] = np.stack([np.maximum(0, at + 1 - window), at + 1], axis=-1)
        self.n_past = end
        return self.run(graph, values)

    def run(self, graph, values):
        """Return the logits of a graph; states are kept."""
        return run_oracle(graph, values, states=self.states)[graph.outputs[0]]

    def feed_all(self, tokens, batch):
        """Return the logits of all tokens, fed in micro-batches of that size."""
        parts = [self.feed(tokens[i : i + batch]) for i in range(0, len(tokens), batch)]
        return np.concatenate(parts)


@contextmanager
def opened_once():
    """Yield a function from names to devices, which are opened once; skip where they cannot be."""
    with ExitStack() as stack:
        opened = {}

        def get(names):
            if names not in opened:
                try:
                    opened[names] = open_devices(list(names))
                except BackendUnavailable as error:
                    pytest.skip(f"no {names[0]} here: {error.one_line()}")
                for device in opened[names]:
                    stack.callback(device.close)
            return opened[names]

        yield get
