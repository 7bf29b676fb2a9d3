"""The calls of ``cuda.bindings.driver`` about captures; the others are in ``ggsched_cuda.driver``.

Launching a graph is there, too, beside what is launched otherwise.
"""

import ctypes
from functools import cache
from typing import Any, Final

from cuda.bindings import driver as cu

from ggsched_cuda.driver import CudaError, Handle, check

_RELAXED: Final = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_REFUSED: Final = int(cu.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
_REASONS: Final = {
    int(reason): reason.name.removeprefix("CU_GRAPH_EXEC_UPDATE_").removeprefix("ERROR_")
    for reason in cu.CUgraphExecUpdateResult
}


def begin_capture(stream: Handle) -> None:
    """Let the driver write down what is enqueued on a stream, and on those that wait for it."""
    check(cu.cuStreamBeginCapture(stream, _RELAXED), "cuStreamBeginCapture")


def end_capture(stream: Handle) -> Any:
    """Return the graph of what was enqueued."""
    return check(cu.cuStreamEndCapture(stream), "cuStreamEndCapture")


def count_nodes(graph: Any) -> int:
    """Return the number of nodes of a graph."""
    _, count = check(cu.cuGraphGetNodes(graph), "cuGraphGetNodes")
    return int(count)


_KERNEL: Final = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL


def load_kernels(graph: Any) -> None:
    """Load the kernels of a graph, which the driver else does when they are first launched.

    May wait for all work of the context.
    """
    nodes, count = check(cu.cuGraphGetNodes(graph), "cuGraphGetNodes")
    if count:
        nodes, _ = check(cu.cuGraphGetNodes(graph, count), "cuGraphGetNodes")
    for node in nodes[:count]:
        if check(cu.cuGraphNodeGetType(node), "cuGraphNodeGetType") != _KERNEL:
            continue
        params = check(cu.cuGraphKernelNodeGetParams(node), "cuGraphKernelNodeGetParams")
        function = params.func
        if not int(function):  # a kernel of a library, not of a module
            function = check(cu.cuKernelGetFunction(params.kern), "cuKernelGetFunction")
        check(cu.cuFuncLoad(function), "cuFuncLoad")


def make_executable(graph: Any) -> tuple[Any, int]:
    """Return a graph that can be launched, and its number of nodes.

    The graph that is given is closed, also where this fails.
    """
    try:
        count = count_nodes(graph)
        return check(cu.cuGraphInstantiate(graph, 0), "cuGraphInstantiate"), count
    finally:
        close_graph(graph)


class _Answer(ctypes.Structure):
    """What the driver says of an update: ``CUgraphExecUpdateResultInfo``."""

    _fields_ = (
        ("reason", ctypes.c_int),
        ("node", ctypes.c_void_p),
        ("from_node", ctypes.c_void_p),
    )


@cache
def _update_call() -> Any:
    """Return the driver's own call: the bindings drop the reason where it refuses."""
    function = ctypes.CDLL("libcuda.so.1").cuGraphExecUpdate_v2
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_Answer)]
    return function


def update_executable(executable: Any, graph: Any) -> str:
    """Let an executable graph be another one; return why not, where the driver refuses.

    It takes one with the same nodes in the same order, whatever their addresses. Launches that are
    enqueued run what it was. A refusal changes nothing.
    """
    answer = _Answer()
    code = _update_call()(int(executable), int(graph), ctypes.byref(answer))
    if code == _REFUSED:
        reason = _REASONS.get(answer.reason, str(answer.reason))
        return f"the driver refuses: {reason.replace('_', ' ').lower()}"
    if code:
        raise CudaError("cuGraphExecUpdate", code, "failed")
    return ""


def close_graph(graph: Any) -> None:
    """Give up a graph; executable ones that were made of it stay."""
    check(cu.cuGraphDestroy(graph), "cuGraphDestroy")


def close_executable(graph: Any) -> None:
    """Give up an executable graph; launches that are enqueued run."""
    check(cu.cuGraphExecDestroy(graph), "cuGraphExecDestroy")
