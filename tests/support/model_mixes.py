"""Models and devices to plan for: graphs from shapes or from files, machines from facts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ggsched.ir.dtype import F16, GGUF_DTYPES
from ggsched.ir.graph import Graph
from ggsched.ir.ops import OPS
from ggsched.passes.place import Constraints
from ggsched.topology import CopyPath, DeviceFacts, Topology, op_key
from ggsched_llm.graph import build_model_graph, model_needs
from ggsched_llm.hparams import HParams
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, find_homes
from ggsched_llm.spec import ModelSpec, WeightSpec, graph_dtype
from ggsched_testing.plan_builder import fake_device
from tests.support.transformers import MODELS

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    *(f"tests/data/oracle/{name}-tiny-f32.gguf" for name in ("llama", "qwen3moe", "gptoss")),
    "ggsched/data/addition-moe.gguf",
)
LAYERS = 32
MIXES = ("cpu", "gpu", "gpu + cpu, half", "gpu + cpu, experts")


def topology() -> Topology:
    """Return a GPU and a CPU with a direct copy path."""
    devices = (device_facts("gpu:0", "gpu"), device_facts("cpu:0", "cpu"))
    copies = {(0, 1): CopyPath(0, 1, 0), (1, 0): CopyPath(1, 0, 0)}
    return Topology(devices, copies, {(0, 1): "thread", (1, 0): "thread"})


def device_facts(name: str, kind: str) -> DeviceFacts:
    """Return a device of 16 GiB that supports every op on every type of weight."""
    return fake_device(
        name,
        kind=kind,
        memory_nbytes=1 << 34,
        alignment=64,
        is_host=kind == "cpu",
        ops=frozenset(op_key(op, t.name) for op in OPS for t in GGUF_DTYPES),
    )


def large_models() -> list[HParams]:
    """Return llama, qwen3moe and gpt-oss at their published sizes with 32 layers."""
    return [replace(hparams, n_layer=LAYERS) for hparams in MODELS]


def large_spec(hparams: HParams) -> ModelSpec:
    """Return a model of which there is no file, matrices f16."""
    weights = {
        need.name: WeightSpec(need.shape, graph_dtype(need, F16, "packed"))
        for need in model_needs(hparams)
    }
    return ModelSpec(hparams, weights)


def specs() -> Iterator[tuple[str, ModelSpec]]:
    """Yield name and specification of each model of the tables."""
    for file in FILES:
        yield Path(file).stem, load_model(ROOT / file).spec
    for hparams in large_models():
        yield f"{hparams.name}, {LAYERS} layers", large_spec(hparams)


def decode_graph(spec: ModelSpec, n_kv: int) -> Graph:
    """Return the graph of a decoding step over a number of rows of the cache."""
    n_kv = min(n_kv, spec.hparams.n_ctx_train)
    return build_model_graph(spec, n_tokens=1, n_kv=n_kv, n_out=1, n_ctx=n_kv)


def mix(name: str, spec: ModelSpec) -> tuple[Topology, Constraints]:
    """Return a machine, and where the weights of a model live on it."""
    both = topology()
    gpu, cpu = both.devices
    if name in ("cpu", "gpu"):
        machine = Topology((gpu if name == "gpu" else cpu,))
        return machine, find_homes(spec, machine, Offload()).constraints()
    layers = spec.hparams.n_layer
    offload = (
        Offload(n_gpu_layers=(layers + 1) // 2)
        if name.endswith("half")
        else Offload(n_cpu_moe=layers)
    )
    return both, find_homes(spec, both, offload).constraints()
