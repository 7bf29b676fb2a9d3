"""Planning for a machine that is not present, from a file that was written there.

``ggsched devices --json > machine.json`` writes it on that machine. Here it describes an NVIDIA
H200 with its host; neither is needed. On the command line:

    ggsched plan MODEL --topology machine.json --memory
"""

from pathlib import Path

import ggsched
from ggsched.backend.offline_device import paper_devices
from ggsched.sanitize import check_plan
from ggsched.topology.codec import restricted, topology_from_text
from ggsched.units import nbytes_text
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions

MODEL = Path(ggsched.__file__).parent / "data" / "addition-moe.gguf"
MACHINE = Path(__file__).parents[1] / "tests" / "data" / "topologies" / "h200-cpu.json"


def main():
    topology = topology_from_text(MACHINE.read_bytes(), MACHINE.name)
    for device in topology.devices:
        print(f"{device.name}: {device.description}, {nbytes_text(device.memory_nbytes)}")

    model = load_model(MODEL)
    for names, layers in ((["cuda:0", "cpu:0"], None), (["cuda:0", "cpu:0"], 2), (["cpu:0"], 0)):
        machine = paper_devices(restricted(topology, names))
        options = SessionOptions(n_ctx=64, offload=Offload(n_gpu_layers=layers))
        with Session(model, machine, options) as session:
            plan = session.plan(n_tokens=8)
            need = session.memory_need(8, 8)
        print(f"\n{', '.join(names)}, -ngl {'all' if layers is None else layers}:")
        print(f"  {len(plan.splits.splits)} splits, {len(plan.commands)} commands")
        print(f"  races: {len(check_plan(plan).findings)}")
        for i, name in enumerate(names):
            print(f"  {name} needs {nbytes_text(need.peak[i].total)}")


if __name__ == "__main__":
    main()
