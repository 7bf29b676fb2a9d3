"""The graph of a plan: do the commands compute it?

A plan alone says which op each node is, but not which bytes of its operands it needs. With the
graph every step is compared with its node. Without it only what an op can never do is found.
"""

from collections.abc import Iterator, Sequence

from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.ir.ops import OPS
from ggsched.plan.bundle import HostSlot, Plan
from ggsched.plan.effects import Effects, Step
from ggsched.sanitize.relations import find_disagreements_with
from ggsched.sanitize.report import Finding


def find_overwritten_operands(plan: Plan, all_effects: Sequence[Effects]) -> list[Finding]:
    """Return results that lie on operands of their own node where the op does not allow it.

    A result may lie on an operand of the same value. Within a fusion group this is checked for the
    group.
    """
    findings: list[Finding] = []
    grouped = {node for fusion in plan.fusions for node in fusion.nodes}
    may = {name: op.may_overwrite for name, op in OPS.items()}
    allowed = [may.get(node.op) for node in plan.nodes]
    for i, effects in enumerate(all_effects):
        for step in effects.steps:
            node, operands, modes = step
            if node < 0 or node in grouped or modes[-1] not in "wp":
                continue
            may_be_it = allowed[node]
            if may_be_it is None:  # an op that is not known
                continue
            result = operands[-1]
            arena, start, nbytes = result
            k, end = -1, start + nbytes
            for region in operands:
                k += 1  # faster than to enumerate
                if region is result and (modes[k] != "r" or k in may_be_it):
                    continue  # most results lie like this
                near, first, length = region
                if near == arena and first < end and start < first + length and modes[k] == "r":
                    bound = plan.splits.bindings[node]
                    if bound[k] != bound[-1] and not (k in may_be_it and region == result):
                        findings.append(_overwritten(i, step, k))
    return findings


def _overwritten(i: int, step: Step, k: int) -> Finding:
    region = step.operands[k]
    who = f"{show('command', i)} {show('node', step.node)}"
    what = f"{who} writes its result onto operand {k} at {region.text} while it reads it"
    return Finding("reuse", what, i, "keep them apart", *region.span)


def find_wrong_slots(plan: Plan) -> list[Finding]:
    """Return inputs that do not lie in a value of their own storage."""
    findings = []
    for slot in plan.inputs:
        storage = plan.splits.values[slot.value].storage
        if slot.tensor != storage:
            what = f"input {slot.name!r} is {show('tensor', slot.tensor)}, but lies in"
            what += f" {show('value', slot.value)} of {show('tensor', storage)}"
            findings.append(Finding("graph", what, -1, "give it a value of its own storage"))
    return findings


def find_departures(plan: Plan, all_effects: Sequence[Effects], graph: Graph) -> list[Finding]:
    """Return in what a plan departs from its graph."""
    if plan.graph != graph.digest:
        what = f"the plan is of graph {plan.graph}, not of {graph.digest}"
        return [Finding("graph", what, -1, "check it with its own graph")]
    if len(plan.nodes) != len(graph.nodes):
        what = f"the plan has {len(plan.nodes)} nodes, the graph {len(graph.nodes)}"
        return [Finding("graph", what, -1, "plan the graph again")]
    findings = [*_wrong_ops(plan, graph), *_wrong_outputs(plan, graph)]
    findings += find_disagreements_with(graph, plan)
    for i, effects in enumerate(all_effects):
        for step in effects.steps:
            if step.node >= 0:
                findings += _wrong_step(plan, graph, i, step)
    return findings


def _wrong_ops(plan: Plan, graph: Graph) -> Iterator[Finding]:
    for node, info in zip(graph.nodes, plan.nodes, strict=True):
        if node.op != info.op:
            what = f"{show('node', node.id)} is {info.op} in the plan and {node.op} in the graph"
            yield Finding("graph", what, -1, "plan the graph again")


def _wrong_outputs(plan: Plan, graph: Graph) -> Iterator[Finding]:
    if tuple(slot.tensor for slot in plan.outputs) != tuple(graph.outputs):
        yield Finding("graph", "the outputs are not those of the graph", -1, "keep their order")
        return
    for slot in plan.outputs:
        yield from _wrong_output(plan, graph, slot)
    for slot in plan.inputs:
        name = graph.tensors[slot.tensor].name if slot.tensor < len(graph.tensors) else ""
        if name != slot.name:
            what = f"input {slot.name!r} is {show('tensor', slot.tensor)}, which is {name!r}"
            yield Finding("graph", what, -1, "name it as in the graph")


def _wrong_output(plan: Plan, graph: Graph, slot: HostSlot) -> Iterator[Finding]:
    tensor, value = graph.tensors[slot.tensor], plan.splits.values[slot.value]
    is_inside = value.start <= tensor.offset <= tensor.end <= value.end
    if value.storage != tensor.storage or not is_inside:
        what = f"output {slot.name!r} is {show('tensor', tensor.id)}, which"
        what += f" {show('value', value.id)} does not hold"
        yield Finding("graph", what, -1, "read it from a value that holds it")


def _wrong_step(plan: Plan, graph: Graph, i: int, step: Step) -> Iterator[Finding]:
    node, who = graph.nodes[step.node], f"{show('command', i)} {show('node', step.node)}"
    bound, values = plan.splits.bindings[step.node], plan.splits.values
    if step.modes != node.modes:
        what = f"{who} accesses its operands as {step.modes}, {node.op} as {node.modes}"
        yield Finding("graph", what, i, f"declare {node.modes}")
    for region, tid, vid in zip(step.operands, node.tensors, bound, strict=False):
        tensor, value, home = graph.tensors[tid], values[vid], plan.memory.regions[vid]
        start = home.offset + tensor.offset - value.start
        due = home._replace(offset=start, nbytes=tensor.nbytes)
        if value.storage != tensor.storage:
            what = f"{who} takes {show('value', vid)}, which is not of {show('tensor', tid)}"
            yield Finding("graph", what, i, "bind it to a value that holds it")
        elif region != due:
            what = f"{who} uses {region.text} as {show('tensor', tid)}, which lies at {due.text}"
            yield Finding("graph", what, i, "", *region.span)
