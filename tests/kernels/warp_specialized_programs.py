"""Programs of the warp-specialised kernels, as steps of well-known models need them."""

from dataclasses import replace
from functools import cache

from ggsched.backend.program import Group
from ggsched.ir.dtype import BF16, F16, F32, MXFP4, Q4_0, Q8_0
from ggsched.passes import make_plan
from ggsched.plan.fusions import run_order
from ggsched_kernels import warp_profile
from ggsched_llm.graph import build_model_graph
from ggsched_testing.eager import bound_nodes
from tests.passes.machines import device, machine
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B, LLAMA_8B, spec_of

H200 = warp_profile(132, 232448, True)
WARP_SPECIALIZED = frozenset({"warp_specialized_rows", "warp_specialized_experts"})
DTYPES = (BF16, F16, F32, Q8_0, Q4_0, MXFP4)
MODELS = (LLAMA_1B, LLAMA_8B, GPT_OSS_20B)


class Memory:
    """A buffer for lowering."""

    def __init__(self, nbytes):
        self.nbytes = nbytes


def calls_of(hp, dtype, *, constant, n_tokens=1, profile=H200):
    """Return the calls of a step of a model, with every tensor in a place of its own."""
    from ggsched_cuda_kernels.kernel_selection import fusions_of, lower

    # Layers are alike, but for what follows the last one.
    hp = replace(hp, n_layer=2)
    graph = build_model_graph(spec_of(hp, dtype), n_tokens=n_tokens, n_kv=256, n_out=1, n_ctx=512)
    facts = replace(device("gpu:0", fusions=fusions_of(profile)), memory_nbytes=1 << 40)
    plan = make_plan(graph, machine(facts))
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory, constant_weights=constant)
    for f in plan.fusions:
        for k in f.nodes:
            nodes[k] = replace(nodes[k], group=Group(f.pattern, f.nodes))
    return lower([nodes[k] for k in run_order(len(nodes), plan.fusions)], profile)[0]


@cache
def warp_specialized_programs():
    """Return (source, definitions) of every such program in those models, sorted."""
    found = set()
    for hp in MODELS:
        for dtype in DTYPES:
            for call in calls_of(hp, dtype, constant=True):
                if getattr(call, "source", "") in WARP_SPECIALIZED:
                    found.add((call.source, call.defines))
    return sorted(found)


def label(program):
    source, defines = program
    known = dict(defines)
    dtype = next(name for name in known if name.startswith("W_"))
    form = "".join(
        name for name, key in (("-norm", "NORM"), ("-gated", "GATED")) if known[key] != "0"
    )
    return f"{source}-{dtype}-{known['NK']}x{known['ROWS']}-{known['STAGES']}{form}"
