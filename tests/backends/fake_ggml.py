"""ggml's C interface in Python: an asynchronous backend in host memory, right or faulty.

Work is done by a thread for each ``ggml_backend_t``. Nodes are made and not computed: a device
supports none unless ``ops`` says so, and everything runs by the reference arithmetic.
"""

import ctypes
import itertools
import threading
from functools import partial
from queue import SimpleQueue

from ggsched.ir.dtype import dtype_by_name
from ggsched_ggml.device import GgmlDevice
from ggsched_ggml.driver import OPS, TYPES, Library, Props, Tensor
from ggsched_testing.conformance import Harness

BLOCKS = {number: dtype_by_name(name) for name, number in TYPES.items()}
DEVICE, KIND = 1000, 2000


class Function:
    """A function of a library, of which ``ctypes`` lets callers say the types."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *args):
        return self.call(*args)


class Backend:
    """A queue with a thread."""

    def __init__(self):
        self.queue = SimpleQueue()
        self.thread = threading.Thread(target=self.work, name="fake ggml", daemon=True)
        self.thread.start()

    def work(self):
        while (call := self.queue.get()) is not None:
            call()


class FakeGgml:
    """The symbols of a library.

    Args:
        faults: Names of faults, see the methods.
        ops: Whether nodes can be made, and are supported.
        lacks: A symbol that is not there.
        layout: By how many bytes tensors are larger than they should be.
        behind: Bytes behind each tensor that the backend uses.
        padding: Elements to a multiple of which the backend pads packed rows, as CUDA's does.
    """

    def __init__(
        self, faults=(), *, version=b"0.25.3", ops=False, lacks="", layout=0, behind=0, padding=1
    ):
        self.behind, self.padding = behind, padding
        self.faults, self.version, self.ops = faults, version, ops
        self.lacks, self.layout = lacks, layout
        self.kept, self.made, self.names = {}, [], itertools.count(1)
        self.later = []

    def __getattr__(self, name):
        if name == self.lacks or not name.startswith("ggml_"):
            raise AttributeError(name)
        own = f"do{name[4:]}"
        if hasattr(type(self), own):
            function = Function(getattr(self, own))
        elif name in OPS:
            if not self.ops:
                raise AttributeError(name)
            function = Function(partial(self.node, name))
        elif name.endswith(("_free", "_usage", "_log_set", "_set_output", "_from_path")):
            function = Function(lambda *_: None)
        else:
            function = Function(lambda *_: 0)
        return function

    def keep(self, thing):
        """Return a handle."""
        handle = 1 << 20 | next(self.names)
        self.kept[handle] = thing
        return handle

    # --- tensors --------------------------------------------------------------------------------

    def do_version(self):
        return self.version

    def do_init(self, params):
        return self.keep([])

    def do_free(self, context):
        del self.kept[context]

    def do_tensor_overhead(self):
        return ctypes.sizeof(Tensor) + 32 + self.layout

    def do_graph_overhead_custom(self, size, grads):
        return 0

    def do_new_tensor_4d(self, context, kind, *ne):
        dtype, tensor = BLOCKS[kind], Tensor()
        tensor.type, tensor.ne[:] = kind, ne
        nb = [dtype.block_nbytes, dtype.block_nbytes * (ne[0] // dtype.block)]
        tensor.nb[:] = [*nb, nb[1] * ne[1], nb[1] * ne[1] * ne[2]]
        self.kept[context].append(tensor)
        return ctypes.addressof(tensor)

    def do_view_tensor(self, context, source):
        old = Tensor.from_address(source)
        view = self.do_new_tensor_4d(context, old.type, *old.ne)
        Tensor.from_address(view).view_src = source
        return view

    def do_nbytes(self, handle):
        tensor = Tensor.from_address(handle)
        dtype, ne = BLOCKS[tensor.type], list(tensor.ne)
        ne[0] //= dtype.block
        return sum((n - 1) * s for n, s in zip(ne, tensor.nb, strict=True)) + dtype.block_nbytes

    def do_get_data(self, handle):
        return Tensor.from_address(handle).data

    def do_set_name(self, handle, name):
        Tensor.from_address(handle).name = name

    def do_type_size(self, kind):
        return BLOCKS[kind].block_nbytes

    def do_blck_size(self, kind):
        return BLOCKS[kind].block

    def node(self, name, context, *args):
        """Make a node: of the shape of its first operand, but for what tests look at."""
        if not context or OPS[name][0] == "v":
            return None
        first = Tensor.from_address(args[0])
        ne, kind = list(first.ne), first.type
        if name == "ggml_mul_mat":
            ne, kind = [first.ne[1], *Tensor.from_address(args[1]).ne[1:]], TYPES["f32"]
        if name == "ggml_get_rows":
            ne, kind = [first.ne[0], *Tensor.from_address(args[1]).ne[:3]], TYPES["f32"]
        if name == "ggml_repeat_4d":
            ne = args[1:]
        if name == "ggml_cast":
            kind = args[1]
        if name == "ggml_flash_attn_ext":
            ne, kind = [first.ne[0], first.ne[2], first.ne[1], first.ne[3]], TYPES["f32"]
        self.made.append(name.removeprefix("ggml_"))
        return self.do_new_tensor_4d(context, kind, *ne)

    # --- devices and buffers --------------------------------------------------------------------

    def do_backend_dev_count(self):
        return 1

    def do_backend_dev_get(self, index):
        return DEVICE

    def do_backend_dev_name(self, device):
        return b"Fake0"

    def do_backend_dev_get_props(self, device, address):
        props = Props.from_address(address)
        props.description, props.type, props.memory_total = b"fake", 1, 1 << 34
        props.is_async = props.events = props.buffer_from_host_ptr = True

    def do_backend_dev_buffer_type(self, device):
        return KIND

    def do_backend_dev_supports_op(self, device, node):
        return self.ops

    def do_backend_buft_is_host(self, kind):
        return not any("copies" in fault for fault in self.faults)  # else others are made

    def do_backend_buft_get_alignment(self, kind):
        return 32

    def do_backend_buft_get_max_size(self, kind):
        return 1 << 34

    def do_backend_buft_get_alloc_size(self, kind, handle):
        tensor = Tensor.from_address(handle)
        missing = -tensor.ne[0] % self.padding if BLOCKS[tensor.type].is_quantized else 0
        packed = BLOCKS[tensor.type]
        return self.do_nbytes(handle) + self.behind + missing // packed.block * packed.block_nbytes

    def do_backend_buft_alloc_buffer(self, kind, nbytes):
        return self.keep(ctypes.create_string_buffer(nbytes + 64))

    def do_backend_dev_buffer_from_host_ptr(self, device, address, nbytes, largest):
        return self.keep((ctypes.c_char * nbytes).from_address(address))

    def do_backend_buffer_free(self, buffer):
        del self.kept[buffer]

    def do_backend_buffer_get_base(self, buffer):
        return -(-ctypes.addressof(self.kept[buffer]) // 64) * 64

    def do_backend_tensor_alloc(self, buffer, handle, address):
        start = self.do_backend_buffer_get_base(buffer)
        end = ctypes.addressof(self.kept[buffer]) + len(self.kept[buffer])
        assert start <= address <= address + self.do_nbytes(handle) <= end  # as ggml asserts
        tensor = Tensor.from_address(handle)
        tensor.buffer, tensor.data = buffer, address
        return 0

    # --- streams --------------------------------------------------------------------------------

    def do_backend_dev_init(self, device, params):
        return self.keep(Backend())

    def do_backend_free(self, backend):
        self.kept.pop(backend).queue.put(None)

    def put(self, backend, fault, call):
        """Enqueue work; with a fault of its kind it runs at once."""
        if fault in self.faults:
            call()
        else:
            self.kept[backend].queue.put(call)

    def do_backend_tensor_set_async(self, backend, handle, source, offset, nbytes):
        target = Tensor.from_address(handle).data + offset
        call = partial(ctypes.memmove, target, source, nbytes)
        if "uploads read late" in self.faults:
            buffer = Tensor.from_address(handle).buffer
            self.later.append(lambda: buffer in self.kept and call())
        else:
            self.put(backend, "uploads overtake", call)

    def do_backend_tensor_get_async(self, backend, handle, target, offset, nbytes):
        source = Tensor.from_address(handle).data + offset
        call = partial(ctypes.memmove, target, source, nbytes)
        self.put(backend, "downloads overtake", call)
        if "uploads read late" in self.faults:  # what was uploaded comes before what reads it
            self.later, now = [], self.later
            self.kept[backend].queue.put(lambda: [late() for late in now])
            self.kept[backend].queue.put(call)

    def do_backend_tensor_copy_async(self, backend, _, source, target):
        ends = (Tensor.from_address(t).data for t in (target, source))
        call = partial(ctypes.memmove, *ends, self.do_nbytes(source))
        self.put(backend, "copies overtake", call)

    def do_backend_synchronize(self, backend):
        if "synchronize returns at once" in self.faults:
            return
        done = threading.Event()
        self.kept[backend].queue.put(done.set)
        done.wait(30)

    def do_backend_event_new(self, device):
        return self.keep(None)

    def do_backend_event_free(self, event):
        del self.kept[event]

    def do_backend_event_record(self, event, backend):
        self.kept[event] = done = threading.Event()
        self.put(backend, "records are signalled at once", done.set)

    def do_backend_event_wait(self, backend, event):
        done = self.kept[event]
        if "waits are never submitted" in self.faults:
            return
        if "only the next command waits" in self.faults:
            self.kept[backend].queue.put(lambda: done.wait(0.0))
            return
        self.kept[backend].queue.put(lambda: done.wait(30))


FAULTS = {
    "waits are never submitted": "llama.cpp #20518, #18302: Vulkan",
    "only the next command waits": "llama.cpp #25229: Vulkan, transfers do not wait",
    "records are signalled at once": "llama.cpp #20518: Vulkan, an event that others had reset",
    "uploads overtake": "llama.cpp #27572: HIP, another stream; ggml #659: CUDA",
    "downloads overtake": "llama.cpp #19179: any backend; ik_llama.cpp #313: CUDA",
    "copies overtake": "llama.cpp #24476: SYCL, copies by a second interface",
    "uploads read late": "llama.cpp #8685, #24676: CUDA, SYCL, a source that is gone",
    "synchronize returns at once": "llama.cpp #13939: OpenCL",
}
"""Published faults, each with where it was found."""


def harness(*faults, **changes):
    """Return how the kit opens devices of a fake library."""
    library = Library(FakeGgml(faults), "fake")

    def open_devices(count, seed):
        return [GgmlDevice(library, DEVICE, f"ggml:Fake0/{i}") for i in range(count)]

    return Harness("ggml:Fake0", open=open_devices, **changes)
