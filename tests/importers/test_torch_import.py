"""What ``from_torch`` makes of a program: graph, weights, names, shapes, errors."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402

import ggsched  # noqa: E402
from ggsched.errors import GgschedError, ModelError, UsageError  # noqa: E402
from ggsched.ir.tensor import Role  # noqa: E402
from ggsched_import.torch import converts  # noqa: E402
from tests.importers.torch_programs import (  # noqa: E402
    Lambda,
    Recurrent,
    compare,
    exported,
    mlp,
    resnet,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_mlp_with_a_batch_of_any_size():
    model = compare(
        mlp(), (torch.randn(3, 8),), dynamic_shapes=({0: Dim("n")},), more=[(torch.randn(5, 8),)]
    )
    (port,) = model.inputs.values()
    symbol = port.shape[0]
    assert isinstance(symbol, str)
    assert model.bind({symbol: 5}) is model.bind(shapes={"input": (5, 8)})
    assert model.bind({symbol: 5}) is not model.bind({symbol: 4})
    with pytest.raises(UsageError, match="is open"):
        _ = model.graph


def test_stack_of_residual_blocks():
    x = torch.randn(2, 3, 32, 32)
    more = [(torch.randn(3, 3, 32, 32),)]
    compare(resnet(), (x,), dynamic_shapes=({0: Dim("n")},), more=more)


def test_transformer_encoder_and_decoder():
    stack = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
    compare(stack, (torch.randn(2, 5, 16), torch.randn(2, 3, 16)), devices=("cpu:0", "cpu:1"))


class Rotary(nn.Module):
    """Rotary embeddings as the first llama had them, with a complex buffer."""

    def __init__(self, pairs, places):
        super().__init__()
        turns = torch.outer(torch.arange(places), 100.0 ** (-torch.arange(pairs) / pairs))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(turns), turns))

    def forward(self, xq, xk, bias):
        freqs_cis = self.freqs_cis[: xq.shape[1]].view(1, xq.shape[1], 1, -1)
        turned = [
            torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * freqs_cis
            for x in (xq, xk)
        ]
        return *(torch.view_as_real(x).flatten(3) for x in turned), turned[0] + bias


def test_rotary_embeddings_of_complex_numbers_on_two_devices():
    module = Rotary(4, 16)
    args = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 1, 8), torch.tensor([1j, 2, 3 - 1j, 0])
    model = compare(module, args, devices=("cpu:0", "cpu:1"))
    assert str(model.inputs["bias"]) == "bias c64[4]"
    assert model.bind().inputs["bias"].shape == (4, 2)
    with ggsched.Scheduler(["cpu:0"], weights=model.weight) as scheduler:
        found = model.run(scheduler, [a.numpy() for a in args])
    np.testing.assert_allclose(found["output.2"], module(*args)[2], atol=1e-5)


def test_recurrent_networks_are_nodes_and_outputs_keep_their_structure():
    model = compare(Recurrent(), (torch.randn(2, 5, 8),))
    assert model.outputs == ("output.0", "output.1.h", "output.1.c", "output.2", "output.3")
    ops = [n.op for n in model.graph.nodes]
    assert [op for op in ops if op in ("nd.lstm", "nd.gru", "nd.rnn")] == [
        "nd.lstm", "nd.lstm", "nd.gru", "nd.rnn",
    ]  # fmt: skip


def test_weights_are_shared_not_copied():
    module = nn.Linear(4, 3)
    model = ggsched.from_torch(exported(module, (torch.randn(2, 4),)))
    assert set(model.weights) == {"weight", "bias"}
    assert model.weights["weight"].ctypes.data == module.weight.data_ptr()
    assert [n.op for n in model.graph.nodes] == ["mul_mat", "add"]
    assert {t.shape for t in model.graph.roots(Role.WEIGHT)} == {(3, 4), (3,)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Embedding(6, 4)
        self.b = nn.Linear(4, 6, bias=False)
        self.b.weight = self.a.weight

    def forward(self, i):
        return self.b(self.a(i))


def test_tied_weights_are_one():
    model = compare(Tied(), (torch.tensor([[1, 5, 0]]),))
    assert len(model.weights) == 1


@pytest.mark.parametrize(
    ("kind", "atol"), [(torch.float16, 5e-3), (torch.bfloat16, 5e-2), (torch.float64, 1e-10)]
)
def test_weights_of_other_types(kind, atol):
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).to(kind)
    compare(module, (torch.randn(3, 8, dtype=kind),), atol=atol)


@pytest.mark.parametrize(("kind", "name"), [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_products_have_weights_of_16_bits(kind, name):
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).to(kind)
    model = compare(module, (torch.randn(2, 3, 8, dtype=kind),), atol=5e-2)
    graph = model.graph
    factors = [graph.tensors[n.inputs[0]] for n in graph.nodes if n.op == "mul_mat"]
    assert [t.dtype.name for t in factors] == [name, name]
    for t, layer in zip(factors, (module[0], module[2]), strict=True):
        assert model.weights[t.name].ctypes.data == layer.weight.data_ptr()


def test_matrices_of_bfloat16_on_the_right_keep_16_bits():
    """As in layers of GPT-2, whose weights are the other way around."""

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = (nn.Parameter(torch.randn(*shape)) for shape in ((8, 6), (6,)))

        def forward(self, x):
            return torch.addmm(self.b, x, self.w), x @ self.w, self.w.T @ x.T

    x = torch.randn(3, 8, dtype=torch.bfloat16)
    graph = compare(Turned().to(torch.bfloat16), (x,), atol=5e-2).graph
    factors = [graph.tensors[n.inputs[0]].dtype.name for n in graph.nodes if n.op == "mul_mat"]
    assert factors[:2] == ["bf16", "bf16"]


def test_a_weight_of_16_bits_that_is_no_factor_alone():
    model = compare(Tied().to(torch.bfloat16), (torch.tensor([[1, 5, 0]]),), atol=5e-2)
    assert sorted(t.dtype.name for t in model.graph.roots(Role.WEIGHT)) == ["bf16", "f32"]


def test_weights_that_are_not_contiguous():
    class Strided(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 8)[::2].t())
            self.register_buffer("b", torch.randn(6, 3)[:, 1], persistent=False)

        def forward(self, x):
            return x @ self.w + self.b[:3], torch.tensor([1.0, 2.0, 3.0]) * self.b[:3]

    compare(Strided(), (torch.randn(2, 8),))


def test_outputs_that_are_inputs_weights_views_or_twice_the_same():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x):
            y = x + self.w
            return x, self.w, y, y, y.t(), y[1:], x.t()

    compare(Same(), (torch.randn(3, 3),))


def test_inputs_in_containers_scalars_and_defaults():
    class Many(nn.Module):
        def forward(self, pair, extra=None, factor=2, *, mask):
            a, b = pair["a"], pair["b"]
            return a * factor + b.masked_fill(mask, 0), extra, torch.tensor(3)

    a, b, mask = torch.randn(3), torch.randn(3), torch.tensor([True, False, True])
    module = Many()
    model = ggsched.from_torch(exported(module, ({"a": a, "b": b},), kwargs={"mask": mask}))
    with ggsched.Scheduler(["cpu:0"], weights=model.weight) as scheduler:
        found = model.run(scheduler, (a, b, mask))
    np.testing.assert_allclose(found["output.0"], module({"a": a, "b": b}, mask=mask)[0])
    assert found["output.1"] is None
    assert found["output.2"] == 3


def test_extents_may_depend_on_each_other():
    n = Dim("n", max=8)

    def f(x, y):
        return x.reshape(-1, 2).sum(0) + y[: x.shape[0]].sum(0), x.new_zeros(x.shape[0] * 2)

    args = torch.randn(6, 2), torch.randn(7, 2)
    model = compare(
        Lambda(f), args, dynamic_shapes=(({0: n}, {0: n + 1}),),
        more=[(torch.randn(4, 2), torch.randn(5, 2))],
    )  # fmt: skip
    with pytest.raises(UsageError, match="not 9"):
        model.bind(shapes={"args_0": (4, 2), "args_1": (9, 2)})
    with pytest.raises(UsageError, match="outside"):
        model.bind(shapes={"args_0": (40, 2), "args_1": (41, 2)})


def test_a_branch_on_data_computes_both_and_chooses():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    compare(Lambda(f), (torch.ones(3),), more=[(-torch.ones(3),)])


def test_a_fault_of_the_branch_that_is_not_taken_is_none():
    def f(x, at):
        return torch.cond(x.sum() > 0, lambda x, at: x[at], lambda x, at: x[:1].cos(), (x, at))

    near, far = torch.tensor([1]), torch.tensor([7])
    compare(Lambda(f), (torch.ones(3), near), more=[(-torch.ones(3), far)])


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(1))

    def forward(self, x):
        self.n.add_(1)
        return x + self.n


def own(x):
    return torch.linalg.svd(x)[1]


@pytest.mark.parametrize(
    ("module", "args", "words"),
    [
        (Counter(), (torch.ones(2),), r"changes a buffer, 'n'.*eval\(\)"),
        (Lambda(lambda x: x.add_(1)), (torch.ones(2),), "changes an input, 'args_0'"),
        (Lambda(lambda x: x + torch.randn(2)), (torch.ones(2),), "node 'randn'.*random numbers"),
        (Lambda(own), (torch.ones(2, 2),), "node '.*svd.*aten.*svd.*is not supported.*register_op"),
        (Lambda(lambda x: x.to(torch.complex32)), (torch.ones(2),), "complex32 are not supported"),
        (Lambda(lambda x: x.nonzero()), (torch.ones(2),), "node 'nonzero'.*depends on data"),
        (Lambda(lambda x: x[x > 0]), (torch.ones(2),), "a plan cannot know"),
        (Lambda(lambda x: x.new_zeros(1 << 40)), (torch.ones(2),), "too large"),
    ],
)
def test_what_is_not_supported_is_said_once_and_clearly(module, args, words):
    with pytest.raises(ModelError) as caught:
        _ = ggsched.from_torch(exported(module, args)).graph
    assert len(str(caught.value).splitlines()) == 1
    assert re.search(words, str(caught.value)), str(caught.value)


def test_wrong_calls():
    model = ggsched.from_torch(exported(mlp(), (torch.randn(3, 8),)))
    with pytest.raises(UsageError, match="not an exported program"):
        ggsched.from_torch(mlp())
    with ggsched.Scheduler(["cpu:0"], weights=model.weight) as scheduler:
        for inputs, words in (
            ((), "0 inputs"),
            ({}, "'input' is missing"),
            ({"input": np.zeros((3, 8), np.float32), "z": 1}, "no input 'z'"),
            ({"input": np.zeros((4, 8), np.float32)}, r"shape \[4, 8\]"),
            ({"input": np.zeros((3, 8))}, "float64"),
        ):
            with pytest.raises(GgschedError, match=words):
                model.run(scheduler, inputs)


@pytest.fixture
def library():
    lib = torch.library.Library("ggsched_tests", "DEF")
    lib.define("cube(Tensor x, float factor) -> Tensor")
    lib.impl("cube", lambda x, factor: x**3 * factor, "CompositeExplicitAutograd")
    torch.library.register_fake("ggsched_tests::cube", lambda x, f: torch.empty_like(x), lib=lib)
    yield lambda x: torch.ops.ggsched_tests.cube(x, 2.0)
    lib._destroy()


def test_an_op_of_a_library_is_the_registered_op_of_its_name(library, registries_restored):
    x = torch.randn(2, 3)
    program = exported(Lambda(library), (x,))
    with pytest.raises(ModelError, match=r"'ggsched_tests.cube.default' is not supported"):
        _ = ggsched.from_torch(program).graph
    ggsched.register_op(
        "cube", version="1", operands=("x",), params={"factor": 1.0},
        reference=lambda x, factor: x**3 * factor,
        kernels={"cpu": lambda x, out, factor: np.multiply(x**3, factor, out=out)},
        samples=[ggsched.Sample(((2, 3),))],
    )  # fmt: skip
    compare(Lambda(library), (x,))


def test_an_op_of_a_library_with_a_converter(library, registries_restored):
    @converts("ggsched_tests.cube")
    def _cube(c, x, factor):
        return c.nd("mul", c.nd("pow", x, c.const(3, "f32")), c.const(factor, "f32"))

    compare(Lambda(library), (torch.randn(2, 3),))


def test_all_missing_ops_are_named_before_shapes_are_asked_for():
    def f(x):
        return torch.linalg.svd(x)[1], torch.special.bessel_j0(x), torch.special.bessel_j0(x + 1)

    rows = torch.export.Dim("rows", min=2)
    program = exported(Lambda(f), (torch.randn(3, 3),), dynamic_shapes={"args": ({0: rows},)})
    words = r"the ops aten._linalg_svd.default \(1\), aten.special_bessel_j0.default \(2\) are not"
    with pytest.raises(ModelError, match=words):
        ggsched.from_torch(program)


def test_views_of_five_axes_are_not_copied():
    def parts(x, mask):
        y = x.unflatten(-1, (3, 8)).permute(3, 0, 2, 1, 4)
        turned = y.permute(4, 3, 2, 1, 0)
        made = nn.functional.scaled_dot_product_attention(*y, attn_mask=mask)
        return made.transpose(1, 2).reshape(2, 5, -1), turned[1:, ::2], turned.reshape(-1, 3)

    mask = torch.rand(2, 1, 5, 5) > 0.5
    mask[0, 0, 2] = False  # sees nothing
    model = compare(Lambda(parts), (torch.randn(2, 5, 4, 24), mask))
    graph = model.bind(shapes={n: p.shape for n, p in model.inputs.items()}).graph
    ops = [node.op for node in graph.nodes]
    assert not {"nd.transpose", "nd.slice"} & set(ops)
    # Heads are joined, a view of an input is an output, and a shape has no view.
    assert (ops.count("cont"), ops.count("nd.copy")) == (1, 2)
