"""Copies: conversion, joining, tiling."""

from collections.abc import Callable, Mapping
from typing import Final

import torch

from ggsched.ir.dtype import I32
from ggsched_torch.operands import Node


def _copy(node: Node) -> None:
    """``cpy`` and ``cont``: the same but for where the result lies."""
    same = (
        node.bound.inputs[0].dtype is node.bound.output.dtype or node.bound.inputs[0].dtype is I32
    )
    node.out.copy_(node.inputs[0] if same else node.floats(0))


def _concat(node: Node) -> None:
    node.out.copy_(torch.cat(node.inputs, dim=int(node.number("axis"))))


def _repeat(node: Node) -> None:
    x = node.inputs[0]
    node.out.copy_(x.repeat([m // n for m, n in zip(node.out.shape, x.shape, strict=True)]))


KERNELS: Final[Mapping[str, Callable[[Node], object]]] = {
    "cpy": _copy,
    "cont": _copy,
    "concat": _concat,
    "repeat": _repeat,
}
