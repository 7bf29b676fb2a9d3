"""Graphs of transformers at real sizes, from shapes alone: no file, no weights."""

from ggsched.ir.dtype import F16
from ggsched.ir.graph import Graph
from ggsched_llm.graph import build_model_graph, model_needs
from ggsched_llm.hparams import HParams, RopeParams
from ggsched_llm.spec import ModelSpec, WeightSpec, graph_dtype

CONTEXT = 4096

# Published sizes: Llama 3 8B, Qwen3 30B-A3B, gpt-oss-20b.
LLAMA = HParams(
    "llama", "llama-8b", 8192, 128256, 4096, 32, 32, 8, 128, 14336, 1e-5, 128**-0.5,
    RopeParams(128, "adjacent", 500000.0),
)  # fmt: skip
QWEN3MOE = HParams(
    "qwen3moe", "qwen3-30b-a3b", 40960, 151936, 2048, 48, 32, 4, 128, 768, 1e-6, 128**-0.5,
    RopeParams(128, "halves", 1000000.0), n_expert=128, n_expert_used=8,
)  # fmt: skip
GPTOSS = HParams(
    "gpt-oss", "gpt-oss-20b", 131072, 201088, 2880, 24, 64, 8, 64, 2880, 1e-5, 64**-0.5,
    RopeParams(64, "halves", 150000.0), n_expert=32, n_expert_used=4, window=128,
)  # fmt: skip
MODELS = (LLAMA, QWEN3MOE, GPTOSS)


def model_graph(hparams: HParams, n_tokens: int, n_kv: int) -> Graph:
    """Return the graph of one micro-batch, all weights present and f16 where they are matrices.

    Args:
        hparams: Sizes of the model.
        n_tokens: Tokens in the micro-batch, all of which but one get no logits.
        n_kv: Rows of the KV cache that attention looks at.
    """
    weights = {
        need.name: WeightSpec(need.shape, graph_dtype(need, F16, "packed"))
        for need in model_needs(hparams)
    }
    spec = ModelSpec(hparams, weights)
    return build_model_graph(
        spec, n_tokens=n_tokens, n_kv=n_kv, n_out=1, n_ctx=CONTEXT, kv_dtype=F16
    )
