"""Products that begin with a sum over GPUs, whose rows have been pushed; see ``test_fibers``."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from ggsched.backend.program import Group, groups_of
from ggsched.ir.builder import GraphBuilder
from ggsched_kernels.calls import MAX_PEERS
from ggsched_kernels.fault_words import FaultCodes
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels import test_fibers
from tests.kernels.test_fibers import H200, NEEDS, Memory, laid_out
from tests.kernels.test_fibers_warp_specialized import Case, check, product_of, values_of

pytestmark = NEEDS

PATIENCE_MS = 3
UNITS = 3


def sum_graph(gpus, c, form="three", *, is_first=True):
    """Return a graph, its groups, and the names of the rows that are added up.

    It has the sum of a row of each GPU and the residual, the norm, and products of that.
    """
    g = GraphBuilder("pushed rows")
    names = [f"part{i}" for i in range(gpus)]
    rows = [g.input(name, (1, c.k)) for name in names]
    z, total, made = g.input("z", (1, c.k)), rows[0], []
    for row in rows[1:]:
        total = g.add(total, row)
        made.append(total)
    y = g.add(total, z) if is_first else g.add(z, total)
    x = g.mul(g.rms_norm(y, 1e-5), g.weight("norm", (c.k,)))
    groups = [("add+add", (k, k + 1)) for k in range(0, gpus, 2)]
    groups.append(("rms_norm+mul", (gpus, gpus + 1)))
    kept = [made[1]] if gpus > 2 else []
    if form == "gated":
        gate, up = (product_of(g, c, x, name, c.rows) for name in ("gate", "up"))
        groups.append(("mul_mat*2+swiglu", tuple(gpus + 2 + i for i in range(3))))
        return g.build(*kept, y, x, g.swiglu(gate, up)), groups, names
    extents = (c.rows,) if form == "last" else (c.rows, 2, c.rows // 2 + 1)
    products = [product_of(g, c, x, f"w{i}", n) for i, n in enumerate(extents)]
    return g.build(*kept, y, x, *products), groups, names


def grouped(nodes, groups):
    nodes = [*nodes]
    for pattern, members in groups:
        for i in members:
            nodes[i] = replace(nodes[i], group=Group(pattern, members))
    return nodes


def lowered(nodes, groups, **profile):
    from ggsched_cuda_kernels.kernel_selection import lower

    return lower(grouped(nodes, groups), replace(H200, num_sms=UNITS, **profile))[0]


class Meeting:
    """A call whose rows lie where GPUs have pushed them, and its words."""

    def __init__(self, pushed, rows, signals):
        self.own = [np.array([s], np.uint32) for s in signals]
        self.peers = [np.zeros(1, np.uint32) for _ in signals]
        self.arrived = np.zeros(1, np.uint32)
        self.staged = np.concatenate(rows)
        given = [self.staged.ctypes.data, self.arrived.ctypes.data]
        given += [a.ctypes.data for pair in zip(self.own, self.peers, strict=True) for a in pair]
        given += [0] * (2 * (MAX_PEERS - len(signals))) + [PATIENCE_MS * 1_000_000]
        args = list(pushed.call.args)
        args[pushed.staged : pushed.staged + len(given)] = [v.to_bytes(8, "little") for v in given]
        self.call = replace(pushed.call, args=tuple(args))


CASES = [
    (2, "three", Case("", "bf16", 320, rows=70)),
    (2, "gated", Case("", "f16", 288)),
    (2, "three", Case("", "q8_0", 96, rows=30, inside=True)),
    (4, "three", Case("", "bf16", 2880, rows=40)),
    (4, "gated", Case("", "mxfp4", 320)),
]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("gpus", "form", "case"), CASES, ids=str)
def test_pushed_rows(runner, gpus, form, case, is_first):
    """All that the calls it replaces compute, from rows that lie elsewhere, and words are zeros."""
    graph, groups, names = sum_graph(gpus, case, form, is_first=is_first)
    values = values_of(graph)
    nodes, memory = laid_out(graph, values)
    calls = lowered(nodes, groups)
    pushed = calls[0].pushed
    assert [c.kernel for c in calls] == ["sum_norm", "warp_specialized_rows"]
    assert pushed.covered == 2
    assert pushed.nbytes == 4 * case.k
    inputs = {t.name: memory[t.id] for t in graph.tensors if t.name in names}
    assert [place for place, _ in pushed.parts] == [inputs[name] for name in names]
    for name in names:
        inputs[name].view[:] = 0xFF  # NaN: it is not read there
    meeting = Meeting(pushed, [values[n].reshape(-1) for n in names], [1] * (gpus - 1))
    runner.fault[:] = 0
    runner.run(meeting.call)
    check(graph, memory, run_oracle(graph, values))
    assert not any(word.any() for word in (*meeting.own, meeting.arrived))
    assert [word[0] for word in meeting.peers] == [1] * (gpus - 1), "one group signals"
    assert not runner.fault.any()


def test_one_whom_somebody_does_not_meet_gives_up(runner):
    """The others are signalled all the same, and the message names the sum."""
    graph, groups, names = sum_graph(4, Case("", "bf16", 320))
    values = values_of(graph)
    nodes, _memory = laid_out(graph, values)
    pushed = lowered(nodes, groups)[0].pushed
    meeting = Meeting(pushed, [values[n].reshape(-1) for n in names], [1, 0, 1])
    label = nodes[3].label
    runner.fault[:] = 0
    runner.run(meeting.call, {label: 1})
    codes = FaultCodes("cuda:0.q0")
    codes.argument(label)
    fault = codes.fault(runner.fault.tolist())
    runner.fault[:] = 0
    assert label in str(fault)
    assert all(word.all() for word in meeting.peers)
    assert not meeting.arrived.any()


TRACED = {
    "POLL(seen, word)": "(met_ = first_ + 1, (seen) = *(word))",
    "EARLY_LET_GO()": "(let_go++, too_soon += met_ != first_ + 1)",
    # Consumer warps are late: the producer warp has its stages before they look at the words.
    "EARLY_WAIT()": "for (int i_ = 0; LANE < LANES && i_ < 64; i_++) __syncwarp()",
}
TRACE = """
static int met_; /* the last thread block that has read its words, from 1 on */
extern "C" { int let_go = 0, too_soon = 0; }
"""


@pytest.mark.parametrize("rows", [1, 40, 3000])
def test_the_successor_is_launched_when_the_words_have_been_read(runner, monkeypatch, rows):
    """It may prefetch what other GPUs wrote before they set these words (``pdl_prefetch``)."""
    for word, host in TRACED.items():
        monkeypatch.setitem(test_fibers.WORDS, word, host)
    plain = test_fibers.host_text
    monkeypatch.setattr(test_fibers, "host_text", lambda call: f"{TRACE}// {rows}\n{plain(call)}")
    graph, groups, names = sum_graph(2, Case("", "bf16", 320, rows=rows))
    values = values_of(graph)
    nodes, memory = laid_out(graph, values)
    pushed = lowered(nodes, groups)[0].pushed
    meeting = Meeting(pushed, [values[n].reshape(-1) for n in names], [1])
    own = test_fibers.Runner(runner.folder)
    own.run(meeting.call)
    check(graph, memory, run_oracle(graph, values))
    (library,) = own.libraries.values()
    let_go, too_soon = (ctypes.c_int.in_dll(library, n).value for n in ("let_go", "too_soon"))
    assert let_go >= UNITS - (rows == 1), "the end of a thread block without rows counts too"
    assert not too_soon


def test_the_last_product_can_write_to_all_gpus(runner):
    """Where GPUs read each other's memory; no other product has the arguments."""
    graph, groups, _ = sum_graph(2, Case("", "bf16", 320, rows=70), "last")
    values = values_of(graph)
    nodes, memory = laid_out(graph, values)
    assert lowered(nodes, groups)[-1].also is None
    calls = lowered(nodes, groups, reads_peers=True)
    assert calls[0].pushed is None, "to write its result to others counts more"
    also = calls[-1].also
    assert also.places == 1 + MAX_PEERS
    others = [Memory(also.nbytes) for _ in range(3)]
    args = [*calls[-1].args]
    for i, other in enumerate(others):
        args[also.arg + i] = other.view.ctypes.data.to_bytes(8, "little")
    runner.run(calls[0])
    runner.run(replace(calls[-1], args=tuple(args)))
    check(graph, memory, run_oracle(graph, values))
    found = also.buffer.view[also.offset :][: also.nbytes]
    for other in others:
        assert found.tobytes() == other.view.tobytes()
        assert (other.bytes[-32:] == 0xFF).all()


@pytest.mark.parametrize("below", ["z", "y"])
def test_results_that_other_groups_still_read_are_not_pushed_over(below):
    """A result that lies on the residual: another thread block may not have read that yet."""
    graph, groups, names = sum_graph(2, Case("", "bf16", 320))
    values = values_of(graph)
    _, memory = laid_out(graph, values)
    place = next(t for t in graph.tensors if t.name == "z")
    which = 0 if below == "z" else 1
    memory[graph.tensors[graph.outputs[which]].storage] = memory[place.id]
    assert lowered(bound_nodes(graph, memory), groups)[0].pushed is None
    # A row of this GPU is free: what is read is its copy.
    _, memory = laid_out(graph, values)
    own = next(t for t in graph.tensors if t.name == names[0])
    memory[graph.tensors[graph.outputs[0]].storage] = memory[own.id]
    assert lowered(bound_nodes(graph, memory), groups)[0].pushed is not None


def test_what_cannot_be_one_call(monkeypatch):
    """A call behind it that reads early what it writes, or groups that other calls compute."""
    from ggsched_cuda_kernels.warp_specialized import pushed_rows

    graph, groups, _ = sum_graph(2, Case("", "bf16", 320))
    nodes, _ = laid_out(graph, values_of(graph))
    calls = lowered(nodes, groups)
    assert calls[0].pushed is not None
    seen = []

    def early(call, writes):
        seen.append((call, len(list(writes))))
        return True

    monkeypatch.setattr(pushed_rows, "reads_early", early)
    assert lowered(nodes, groups)[0].pushed is not None, "nothing is behind it"
    more = GraphBuilder("more")
    y = more.scale(more.input("x", (1, 320)), 2.0)
    behind, _ = laid_out(more.build(y), {"x": np.zeros((1, 320), np.float32)})
    assert lowered([*nodes, *behind], groups)[0].pushed is None
    ((call, writes),) = seen
    assert (call.kernel, writes) == ("unary", len(nodes))
    of_program = list(groups_of(grouped(nodes, groups)))
    assert pushed_rows.pushed_rows(of_program, calls, [2, 5], H200) is not None
    assert pushed_rows.pushed_rows(of_program, calls, [2, 6], H200) is None


def test_rows_that_lanes_cannot_keep():
    """Of a norm's weight a lane keeps as much as of the row, so rows are half as long at most."""
    graph, groups, _ = sum_graph(2, Case("", "bf16", 17408, rows=3))
    nodes, _ = laid_out(graph, values_of(graph))
    calls = lowered(nodes, groups)
    assert [c.kernel for c in calls] == ["sum_norm", "warp_specialized_rows"]
    assert calls[0].pushed is None
