"""The device: facts, memory, compiling."""

import platform
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ggsched.backend import checks
from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream, host_facts
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.program import BoundNode
from ggsched.backend.program_body import Steps
from ggsched.backend.protocols import HostMemory, Stream
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched_torch.kernels import make_step, supported_ops
from ggsched_torch.stream import WorkerStream

MAX_DEVICES: Final = 16
"""Logical devices: each has buffers and streams of its own."""

ALIGNMENT: Final = 64
"""PyTorch aligns what it allocates on the CPU to this."""


def torch_facts(index: int) -> DeviceFacts:
    """Return the facts of a logical device; the conformance kit checks each of them."""
    return host_facts(
        "torch",
        supported_ops(),
        name=f"torch:{index}",
        description=f"PyTorch {torch.__version__} on {platform.machine()}",
        kind="accelerator",  # so that -ngl puts layers here
        alignment=ALIGNMENT,
        is_host=False,
        is_async=True,
        snapshots_uploads=False,  # the worker reads the source when it comes to it
        is_deterministic=False,  # the products of MKL and oneDNN do not promise it
    )


class TorchDevice(BaseDevice):
    """Tensors of bytes as memory, a worker thread for each stream."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(torch_facts(index), {})

    # --- memory: what BaseBuffer and BaseStream do not know ----------------------------------

    def acquire_memory(self, nbytes: int) -> Tensor:
        """Return fresh bytes of undefined content (BUF-1)."""
        try:
            return torch.empty(nbytes, dtype=torch.uint8)
        except RuntimeError as error:  # PyTorch's word for "no memory"
            raise MemoryError(str(error)) from error

    def read_memory(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Copy bytes of a tensor into host memory."""
        np.copyto(np.frombuffer(target, np.uint8), _bytes(memory, offset, target.nbytes).numpy())

    def write_memory(self, memory: Any, offset: int, source: HostMemory) -> None:
        """Copy host bytes into a tensor."""
        np.copyto(_bytes(memory, offset, source.nbytes).numpy(), np.frombuffer(source, np.uint8))

    def copy_memory(
        self, src: Any, src_offset: int, dst: Any, dst_offset: int, nbytes: int
    ) -> None:
        """Copy from tensor to tensor, without the detour that the default makes."""
        _bytes(dst, dst_offset, nbytes).copy_(_bytes(src, src_offset, nbytes))

    # --- the rest of the contract ------------------------------------------------------------

    def make_stream(self, name: str) -> BaseStream:
        """Return a stream with a worker thread."""
        return WorkerStream(self, name)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Bind a view of the memory for each operand, once (LCH-3)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        for node in nodes:
            writable_memory(node.output.buffer)
        return BaseProgram(stream, Steps([(node.label, make_step(node)) for node in nodes]))

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """Events of other backends are waited for by the worker thread (EVT-4)."""
        return "native" if other.backend == self.facts.backend else "thread"


def _bytes(memory: Tensor, offset: int, nbytes: int) -> Tensor:
    return memory[offset : offset + nbytes]
