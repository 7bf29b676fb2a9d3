"""Calls of ATen ops, converted and run without PyTorch."""

import numpy as np

from ggsched import Scheduler
from ggsched_import.common.emit import Emitter
from ggsched_import.torch.call import convert
from ggsched_import.torch.model import bound_program
from ggsched_import.torch.walk import given_input
from ggsched_testing.oracle.interpreter import run_oracle

KINDS = {"float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32",
         "int8": "i8", "uint8": "u8", "bool": "bool", "complex64": "c64",
         "complex128": "c128"}  # fmt: skip


def converted(op, args, kwargs, used=None):
    """Return the program of a call, its results as converted, and the values of its inputs."""
    emit, inputs, given, values = Emitter("one"), {}, [], {}
    for i, a in enumerate(args):
        if not isinstance(a, np.ndarray):
            given.append(a)
            continue
        name = f"x{i}"
        value, inputs[name] = given_input(emit, name, a.shape, KINDS[a.dtype.name])
        given.append(value)
        plain = a.reshape(*a.shape, 1).view(a.real.dtype) if a.dtype.kind == "c" else a
        values[name] = np.ascontiguousarray(plain).reshape(plain.shape)
    made = convert(f"aten.{op}", emit, "here", given, kwargs, used)
    results = made if isinstance(made, (list, tuple)) else [made]
    program = bound_program(emit, inputs, [str(i) for i in range(len(results))], results)
    return program, made, values


def called(op, *args, used=None, devices=(), **kwargs):
    """Return what an op computes of arrays, which become inputs, and of other arguments.

    Args:
        op: With its overload.
        args: Arrays and others, in order.
        used: Places of the results that are used; None for all.
        devices: That run it; the oracle where there are none.
        kwargs: Other arguments.
    """
    program, made, values = converted(op, args, kwargs, used)
    if devices:
        with Scheduler(list(devices), weights=program.weights) as scheduler:
            made_of = scheduler.run(program.graph, values)
    else:
        made_of = run_oracle(program.graph, {**values, **program.weights})
    found = list(program.named(made_of).values())
    return found if isinstance(made, (list, tuple)) else found[0]
