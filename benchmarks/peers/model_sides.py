"""A model behind three calls, by ggsched and by llama.cpp: reset, feed tokens, take logits.

Both keep the cache in f32, feed the prompt in one micro-batch, and compute logits of the last token
only. Anything else is as each has it by default.
"""

import ctypes
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ggsched.config import Settings
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.spec import WeightPolicy

Name = Literal["ggsched", "ggsched packed", "llama.cpp", "llama.cpp, fa off"]
TIMEOUT_S = 120.0


class Side(Protocol):
    """One sequence of tokens on a model."""

    def reset(self) -> None:
        """Forget the sequence."""

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append int32 tokens and return the float32 logits (vocabulary) of the last."""

    def close(self) -> None:
        """Release everything."""


def open_side(name: Name, path: Path, threads: int, n_ctx: int) -> Side:
    """Open a model.

    Args:
        name: Who runs it; ``ggsched`` expands weights to f32, ``ggsched packed`` does not.
        path: The GGUF file.
        threads: Of llama.cpp. Those of numpy's BLAS are chosen by the environment at its import.
        n_ctx: Rows of the cache.
    """
    if name.startswith("llama.cpp"):
        return LlamaCpp(path, threads, n_ctx, flash_attention=name == "llama.cpp")
    return Ggsched(path, "packed" if name.endswith("packed") else "expand", n_ctx)


class Ggsched:
    """By a session on one logical CPU device."""

    def __init__(self, path: Path, weights: WeightPolicy, n_ctx: int) -> None:
        model = load_model(path, weights=weights)
        options = SessionOptions(n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=n_ctx, cache_type="f16")
        settings = Settings(timeout_s=TIMEOUT_S)
        self._session = Session(model, ["cpu:0"], options, settings=settings)

    def reset(self) -> None:
        """Forget the sequence."""
        self._session.reset()

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens and return the logits of the last."""
        return np.array(self._session.feed(tokens.tolist())[-1])

    def close(self) -> None:
        """Release everything."""
        self._session.close()


class LlamaCpp:
    """By the low-level interface of llama-cpp-python, without its tokenizer."""

    def __init__(self, path: Path, threads: int, n_ctx: int, *, flash_attention: bool) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(_say_nothing)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = n_ctx
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        options.no_perf = True
        if not flash_attention:  # else llama.cpp decides, which for CPUs is to use it
            options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise ValueError(f"llama.cpp makes no context for {path}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._n_vocab = int(llama_cpp.llama_vocab_n_tokens(vocabulary))

    def reset(self) -> None:
        """Forget the sequence."""
        memory = self._lib.llama_get_memory(self._context)
        self._lib.llama_memory_clear(memory, False)

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens and return the logits of the last."""
        ids = (self._lib.llama_token * len(tokens))(*tokens.tolist())
        batch = self._lib.llama_batch_get_one(ids, len(tokens))
        failed = self._lib.llama_decode(self._context, batch)
        if failed:
            raise ValueError(f"llama_decode returns {failed}")
        logits = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self._n_vocab,)).copy()

    def close(self) -> None:
        """Release everything."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


def _say_nothing(level: int, text: bytes, data: object) -> None:
    """Take no notice of what llama.cpp logs."""
