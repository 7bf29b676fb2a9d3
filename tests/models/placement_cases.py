"""Machines and models whose choices of devices and homes are frozen in a table.

    python -m tests.models.placement_cases > tests/data/placements.json

writes the table anew. A choice that differs is looked at first: ADR 86 says which ones changed, and
why.
"""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

from ggsched.backend.offline_device import OfflineDevice, paper_devices
from ggsched.config import Settings
from ggsched.errors import GgschedError
from ggsched.ir.dtype import BF16, MXFP4, Q8_0
from ggsched.passes import make_plan
from ggsched_llm.batches import BatchSize
from ggsched_llm.default_devices import choose_devices
from ggsched_llm.fit import FitRequest
from ggsched_llm.load import Model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions
from tests.passes.machines import device, machine
from tests.passes.test_placement_default import branches
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B, LLAMA_8B, spec_of

MIB, GIB = 1 << 20, 1 << 30
SETTINGS = Settings(sanitize="off", verify=False, rates="off")
CPU = {"is_host": True, "imports_host_memory": True}
MODELS = {
    "tied": spec_of(replace(LLAMA_1B, n_layer=5, n_vocab=32768), BF16),
    "untied": spec_of(replace(LLAMA_8B, n_layer=6, n_vocab=32768), Q8_0),
    "experts": spec_of(replace(GPT_OSS_20B, n_layer=4, n_vocab=32768), BF16, MXFP4),
    "small": spec_of(replace(LLAMA_1B, n_layer=2, n_vocab=512, n_embd=256, n_ff=512), Q8_0),
}


def gpus(*memory, cpu=64 * GIB):
    """Return GPUs with so much memory, and perhaps a CPU beside them."""
    facts = [device(f"gpu:{i}", memory_nbytes=n) for i, n in enumerate(memory)]
    if cpu:
        facts.append(device("cpu:0", memory_nbytes=cpu, **CPU))
    return machine(*facts)


def processor(memory=8 * GIB, **opencl):
    """Return a processor with two backends."""
    pocl = {"kind": "accelerator", "imports_host_memory": True, "memory_nbytes": memory, **opencl}
    return machine(device("opencl:0", **pocl), device("cpu:0", memory_nbytes=memory, **CPU))


def cpus(count, memory=8 * GIB):
    """Return devices of one processor."""
    return machine(*(device(f"cpu:{i}", memory_nbytes=memory, **CPU) for i in range(count)))


FIT = FitRequest(256)
ONE, TWO, THREE = gpus(8 * GIB), gpus(8 * GIB, 8 * GIB), gpus(*3 * [8 * GIB])
LEVEL, UNEVEN = gpus(8 * GIB, 8 * GIB, cpu=0), gpus(8 * GIB, 2 * GIB)
SESSIONS = {
    "tied on a GPU": ("tied", ONE, {}),
    "tied on two GPUs": ("tied", TWO, {}),
    "tied on two GPUs without a CPU": ("tied", LEVEL, {}),
    "tied on uneven GPUs": ("tied", UNEVEN, {}),
    "tied where a copy has no room": ("tied", gpus(400 * MIB, 400 * MIB, cpu=0), {}),
    "untied on three GPUs": ("untied", THREE, {}),
    "untied on three GPUs without a CPU": ("untied", gpus(*3 * [8 * GIB], cpu=0), {}),
    "untied on GPUs that are too small": ("untied", gpus(300 * MIB, 300 * MIB), {}),
    "untied on a CPU": ("untied", cpus(1), {}),
    "untied on a processor": ("untied", processor(), {}),
    "untied by shares": ("untied", TWO, {"offload": Offload(tensor_split=(3.0, 1.0))}),
    "untied by memory": ("untied", UNEVEN, {"offload": Offload(split_by="memory")}),
    "untied by cost": ("untied", UNEVEN, {"offload": Offload(split_by="cost")}),
    "untied in equal numbers": ("untied", UNEVEN, {"offload": Offload(split_by="equal")}),
    "untied by cost on CPUs": ("untied", cpus(2), {"offload": Offload(split_by="cost")}),
    "untied by cost without room": (
        "untied", gpus(300 * MIB, 300 * MIB), {"offload": Offload(split_by="cost")}
    ),
    "untied by cost on a CPU": ("untied", cpus(1), {"offload": Offload(split_by="cost")}),
    "untied, three layers": ("untied", TWO, {"offload": Offload(n_gpu_layers=3)}),
    "experts on two GPUs": ("experts", TWO, {}),
    "experts of two blocks on the host": ("experts", TWO, {"offload": Offload(n_cpu_moe=2)}),
    "experts on a GPU and a processor": ("experts", ONE, {"offload": Offload(n_gpu_layers=2)}),
    "small by cost": ("small", TWO, {"placement": "cost"}),
    "fit tied, all fits": ("tied", ONE, {"fit": FIT}),
    "fit tied, half": ("tied", gpus(415 * MIB), {"fit": FIT}),
    "fit tied on two GPUs": ("tied", gpus(500 * MIB, 300 * MIB), {"fit": FIT}),
    "fit tied without a CPU": ("tied", gpus(700 * MIB, 500 * MIB, cpu=0), {"fit": FIT}),
    "fit tied, nothing fits": ("tied", gpus(50 * MIB, cpu=100 * MIB), {"fit": FIT}),
    "fit untied, a smaller context": ("untied", gpus(300 * MIB, cpu=1640 * MIB),
                                      {"fit": FitRequest(512), "n_ctx": 2048}),
    "fit untied on three GPUs": ("untied", gpus(600 * MIB, 500 * MIB, 400 * MIB), {"fit": FIT}),
    "fit untied on a CPU": ("untied", cpus(1), {"fit": FIT}),
    "fit untied on a processor": ("untied", processor(3 * GIB), {"fit": FIT}),
    "fit untied, two layers": (
        "untied", gpus(900 * MIB),
        {"offload": Offload(n_gpu_layers=2), "fit": FIT},
    ),
    "fit untied by shares": (
        "untied", TWO, {"fit": FIT, "offload": Offload(tensor_split=(3.0, 1.0))}
    ),
    "fit untied by memory": ("untied", UNEVEN, {"fit": FIT, "offload": Offload(split_by="memory")}),
    "fit untied by cost": ("untied", UNEVEN, {"fit": FIT, "offload": Offload(split_by="cost")}),
    "fit experts, all fits": ("experts", ONE, {"fit": FIT}),
    "fit experts, some": ("experts", gpus(1300 * MIB), {"fit": FIT}),
    "fit experts on two GPUs": ("experts", gpus(1200 * MIB, 700 * MIB), {"fit": FIT}),
    "fit experts with a margin": (
        "experts", gpus(1300 * MIB), {"fit": replace(FIT, margin=(600 * MIB, 0.05))}
    ),
    "fit experts, one block on the host": (
        "experts", ONE,
        {"offload": Offload(n_cpu_moe=1), "fit": FIT},
    ),
}  # fmt: skip
DEFAULTS = {
    "small on a processor": ("small", processor()),
    "tied on a processor": ("tied", processor()),
    "untied on a processor": ("untied", processor()),
    "untied, OpenCL too small": ("untied", processor(memory_nbytes=GIB)),
    "untied, no large buffers": ("untied", processor(max_allocation_nbytes=MIB)),
    "untied, neither is large enough": ("untied", processor(memory=GIB)),
    "tied, OpenCL lacks an op": ("tied", processor(lacks=("rope",))),
    "tied on GPUs": ("tied", TWO),
}
STEP = BatchSize(1, 256, 1).graph(MODELS["small"], 256)
GRAPHS = {
    "a step on two GPUs": (STEP, LEVEL),
    "a step on a GPU and a CPU": (STEP, ONE),
    "a step on a processor": (STEP, processor()),
    "two branches on two GPUs": (branches(2), LEVEL),
    "three branches on two GPUs": (branches(3), LEVEL),
    "three branches on a GPU and a CPU": (branches(3), ONE),
    "two branches on small GPUs": (branches(2), gpus(20 * MIB, 20 * MIB, cpu=0)),
}


def chosen_homes(model, topology, options):
    """Return what a session chooses."""
    sizes = {"n_ctx": 512, **options}
    file = SimpleNamespace(path="shape only", tensors={})
    try:
        opened = Session(
            Model(file, MODELS[model], None), paper_devices(topology),
            SessionOptions(**sizes), settings=SETTINGS,
        )  # fmt: skip
    except GgschedError as error:
        return {"error": error.one_line()}
    with opened as session:
        found, homes = session.options, {}
        for name, where in session.homes.devices.items():
            block, _, part = name.removeprefix("blk.").partition(".")
            kind = "experts" if "_exps" in part else "cache" if "cache" in part else "dense"
            key = f"{kind} {int(block):02}" if block.isdigit() else name
            homes.setdefault(key, set()).add(where)
        return {
            "n_ctx": found.n_ctx,
            "n_gpu_layers": found.offload.n_gpu_layers,
            "n_cpu_moe": found.offload.n_cpu_moe,
            "stage_layers": found.offload.stage_layers,
            "plans_kept": found.plans_kept,
            "homes": {k: "+".join(map(str, sorted(v))) for k, v in sorted(homes.items())},
            "reasons": [
                *(session.fit.reasons if session.fit else ()),
                *found.offload.stage_reasons,
            ],
        }


def chosen_devices(model, topology):
    """Return the default devices, and why."""
    devices = [OfflineDevice(topology, i) for i in range(len(topology.devices))]
    return {"reasons": [choose_devices(MODELS[model], 512, devices, SETTINGS).reason()]}


def chosen_nodes(graph, topology):
    """Return where nodes go by cost, and the candidates for that."""
    found = make_plan(graph, topology, placement="cost").placement
    return {
        "homes": "".join(str(c.device) for c in found.choices),
        "reasons": [
            f"{c.name} {c.seconds:.4g}, lacks {c.shortage_nbytes}" for c in found.candidates
        ],
    }


CASES = {
    **{name: (chosen_homes, *case) for name, case in SESSIONS.items()},
    **{f"devices of {name}": (chosen_devices, *case) for name, case in DEFAULTS.items()},
    **{name: (chosen_nodes, *case) for name, case in GRAPHS.items()},
}


def chosen(name):
    """Return what is chosen in a case, as plain data."""
    choose, *case = CASES[name]
    return json.loads(json.dumps(choose(*case)))


if __name__ == "__main__":
    rows = (f"{json.dumps(name)}: {json.dumps(chosen(name))}" for name in CASES)
    sys.stdout.write("{\n" + ",\n".join(rows) + "\n}\n")
