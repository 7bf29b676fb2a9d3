"""``torch.compile(backend="ggsched")``."""

import tomllib
from importlib import import_module

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from ggsched_import.torch.dynamo import Compiled, backend, release  # noqa: E402
from tests.importers.torch_programs import Block, mlp  # noqa: E402
from tests.meta.repository import ROOT  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    release()


def same(found, wanted):
    np.testing.assert_allclose(found.detach(), wanted.detach(), atol=1e-5, rtol=1e-4)


def test_the_entry_point_names_the_backend():
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    home = entries["project"]["entry-points"]["torch_dynamo_backends"]["ggsched"]
    module, name = home.split(":")
    assert getattr(import_module(module), name) is backend


def test_a_module_with_shapes_that_change():
    module = mlp().eval()
    compiled = torch.compile(module, backend=backend)
    with torch.no_grad():
        for n in (3, 5, 9):
            x = torch.randn(n, 8)
            same(compiled(x), module(x))


def test_numbers_that_change_between_calls():
    def f(x, scale, count):
        return x * scale + count, x.half() * scale

    compiled, x = torch.compile(f, backend=backend), torch.randn(3)
    for scale, count in ((1.5, 1), (2.5, 2), (-0.5, 3), (0.25, 7)):
        for found, wanted in zip(compiled(x, scale, count), f(x, scale, count), strict=True):
            assert found.dtype == wanted.dtype
            same(found, wanted)


def test_convolutions_and_attention_on_two_devices():
    block, layer = Block(3, 8, 2).eval(), nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    layer.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    for module, x in ((block, torch.randn(2, 3, 9, 9)), (layer, torch.randn(2, 5, 16))):
        compiled = torch.compile(module, backend=backend, options={"devices": ["cpu:0", "cpu:1"]})
        with torch.no_grad():
            same(compiled(x), module(x))


def test_weights_that_change_are_loaded_again():
    module = nn.Linear(4, 4)
    compiled = torch.compile(module, backend=backend)
    x = torch.randn(2, 4)
    with torch.no_grad():
        same(compiled(x), module(x))
        module.weight.mul_(2)
        same(compiled(x), module(x))


def test_gradients_are_left_to_pytorch():
    module = mlp()
    compiled = torch.compile(module, backend=backend)
    x = torch.randn(3, 8)
    compiled(x).square().sum().backward()
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    module(x).square().sum().backward()
    for g, p in zip(found, module.parameters(), strict=True):
        same(g, p.grad)


def test_inputs_that_are_changed_and_several_outputs():
    def f(x, y):
        x.add_(1)
        return x * y, y[1:], None, 2

    a, b = torch.ones(3), torch.ones(3)
    y = torch.randn(3)
    found, wanted = torch.compile(f, backend=backend)(a, y), f(b, y)
    same(a, b)
    same(found[0], wanted[0])
    same(found[1], wanted[1])
    assert found[2:] == (None, 2)


class Mixed(nn.Module):
    """Parts that ggsched computes around some that it cannot."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.first(x))
        values = torch.linalg.svd(h)[1]
        positive = h.flatten().topk(3)[0]
        return self.last(h) + values[:3], torch.special.bessel_j0(positive) * 2, positive.sum()


def test_what_is_not_supported_stays_with_pytorch(monkeypatch):
    parts, call = [], Compiled.__call__

    def counted(self, *args):
        parts.append(self)
        return call(self, *args)

    monkeypatch.setattr(Compiled, "__call__", counted)
    module = Mixed().eval()
    compiled = torch.compile(module, backend=backend)
    with torch.no_grad():
        for n in (4, 4, 5):
            x = torch.randn(n, 4)
            for found, wanted in zip(compiled(x), module(x), strict=True):
                same(found, wanted)
    assert len(parts) >= 6
    found = torch.compile(lambda x: torch.special.bessel_j0(x), backend=backend)(x)
    same(found, torch.special.bessel_j0(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.fft.rfft(x) * 1j + 2,
        lambda x: torch.linalg.solve(x + 9 * torch.eye(4), torch.lgamma(x[0] ** 2 + 1)),
    ],
    ids=["complex", "equations"],
)
def test_whole_graphs_of_complex_numbers_and_equations(f):
    x = torch.randn(4, 4)
    with torch.no_grad():
        found = torch.compile(f, backend=backend, options={"partial": False})(x)
    assert found.dtype == f(x).dtype
    same(found, f(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.nonzero(x * 2 > 0) + 1,
        lambda x: (x * 3)[x > 0] * 2,
        lambda x: torch.unique((x * 2).round()) + 1,
        lambda x: torch.bincount((x * 2).abs().long().flatten(), minlength=9) * 2.0,
        lambda x: nn.functional.gumbel_softmax(x * 2) + 1,
        lambda x: (x * 3).sin() + torch.special.bessel_j0(torch.complex(x, x).sin().real),
    ],
    ids=["nonzero", "mask", "unique", "bincount", "random", "complex"],
)
@pytest.mark.parametrize("is_captured", [False, True])
def test_shapes_by_data_and_random_numbers_stay_with_pytorch(f, is_captured):
    x = torch.randn(4, 4)
    captured = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=is_captured)
    with torch.no_grad(), captured:
        torch.manual_seed(1)
        wanted = f(x)
        torch.manual_seed(1)
        same(torch.compile(f, backend=backend)(x), wanted)


def while_below(x):
    from torch._higher_order_ops import while_loop

    return while_loop(lambda x: x.sum() < 30, lambda x: (x * x + 1,), (x,))[0]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
        lambda x: (
            torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x * 2,))
            + torch.special.bessel_j0(x)
        ),
        while_below,
    ],
    ids=["whole", "in part", "by data"],
)
def test_operators_that_take_graphs(f):
    """They are converted with the whole graph, or else left to PyTorch."""
    x = torch.ones(2, 3)
    with torch.no_grad():
        same(torch.compile(f, backend=backend)(x), f(x))


@pytest.mark.parametrize(
    ("f", "options", "words"),
    [
        (lambda x: torch.linalg.svd(x)[1], {"partial": False}, "is not supported"),
        (lambda x: x + 1, {"device": 1}, "no option 'device'"),
    ],
)
def test_what_is_not_supported_is_said_when_it_is_compiled(f, options, words):
    with pytest.raises(Exception, match=words):
        torch.compile(f, backend=backend, options=options)(torch.ones(2, 2))
