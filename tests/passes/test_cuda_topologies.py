"""Planning for machines with NVIDIA GPUs, from topologies that were recorded on one."""

from pathlib import Path

import pytest

from ggsched.plan.command import Copy, Download, HostSync, Upload
from ggsched.plan.splits import HOST
from ggsched.run.capture_plan import plan_capture
from ggsched.sanitize import check_plan
from ggsched.topology.codec import topology_from_text
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, find_homes
from tests.models.helpers import ORACLE
from tests.support.verified_plans import verified_plan

FOLDER = Path(__file__).parent.parent / "data" / "topologies"
NAMES = ["h200", "h200-cpu", "h200-two-logical", "h200-two-logical-cpu", "h200-two-gpus"]
PAIRS = ["h200-two-logical", "h200-two-gpus"]
MODELS = ["llama-tiny-f32", "gptoss-tiny-f32"]


def topology(name):
    return topology_from_text((FOLDER / f"{name}.json").read_bytes())


def planned(name, model, n_tokens, **offload):
    machine, spec = topology(name), load_model(ORACLE / f"{model}.gguf").spec
    graph = build_model_graph(spec, n_tokens=n_tokens, n_kv=32, n_out=1, n_ctx=64)
    homes = find_homes(spec, machine, Offload(**offload)).constraints()
    return verified_plan(graph, machine, homes), machine


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_tokens", [1, 16])
@pytest.mark.parametrize("name", NAMES)
def test_plans_are_sound(name, model, n_tokens):
    for layers in (None, 1):
        plan, _ = planned(name, model, n_tokens, n_gpu_layers=layers)
        assert check_plan(plan).is_clean


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PAIRS)
def test_two_devices_talk_without_the_host(name, model):
    plan, machine = planned(name, model, 16)
    used = {s.device for s in plan.splits.splits}
    assert used == {0, 1}, "both get layers"
    assert any(isinstance(c, Copy) for c in plan.commands)
    values = plan.splits.values
    for transfer in plan.splits.transfers:
        ends = {values[transfer.src].device, values[transfer.dst].device}
        assert HOST not in ends or ends & {0, 1}
    kinds = [type(c) for c in plan.commands]
    last = max(i for i, kind in enumerate(kinds) if kind is Download)
    assert HostSync not in kinds[:last], "the host waits for the logits only"
    assert all(machine.wait_path(i, j) == "native" for i in (0, 1) for j in (0, 1))


@pytest.mark.parametrize("model", MODELS)
def test_a_decoding_step_is_one_graph(model):
    plan, _ = planned("h200", model, 1)
    found = plan_capture(plan, {0})
    (segment,) = found.segments
    captured = plan.commands[segment.start : segment.stop]
    kinds = {type(c) for c in plan.commands} - {type(c) for c in captured}
    assert Upload not in kinds
    assert Download not in kinds
    assert sum(isinstance(c, HostSync) for c in plan.commands) == 1
    assert plan.fusions, "norms and rotations of a GPU are fused"
