"""The default of schedulers: cost for graphs that nobody placed, and how good it is."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggsched.config import Settings
from ggsched.errors import PlanError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes import make_plan
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.place import Constraints
from ggsched.passes.placement.automatic import Automatic
from ggsched.plan.text import plan_text
from ggsched.scheduler import Scheduler
from ggsched.topology.caps import HOST_PROCESSOR
from ggsched.topology.cost import KernelRate, Link, MachineRates, Rates, guessed_rates
from tests.passes.machines import device, machine
from tests.support.verified_plans import verified_plan

WIDTH = 64
TWO = machine("gpu:0", "gpu:1")


def drawn_rates(random):
    """Return rates of two devices and the links between them that differ a lot."""
    pick = random.choice
    devices = tuple(
        Rates(
            pick((1e9, 3e9, 1e10)),
            pick((1e9, 1e10, 1e11)),
            1e11,
            1,
            pick((1e-6, 5e-6)),
            pick((1e-6, 2e-5)),
            pick((1e-6, 1e-5)),
        )
        for _ in range(2)
    )
    links = {
        (a, b): Link(pick((1e-6, 5e-6, 5e-5)), pick((1e8, 1e9, 1e10)))
        for a, b in product(range(-1, 2), repeat=2)
        if a != b
    }
    return MachineRates(devices, links, pick((0.0, 2e-6)), "drawn")


def drawn_graph(random, count):
    """Return products, sums and activations of a few of the results before each."""
    g = GraphBuilder()
    made = [g.input(f"x{i}", (32, WIDTH)) for i in range(2)]
    read = set()
    for i in range(count):
        kind, a = random.random(), random.choice(made[-4:])
        operands = [a]
        if kind < 0.5:
            made.append(g.mul_mat(g.weight(f"w{i}", (WIDTH, WIDTH)), a))
        elif kind < 0.7:
            made.append(g.silu(a))
        else:
            operands.append(random.choice(made[-5:]))
            made.append(g.add(*operands))
        read |= {t.id for t in operands}
    return g.build(*(t for t in made[2:] if t.id not in read))


def seconds(graph, rates, **wanted):
    placement = wanted.pop("placement", "ggml")
    plan = make_plan(graph, TWO, Constraints(rates=rates, **wanted), placement=placement)
    return predict_step(graph, plan, rates).seconds


def near_the_best(seed, count):
    random = Random(seed)
    graph, rates = drawn_graph(random, count), drawn_rates(random)
    pins = (dict(enumerate(where)) for where in product(range(2), repeat=count))
    best = min(seconds(graph, rates, pins=p) for p in pins)
    assert seconds(graph, rates, placement="cost") <= 1.05 * best


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20), count=st.sampled_from((3, 7, 8, 9)))
def test_cost_is_near_the_best_of_all_placements(seed, count):
    near_the_best(seed, count)


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20), count=st.integers(10, 12))
def test_cost_is_near_the_best_of_all_placements_of_12_nodes(seed, count):
    near_the_best(seed, count)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1 << 20), count=st.integers(1, 40))
def test_the_default_is_never_slower_than_one_device(seed, count):
    random = Random(seed)
    graph, rates = drawn_graph(random, count), drawn_rates(random)
    found = seconds(graph, rates, placement="auto")
    for number in range(2):
        assert found <= seconds(graph, rates, pins=dict.fromkeys(range(count), number))
    assert found <= seconds(graph, rates)


# --- imported graphs -------------------------------------------------------------------------


def towers(w, node):
    """Two encoders that meet in a product."""
    made = []
    for side in "ab":
        x = "x"
        for k in range(3):
            made.append(node("MatMul", f"{x} {w(128, 128)}", f"{side}m{k}"))
            made.append(node("Relu", f"{side}m{k}", f"{side}r{k}"))
            x = f"{side}r{k}"
    return [*made, node("Mul", "ar2 br2", "y")]


def heads(w, node):
    """Attention with a product for each head."""
    made = []
    for h in range(4):
        made += [node("MatMul", f"x {w(128, 128)}", f"{part}{h}") for part in "qkv"]
        made.append(node("Transpose", f"k{h}", f"t{h}", perm=[1, 0]))
        made.append(node("MatMul", f"q{h} t{h}", f"s{h}"))
        made.append(node("Softmax", f"s{h}", f"p{h}", axis=-1))
        made.append(node("MatMul", f"p{h} v{h}", f"o{h}"))
    made.append(node("Sum", "o0 o1 o2 o3", "y"))
    return made


def experts(w, node):
    """A mixture of four experts, each weighed by a gate."""
    made = []
    for e in range(4):
        made.append(node("MatMul", f"x {w(128, 256)}", f"u{e}"))
        made.append(node("Sigmoid", f"u{e}", f"g{e}"))
        made.append(node("Mul", f"u{e} g{e}", f"h{e}"))
        made.append(node("MatMul", f"h{e} {w(256, 128)}", f"d{e}"))
    return [*made, node("Sum", "d0 d1 d2 d3", "y")]


def inception(w, node):
    """Convolutions of several sizes beside each other."""
    made = [node("Reshape", "x image", "i")]
    for k, size in enumerate((1, 3, 5)):
        pad = [size // 2] * 4
        made.append(node("Conv", f"i {w(8, 8, size, size)}", f"c{k}", pads=pad))
        made.append(node("Relu", f"c{k}", f"r{k}"))
        made.append(node("Conv", f"r{k} {w(8, 8, 3, 3)}", f"e{k}", pads=[1] * 4))
    return [*made, node("Concat", "e0 e1 e2", "y", axis=1)]


def both_ways(w, node):
    """Recurrent networks over the sequence and over its reverse."""
    made = [node("Unsqueeze", "x one", "s")]
    for side, way in (("f", "forward"), ("b", "reverse")):
        weights = f"{w(1, 256, 128)} {w(1, 256, 64)}"
        made.append(node("LSTM", f"s {weights}", f"{side}", hidden_size=64, direction=way))
    return [*made, node("Concat", "f b", "y", axis=-1)]


def residual(w, node):
    """Blocks with two ways each, a cheap and a dear one."""
    made, x = [], "x"
    for k in range(3):
        for side in "ab":
            made.append(node("MatMul", f"{x} {w(128, 256)}", f"{side}u{k}"))
            made.append(node("Tanh", f"{side}u{k}", f"{side}t{k}"))
            made.append(node("MatMul", f"{side}t{k} {w(256, 128)}", f"{side}d{k}"))
        made.append(node("Add", f"ad{k} bd{k}", f"y{k}" if k < 2 else "y"))
        x = f"y{k}"
    return made


def imported(make):
    pytest.importorskip("onnx")
    from ggsched_import.onnx import from_onnx
    from tests.importers.onnx_files import model, node, tensor

    random = np.random.default_rng(0)
    weights = {"image": np.array([1, 8, 32, 32]), "one": np.array([1])}

    def weight(*shape):
        name = f"w{len(weights)}"
        weights[name] = random.standard_normal(shape).astype(np.float32)
        return name

    nodes = make(weight, node)
    rows = 64
    made = model(nodes, [tensor("x", [rows, 128])], [tensor("y", None)], weights)
    return from_onnx(made).bind()


UNEVEN = MachineRates(
    (
        Rates(1e10, 1e10, 1e10, 1, 1e-6, 2e-6, 1e-6),
        Rates(1.4e10, 1.4e10, 1.4e10, 1, 1e-6, 2e-6, 1e-6),
    ),
    {(a, b): Link(2e-6, 1e10) for a, b in product(range(-1, 2), repeat=2) if a != b},
    1e-6,
    "made",
)


def with_library(*names):
    return machine(*(device(n, ops=device(n).ops | {"nd.*"}) for n in names))


@pytest.mark.parametrize("make", [towers, heads, experts, inception, both_ways, residual])
def test_imported_graphs_are_faster_on_two_devices(make):
    """Than on either of them, and than with ggml's rules."""
    graph = imported(make).graph
    two = with_library("gpu:0", "gpu:1")

    def took(plan):
        return predict_step(graph, plan, UNEVEN).seconds

    free = Constraints(rates=UNEVEN)
    plan = verified_plan(graph, two, free, placement="auto")
    others = [make_plan(graph, two, free)]
    for number in range(2):
        pins = dict.fromkeys(range(len(graph.nodes)), number)
        others.append(make_plan(graph, two, replace(free, pins=pins)))
    assert took(plan) < 0.9 * min(map(took, others))
    assert {"gpu:0 alone", "gpu:1 alone", "ggml's rules"} <= {
        c.name for c in plan.placement.candidates
    }
    assert "gpu:1 alone" in plan_text(plan)
    for node, choice in zip(graph.nodes, plan.placement.choices, strict=True):
        for tid in node.inputs:
            t = graph.tensors[tid]
            if t.role.value == "weight" and sum(t.id in n.inputs for n in graph.nodes) == 1:
                assert plan.placement.homes[t.storage] == choice.device


def layers(w, node):
    """An encoder of text: three products beside each other in each layer."""
    made, x = [], "x"
    for k in range(8):
        for part in "qkv":
            made.append(node("MatMul", f"{x} {w(128, 128)}", f"{part}{k}"))
            made.append(node("Add", f"{part}{k} {w(128)}", f"{part}b{k}"))
        made.append(node("Transpose", f"kb{k}", f"t{k}", perm=[1, 0]))
        made.append(node("MatMul", f"qb{k} t{k}", f"s{k}"))
        made.append(node("Softmax", f"s{k}", f"p{k}", axis=-1))
        made.append(node("MatMul", f"p{k} vb{k}", f"o{k}"))
        made.append(node("MatMul", f"o{k} {w(128, 128)}", f"a{k}"))
        made.append(node("Add", f"a{k} {x}", f"r{k}"))
        made.append(node("MatMul", f"r{k} {w(128, 256)}", f"u{k}"))
        made.append(node("Sigmoid", f"u{k}", f"g{k}"))
        made.append(node("Mul", f"u{k} g{k}", f"h{k}"))
        made.append(node("MatMul", f"h{k} {w(256, 128)}", f"d{k}"))
        made.append(node("Add", f"d{k} r{k}", x := f"y{k}" if k < 7 else "y"))
    return made


def test_chains_beside_each_other_are_found_in_long_graphs():
    """A product and its bias move together: either alone makes the other device wait."""
    graph = imported(layers).graph
    two = with_library("gpu:0", "gpu:1")
    assert len(graph.nodes) > 100
    pins = dict.fromkeys(range(len(graph.nodes)), 1)
    took = {
        name: predict_step(graph, make_plan(graph, two, given, placement=policy), UNEVEN).seconds
        for name, policy, given in (
            ("cost", "auto", Constraints(rates=UNEVEN)),
            ("the faster one", "ggml", Constraints(rates=UNEVEN, pins=pins)),
        )
    }
    assert took["cost"] < 0.95 * took["the faster one"]


# --- when it applies -------------------------------------------------------------------------


def chains(*names, width=WIDTH):
    g = GraphBuilder()
    x = g.input("x", (32, width))
    ends = [g.mul_mat(g.weight(name, (width, width)), x) for name in names]
    while len(ends) > 1:
        ends = [*ends[2:], g.add(*ends[:2])]
    return g.build(*ends)


def test_it_is_ggml_s_rules_where_anything_is_given():
    graph = chains("a", "b")
    policy = Automatic()

    def decides(*devices, **given):
        return policy.for_graph(graph, machine(*devices), Constraints(**given)).key

    cost = policy.by_cost.key
    assert decides("gpu:0", "gpu:1") == cost
    assert decides("gpu:0") == "ggml"
    assert decides("gpu:0", "gpu:1", homes={"a": 1}) == "ggml"
    assert decides("gpu:0", "gpu:1", homes={"other": 1}) == cost
    assert decides("gpu:0", "gpu:1", pins={0: 1}) == "ggml"
    assert Automatic(max_nodes=2).for_graph(graph, TWO, Constraints()).key == "ggml"


def test_graphs_of_a_scheduler_share_weights_wherever_the_first_put_them():
    """A graph that would be elsewhere by itself follows the weights."""
    rates = replace(UNEVEN, links={k: Link(1e-6, 1e11) for k in UNEVEN.links})
    free = Constraints(rates=rates)
    both, one = chains("a", "b", width=256), chains("b", width=256)
    devices = ["cpu:0", "cpu:1"]
    eye = np.eye(256, dtype=np.float32)
    x = np.ones((32, 256), np.float32)
    with Scheduler(devices, weights={"a": eye, "b": 2 * eye}, settings=Settings()) as scheduler:
        first = scheduler.plan(both, free).placement
        assert {c.cause for c in first.choices} == {"cost"}
        for graph, factor in ((both, 3), (one, 2), (both, 3)):
            (y,) = scheduler.run(graph, {"x": x}, free).values()
            np.testing.assert_array_equal(y, factor * x)
        second = scheduler.draft(one, free).placement
        assert second.homes[one.named("b").id] == first.homes[both.named("b").id]


def test_nobody_can():
    two = machine(device("gpu:0", lacks=["add"]), device("gpu:1", lacks=["add"]))
    with pytest.raises(PlanError, match="no device supports add"):
        make_plan(chains("a", "b"), two, placement="auto")


def branches(count):
    """Return a graph of chains that meet at the end, each enough work to be worth a copy."""
    g = GraphBuilder()
    x = g.input("x", (32, 1024))
    ends = []
    for i in range(count):
        y = x
        for j in range(3):
            y = g.mul_mat(g.weight(f"w{i}.{j}", (1024, 1024)), y)
        ends.append(y)
    total = ends[0]
    for y in ends[1:]:
        total = g.add(total, y)
    return g.build(total)


def on_processors(*names):
    """Return a machine with a device on each of these processors, and equal rates."""
    devices = (device(f"cpu:{i}", is_host=True, processor=name) for i, name in enumerate(names))
    return machine(*devices)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_devices_on_one_processor_share_no_work(count):
    """Two devices on the same cores take as long as one, and the events between them besides."""
    graph = branches(count)
    used = {}
    for names in (("host", "host"), ("", ""), ("a", "b")):
        topology = on_processors(*names)
        rates = guessed_rates(topology)
        plan = make_plan(graph, topology, Constraints(rates=rates), placement="cost")
        used[names] = {choice.device for choice in plan.placement.choices}
    assert len(used["host", "host"]) == 1
    assert len(used["", ""]) == len(used["a", "b"]) == 2


def test_work_of_two_devices_on_one_processor_adds_up():
    """By prediction a graph cut in two there takes no less than on one device."""
    graph = branches(2)
    seconds = {}
    for names in (("host", "host"), ("", "")):
        topology = on_processors(*names)
        rates = guessed_rates(topology)
        for second in (0, 1):
            pins = {n.id: second if n.id in (3, 4, 5) else 0 for n in graph.nodes}
            plan = make_plan(graph, topology, Constraints(pins=pins, rates=rates))
            seconds[names, bool(second)] = predict_step(graph, plan, rates).seconds
    assert seconds[("host", "host"), True] >= seconds[("host", "host"), False]
    assert seconds[("", ""), True] < 0.7 * seconds[("", ""), False]


BESIDE = machine(
    device("cpu:0", kind="cpu", is_host=True, processor=HOST_PROCESSOR),
    device("x:0", kind="accelerator", processor=HOST_PROCESSOR),
)


def placed_beside(products, functions, pace=1e7):
    """Return where a graph runs beside a device that is so many times as fast as the cpu."""
    g = GraphBuilder()
    x = g.input("x", (256, 256))
    for i in range(4):
        x = g.silu(g.mul_mat(g.weight(f"w{i}", (256, 256)), x))
    kinds = [(1.0, 1.0), (products, functions)]
    devices = tuple(
        Rates(1e9 * p, 1e12, 1e12, 1, 1e-7, 1e-7, kernels=(KernelRate("silu", pace * f, 1e12),))
        for p, f in kinds
    )
    rates = replace(guessed_rates(BESIDE), devices=devices)
    plan = make_plan(g.build(x), BESIDE, Constraints(rates=rates), placement="cost")
    return {choice.device for choice in plan.placement.choices}


@pytest.mark.parametrize(("products", "functions", "used"), [
    (1.0, 1.0, {0}),
    (1.3, 1.3, {0}),  # by less than predictions are wrong
    (2.0, 2.0, {1}),
    (0.5, 8.0, {0}),  # a crossing for each node, for the sake of some of them
    (0.01, 1e3, {0}),
])  # fmt: skip
def test_another_device_on_the_processor_needs_a_clear_gain(products, functions, used):
    assert placed_beside(products, functions) == used


def test_the_other_device_alone_is_taken_where_sharing_gains_too_little():
    """Products are a little slower there, so sharing is predicted best, by a factor of two."""
    assert placed_beside(0.97, 1e3, pace=4e6) == {1}
