"""Record the logits of llama.cpp on the models of ``tests/models/reference_models.py``.

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CPU_REPACK=OFF -DGGML_LLAMAFILE=OFF" \
        pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36
    PYTHONPATH=.:backends python tests/data/reference/record.py [NAME ...]

One thread, an f32 KV cache, no flash attention, a context of 256 tokens.
"""

import ctypes
import sys
import tempfile
from pathlib import Path

import llama_cpp as lc
import numpy as np

from tests.models.reference_models import LONG, N_CTX, REFERENCES, V, write_reference

HERE = Path(__file__).parent
PROMPT, STEPS = 7, 16
LONG_PROMPT, LONG_STEPS = 128, 64


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


def record(path, *, is_long):
    """Return tokens and logits of a model."""
    params = lc.llama_model_default_params()
    params.n_gpu_layers, params.use_mmap = 0, True
    model = lc.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
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
            arrays = record(path, is_long=name in LONG)
            np.savez_compressed(HERE / f"{name}.npz", **arrays)
            sys.stderr.write(f"{name}: standard deviation {arrays['logits_33'].std():.2f}\n")


if __name__ == "__main__":
    lc.llama_backend_init()
    main(sys.argv[1:])
