"""Record the logits of llama.cpp on the models of ``tests/models/reference_models.py``.

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    tar xf llama_cpp_python-0.3.36.tar.gz
    sed -i '/^#define GGML_GELU_FP16/d' \
        llama_cpp_python-0.3.36/vendor/llama.cpp/ggml/src/ggml-cpu/vec.h
    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CPU_REPACK=OFF -DGGML_LLAMAFILE=OFF \
        -DLLAVA_BUILD=OFF" pip install ./llama_cpp_python-0.3.36
    PYTHONPATH=.:backends python tests/data/reference/record.py [NAME ...]

The line that ``sed`` deletes makes the CPU backend look gelu up in a table of f16 for f16, which
moves logits of gemma models in f32 by up to 2.5e-3. Without it gelu is computed in f32, as the
models mean it and as llama.cpp's other backends do. No other op of these models is affected.

One thread, an f32 KV cache, no flash attention, a context of 256 tokens.

Of the models in ``SPREAD`` the distances of llama.cpp's logits to the graph in float64 are recorded
too, over many positions: rounding has a heavy tail there, and the largest of a few is chance.
"""

import ctypes
import sys
import tempfile
from pathlib import Path

import llama_cpp as lc
import numpy as np

from ggsched_llm.load import load_model
from tests.models.reference_models import LONG, N_CTX, REFERENCES, SPREAD, V, write_reference
from tests.models.wide_runner import WideRunner

HERE = Path(__file__).parent
PROMPT, STEPS = 7, 16
LONG_PROMPT, LONG_STEPS = 128, 64
SEQUENCES = 8


class Context:
    """An empty cache."""

    def __init__(self, model):
        params = lc.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = lc.GGML_TYPE_F32
        params.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.offload_kqv = False
        self.context = lc.llama_init_from_model(model, params)
        assert self.context
        self.n_past = 0

    def feed(self, tokens):
        """Return the logits of each token."""
        n = len(tokens)
        batch = lc.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i] = int(token)
            batch.pos[i] = self.n_past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        assert lc.llama_decode(self.context, batch) == 0
        lc.llama_batch_free(batch)
        self.n_past += n
        rows = lc.llama_get_logits(self.context)
        return np.ctypeslib.as_array(
            ctypes.cast(rows, ctypes.POINTER(ctypes.c_float)), (n, V)
        ).copy()

    def close(self):
        lc.llama_free(self.context)


def opened(path):
    """Return llama.cpp's model of a file."""
    params = lc.llama_model_default_params()
    params.n_gpu_layers, params.use_mmap = 0, True
    model = lc.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
    return model


def record_distances(path):
    """Return tokens of some sequences, and how far the logits of each are from float64."""
    model, graph = opened(path), load_model(path, weights="packed")
    tokens = np.random.default_rng(7).integers(0, V, (SEQUENCES, LONG_PROMPT)).astype(np.int32)
    rows = []
    for sequence in tokens:
        context = Context(model)
        exact = WideRunner(graph, n_ctx=N_CTX).feed(sequence)
        rows.append(np.abs(context.feed(sequence) - exact).max(axis=-1))
        context.close()
    lc.llama_model_free(model)
    return {"tokens": tokens, "distances": np.array(rows, np.float32)}


def record(path, *, is_long):
    """Return tokens and logits of a model."""
    model = opened(path)
    rng = np.random.default_rng(0)
    found = {}
    for n in (1, 7, 33, *([LONG_PROMPT] if is_long else [])):
        tokens = rng.integers(0, V, n).astype(np.int32)
        context = Context(model)
        found |= {f"tokens_{n}": tokens, f"logits_{n}": context.feed(tokens)}
        context.close()
    prompt = rng.integers(0, V, PROMPT).astype(np.int32)
    context = Context(model)
    rows, chosen = [context.feed(prompt)[-1]], []
    for _ in range(LONG_STEPS if is_long else STEPS):
        chosen.append(int(rows[-1].argmax()))
        rows.append(context.feed(chosen[-1:])[-1])
    context.close()
    lc.llama_model_free(model)
    return found | {
        "dec_prompt": prompt,
        "dec_tokens": np.array(chosen, np.int32),
        "dec_logits": np.array(rows),
    }


def main(names):
    with tempfile.TemporaryDirectory() as folder:
        for name in names or REFERENCES:
            path = write_reference(Path(folder) / "model.gguf", name)
            if name in SPREAD:
                np.savez_compressed(HERE / f"{name}-distances.npz", **record_distances(path))
            arrays = record(path, is_long=name in LONG)
            np.savez_compressed(HERE / f"{name}.npz", **arrays)
            sys.stderr.write(f"{name}: standard deviation {arrays['logits_33'].std():.2f}\n")


if __name__ == "__main__":
    lc.llama_backend_init()
    main(sys.argv[1:])
