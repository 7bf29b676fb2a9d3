"""Programs of PyTorch for tests, and how they are compared with what PyTorch computes."""

import numpy as np
import torch
from torch import nn

import ggsched


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *args):
        return self.f(*args)


class Block(nn.Module):
    """A block of ResNet."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.c1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(outer)
        self.c2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(outer)
        self.skip = nn.Identity()
        if stride > 1 or inner != outer:
            self.skip = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        y = torch.relu(self.b1(self.c1(x)))
        return torch.relu(self.b2(self.c2(y)) + self.skip(x))


def resnet():
    stack = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    for module in stack.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return stack


class Recurrent(nn.Module):
    """All kinds of recurrent networks, with outputs in containers, a None and a number."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 8)
        self.rnn = nn.RNN(8, 4, nonlinearity="relu", bias=False)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, _ = self.gru(y)
        last, _ = self.rnn(z)
        return last, {"h": h, "c": c}, None, 3


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1))


def exported(module, args, **how):
    module.eval()
    with torch.no_grad():
        return torch.export.export(module, args, **how)


def compare(module, args, *, atol=1e-4, more=(), devices=("cpu:0",), **how):
    """Import a module, run it for all arguments and compare with eager; return the model."""
    model = ggsched.from_torch(exported(module, args, **how))
    with (
        torch.no_grad(),
        ggsched.Scheduler(list(devices), weights=model.weight) as scheduler,
    ):
        for given in (args, *more):
            wanted = torch.utils._pytree.tree_flatten(module(*given))[0]
            assert_same(model.run(scheduler, given), wanted, atol)
    return model


def assert_same(found, wanted, atol):
    for (name, array), value in zip(found.items(), wanted, strict=True):
        if not isinstance(value, torch.Tensor):
            assert array == value, name
            continue
        assert array.shape == tuple(value.shape), name
        if value.dtype is torch.bfloat16:
            value = value.float()
        want = value.resolve_conj().resolve_neg().numpy()
        assert array.dtype == want.dtype, name
        np.testing.assert_allclose(array, want, atol=atol, rtol=1e-4, err_msg=name)
