"""CUDA without a GPU: streams, events, an allocator and graphs, on tensors of the host.

What a program calls of ``torch.cuda`` is replaced; tensors that it puts on ``cuda`` are tensors of
the host that say so. Each op runs when it is called, which is one of the orders that a GPU may
choose. The hooks of ``torch.cuda._gpu_trace`` report the same calls as with a GPU, so a recorder
sees the same program.

Not simulated: times, several devices, device memory that runs out, kernels that are not ops.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import _disable_current_modes

from ggsched_race.blocks import CachingAllocator
from ggsched_race.ops import dense, tensors_in
from ggsched_race.patches import Patches
from ggsched_race.recording import StreamKey
from ggsched_race.simulated_cuda import SimulatedGraph, SimulatedStream, device_functions
from ggsched_race.simulated_nccl import SimulatedNccl

_CUDA: Final = torch.device("cuda", 0)
_HOST: Final = torch.device("cpu")
_WAITING: Final = frozenset(
    {
        *("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2"),
        *("unique_consecutive", "equal", "bincount", "repeat_interleave", "allclose", "_unique"),
        *("unique_dim_consecutive", "_linalg_check_errors"),
    }
)
"""Ops of which the host needs a result, so that it waits for the stream."""


class _Local(threading.local):
    """State of a thread: its stream, and streams of the backward pass that is under way.

    Attributes:
        chosen: The stream that a hook has chosen, for the node of the backward pass that calls it.
        pool: What memory is from; None is the usual pool.
    """

    is_interpreting: bool = False
    pool: object = None
    stream: SimulatedStream | None = None
    task: int = -1
    backward: list[SimulatedStream]
    chosen: tuple[object, SimulatedStream] | None = None


def _place(task: int, node: Any) -> tuple[int, int | None]:
    """Return what tells a node of a backward pass from those of all others."""
    return task, node._sequence_nr() if node else None


class SimulatedCuda:
    """The platform of a simulation.

    Attributes:
        default: The default stream.
        capturing: The graph that is being captured.
        collectives: What happens around collectives.
    """

    collectives: SimulatedNccl

    def __init__(self) -> None:
        self.default = SimulatedStream(stream_ptr=0)
        self.capturing: SimulatedGraph | None = None
        self._handles = 0x1000
        self._local = _Local()
        self._allocator = CachingAllocator()
        self._addresses: dict[int, int] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Of each block, by storage: where it is on the host, and its length."""
        self._pinned: set[int] = set()
        self._registered: dict[int, int] = {}
        self._made_on: dict[tuple[int, int], SimulatedStream] = {}

    # --- streams ----------------------------------------------------------------------------------

    def handle(self) -> int:
        """Return a new handle, of a stream or an event."""
        self._handles += 0x10
        return self._handles

    def current(self) -> SimulatedStream:
        """Return the calling thread's stream; in a backward pass that of the op's forward.

        A hook of the backward pass may choose another one, until its node ends.
        """
        node = torch._C._current_autograd_node()
        task = torch._C._current_graph_task_id()
        local = self._local
        here = local.stream or self.default
        if task < 0:
            self._end_backward()
            return here
        if local.task != task:
            self._end_backward()
            local.task, local.backward = task, [here]
        made = (
            self._made_on.get((threading.get_ident(), node._sequence_nr()), None) if node else None
        )
        stream = made or local.backward[-1]
        if stream is not local.backward[-1]:  # the engine lets a consumer wait for its producer
            producer = local.backward[-1]
            local.backward.append(stream)
            stream.wait_stream(producer)
        chosen = local.chosen
        return chosen[1] if chosen is not None and chosen[0] == _place(task, node) else stream

    def _end_backward(self) -> None:
        """Let the stream of the call wait for those of the backward pass, as the engine does."""
        local = self._local
        if local.task >= 0:
            local.task = -1
            for stream in {s for s in local.backward if s is not local.backward[0]}:
                local.backward[0].wait_stream(stream)

    def set_current(self, stream: SimulatedStream) -> None:
        """Let the calling thread use a stream."""
        task = torch._C._current_graph_task_id()
        if task < 0:
            self._local.stream = stream
        else:
            self._local.chosen = _place(task, torch._C._current_autograd_node()), stream

    def refuse_in_capture(self) -> None:
        """Refuse what CUDA refuses during a capture.

        Raises:
            RuntimeError: a graph is being captured.
        """
        if self.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    # --- the platform of a recorder ---------------------------------------------------------------

    def device_of(self, tensor: Any) -> int | None:
        """Return the device of a tensor; None for the host."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # sparse
            storage = dense([tensor])[-1].untyped_storage()
        return 0 if id(storage) in self._addresses else None

    def address(self, storage: Any) -> int:
        """Return the address of simulated device memory."""
        return self._addresses[id(storage)]

    def is_pinned(self, tensor: Any) -> bool:
        """Whether the tensor is in pinned memory."""
        if tensor.layout != torch.strided:
            return False
        storage = tensor.untyped_storage()
        start = _native_address(storage) if self._registered else 0
        is_registered = any(a <= start < a + n for a, n in self._registered.items())
        return id(storage) in self._pinned or is_registered

    def stream(self, device: int | None) -> StreamKey:
        """Return the key of the calling thread's stream."""
        return device or 0, self.current().cuda_stream

    def key_of(self, stream: Any) -> StreamKey:
        """Return the key of a stream object."""
        return 0, stream.cuda_stream

    def launch(self, native: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what interprets a kernel on the host: with addresses of the host."""
        self._local.is_interpreting = True
        try:
            with _disable_current_modes():
                return native(*args, **kwargs)
        finally:
            self._local.is_interpreting = False

    @property
    def has_host_addresses(self) -> bool:
        """Whether the calling thread interprets a kernel."""
        return self._local.is_interpreting

    def wait_for_all(self) -> None:
        """Do nothing: all work is done when it is called."""

    # --- memory -----------------------------------------------------------------------------------

    def put_on_device(self, tensor: Any) -> None:
        """Let a tensor of the host stand for one of the device."""
        storage = tensor.untyped_storage()
        if id(storage) not in self._addresses:
            self._allocate(storage)
            weakref.finalize(storage, self._free, id(storage)).atexit = False

    def _allocate(self, storage: Any) -> None:
        nbytes, pool = storage.nbytes(), self._local.pool
        pool = self.capturing.pool_id if self.capturing is not None else pool
        stream = self.current().cuda_stream
        address = self._allocator.allocate(nbytes, stream, pool) if nbytes else 0
        self._addresses[id(storage)] = address
        self._places[id(storage)] = _native_address(storage), nbytes
        if address:
            _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(address)

    def _free(self, key: int) -> None:
        address = self._addresses.pop(key, None)
        if self._places.pop(key, None) is not None and address:
            _gpu_trace.MemoryDeallocationCallbacks.fire_callbacks(address)
            self._allocator.free(address)

    def pin(self, tensor: Any) -> Any:
        """Let a tensor be in pinned memory."""
        key = id(tensor.untyped_storage())
        if key not in self._pinned:
            self._pinned.add(key)
            weakref.finalize(tensor.untyped_storage(), self._pinned.discard, key).atexit = False
        return tensor

    def register(self, address: int, nbytes: int, flags: int = 0) -> int:
        """Let memory of the host be pinned where it is."""
        del flags
        self._registered[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        """Undo ``register``."""
        del self._registered[address]
        return 0

    @contextmanager
    def allocating_from(self, pool: Any, device: Any = None) -> Iterator[None]:
        """Let the calling thread allocate from a pool."""
        del device
        before, self._local.pool = self._local.pool, pool.id
        try:
            yield
        finally:
            self._local.pool = before

    def handed_over(self, tensor: Any) -> Any:
        """Let a tensor that another library made of device memory be where that is."""
        storage = tensor.untyped_storage()
        start, key = _native_address(storage), id(storage)
        for owner, (first, nbytes) in self._places.items():
            if first <= start < first + nbytes and key not in self._addresses:
                self._addresses[key] = self._addresses[owner] + start - first
                weakref.finalize(storage, self._addresses.pop, key, None).atexit = False
                break
        return tensor

    def resized(self, storage: Any) -> None:
        """Give a storage that has changed its length a block of its own."""
        place = self._places.get(id(storage))
        if place is not None and place[1] != storage.nbytes():
            self._free(id(storage))
            self._allocate(storage)

    # --- ops --------------------------------------------------------------------------------------

    def is_blocking(self, stream: Any) -> bool:
        """Return False: streams are as PyTorch makes them."""
        del stream
        return False

    def before_op(self) -> None:
        """Let the stream wait as the engine of a backward pass does."""
        self.current()

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an op on tensors of the host; results are where those of CUDA would be."""
        name = func._schema.name.partition("::")[2]
        inputs = dense(tensors_in([*args, *kwargs.values()]))
        on_device = any(self.device_of(t) is not None for t in inputs)
        if name == "is_pinned":
            return self.is_pinned(args[0])
        if name == "_pin_memory":
            return self.pin(args[0].clone())
        wanted = kwargs.get("device")
        device = on_device if wanted is None else torch.device(wanted).type == "cuda"
        device |= on_device and name.startswith("new_") and not kwargs.get("pin_memory")
        is_fetched = name == "_to_copy" and on_device and kwargs.get("non_blocking")
        pins = not device and (kwargs.get("pin_memory") or is_fetched)
        kwargs = {**kwargs, "device": _HOST} if wanted is not None else kwargs
        kwargs = {**kwargs, "pin_memory": False} if "pin_memory" in kwargs else kwargs
        is_collective = on_device and func._schema.name.startswith("c10d::")
        if self.capturing is not None:
            self.capturing.before(func, inputs)
        if is_collective:
            self.collectives.before()
        result = func(*args, **kwargs)
        if is_collective:
            self.collectives.after()
        if func._schema.is_mutable:
            for tensor in inputs:
                self.resized(tensor.untyped_storage())
        made = [t for t in dense(tensors_in(result)) if all(t is not i for i in inputs)]
        for tensor in made if device or pins else ():
            (self.put_on_device if device else self.pin)(tensor)
        if self.capturing is not None:
            self.capturing.collected(func, args, kwargs, result)
        self._note_forward()
        if self._waits(name, args, kwargs, on_device, device):
            self.refuse_in_capture()
            handle = self.current().cuda_stream
            _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(handle)
        return result

    def _note_forward(self) -> None:
        """Remember the stream of what autograd has recorded last."""
        if torch._C._current_graph_task_id() < 0 and torch.is_grad_enabled():
            number = torch._C._autograd._get_sequence_nr() - 1
            self._made_on.setdefault((threading.get_ident(), number), self.current())

    def _waits(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], on_device: bool, to: bool
    ) -> bool:
        """Whether the host waits for the stream in an op."""
        if name == "_to_copy":
            return on_device != to and not kwargs.get("non_blocking")
        if name in ("copy_", "_foreach_copy_"):
            ends = [self.device_of(t) for t in (*tensors_in(args[0]), *tensors_in(args[1]))]
            flag = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            return None in ends and 0 in ends and not flag
        if name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1]):
            return on_device
        return on_device and name in _WAITING


@contextmanager
def simulated() -> Iterator[SimulatedCuda]:
    """Replace ``torch.cuda`` by a simulation.

    Raises:
        RuntimeError: a GPU has been used in this process.
    """
    if torch.cuda.is_initialized():
        raise RuntimeError("CUDA is in use already, so that it cannot be simulated")
    cuda = SimulatedCuda()
    torch._C._ensureCUDADeviceGuardSet()
    with Patches() as patches:
        for owner, name, value in device_functions(cuda):
            patches.set(owner, name, value)
        cuda.collectives = SimulatedNccl(cuda)
        for owner, name, value in cuda.collectives.replaced():
            patches.set(owner, name, value)
        _patch_tensors(patches, cuda)
        _patch_makers(patches, cuda)
        _patch_values(patches, cuda)
        yield cuda


def _patch_tensors(patches: Patches, cuda: SimulatedCuda) -> None:
    """Let tensors say where they are, and move between the host and the device."""
    tensor = torch.Tensor
    native_ptr, native_resize = tensor.data_ptr, torch.UntypedStorage.resize_
    to = _moving(tensor.to)

    def device(self: Any) -> Any:
        return _CUDA if cuda.device_of(self) is not None else _native_device(self)

    def data_ptr(self: Any) -> int:
        if cuda.device_of(self) is None or cuda.has_host_addresses:
            return int(native_ptr(self))
        start = cuda.address(self.untyped_storage())
        return start + int(self.storage_offset()) * int(self.element_size())

    def resize(self: Any, size: int) -> Any:
        result = native_resize(self, size)
        cuda.resized(self)
        return result

    def move(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        where = torch.device("cuda", device) if isinstance(device, int) else device or _CUDA
        return to(self, where, non_blocking=non_blocking, **kwargs)

    def fetch(self: Any, memory_format: Any = torch.preserve_format) -> Any:
        return to(self, _HOST, memory_format=memory_format)

    replaced = {
        "device": property(device),
        "is_cuda": property(lambda self: cuda.device_of(self) is not None),
        "get_device": lambda self: -1 if cuda.device_of(self) is None else 0,
        "to": to,
        "cuda": move,
        "cpu": fetch,
        "data_ptr": data_ptr,
        "record_stream": lambda self, stream: None,  # all work is done when it is called
    }
    for name, value in replaced.items():
        patches.set(tensor, name, value)
    patches.set(torch.UntypedStorage, "resize_", resize)


def _patch_makers(patches: Patches, cuda: SimulatedCuda) -> None:
    """Let what makes tensors of lists and arrays put them on the device."""
    native_tensor, native_as_tensor = torch.tensor, torch.as_tensor

    def make(data: Any, **kwargs: Any) -> Any:
        where = kwargs.pop("device", None)
        pins, needs = kwargs.pop("pin_memory", False), kwargs.pop("requires_grad", False)
        made = native_tensor(data, **kwargs)
        made = made if where is None else made.to(where)
        made = cuda.pin(made) if pins else made
        return made.requires_grad_(needs)

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
        made = native_as_tensor(data, dtype=dtype)
        return made if device is None else made.to(device)

    def new_tensor(self: Any, data: Any, **kwargs: Any) -> Any:
        return make(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    class Generator(torch.Generator):  # type: ignore[misc]
        """A generator of the host, whatever the device."""

        def __new__(cls, device: Any = None) -> Any:
            del device
            return super().__new__(cls)

    from_dlpack = torch.from_dlpack

    def take_over(*args: Any, **kwargs: Any) -> Any:
        return cuda.handed_over(from_dlpack(*args, **kwargs))

    for owner in (torch, torch.utils.dlpack):
        patches.set(owner, "from_dlpack", take_over)
    patches.set(torch, "tensor", make)
    patches.set(torch, "as_tensor", as_tensor)
    patches.set(torch, "Generator", Generator)
    patches.set(torch.Tensor, "new_tensor", new_tensor)


def _patch_values(patches: Patches, cuda: SimulatedCuda) -> None:
    """Let the host wait where it gets values of a tensor on the device, or be refused."""
    tensor = torch.Tensor
    native_numpy, native_list, native_repr = tensor.numpy, tensor.tolist, tensor.__repr__
    native_reduce = tensor.__reduce_ex__

    def as_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if cuda.device_of(self) is not None:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return native_numpy(self, *args, **kwargs)

    def as_text(self: Any, **kwargs: Any) -> str:
        return str(native_repr(self.cpu() if cuda.device_of(self) is not None else self, **kwargs))

    def as_list(self: Any) -> Any:
        return native_list(self.cpu() if cuda.device_of(self) is not None else self)

    def reduced(self: Any, protocol: Any) -> Any:
        if cuda.device_of(self) is not None:
            self.cpu()
        return native_reduce(self, protocol)

    patches.set(tensor, "numpy", as_numpy)
    patches.set(tensor, "tolist", as_list)
    patches.set(tensor, "__repr__", as_text)
    patches.set(tensor, "__reduce_ex__", reduced)


def _moving(native_to: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Tensor.to``, for tensors that say where they are."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device", args[0] if args else None)
        if isinstance(kwargs.get("other", target), torch.Tensor):
            other = kwargs.pop("other", target)
            rest = {"dtype": other.dtype, **kwargs}
            return to(self, other.device, *args[1:], **rest)
        copies = kwargs.pop("copy", False)
        where, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        is_here = where is None or where.type == self.device.type
        if where is None or where.type not in ("cuda", "cpu"):
            return native_to(self, *args, **{**kwargs, "copy": copies})
        if is_here and not copies and dtype in (None, self.dtype):
            return self
        more: dict[str, Any] = {"dtype": dtype} if dtype is not None else {}
        more |= {"memory_format": layout} if layout is not None else {}
        return torch.ops.aten._to_copy.default(
            self, device=where, non_blocking=non_blocking, **more
        )

    return to


def _native_address(storage: Any) -> int:
    """Return where memory is on the host; 0 of a wrapper, which has none."""
    try:
        return int(storage.data_ptr())
    except RuntimeError:
        return 0


def _native_device(tensor: Any) -> Any:
    return torch._C.TensorBase.device.__get__(tensor)
