"""Ordinary PyTorch programs in which nothing races, to be run with and without a recorder.

    python benchmarks/gpu/race_programs.py NAME STEPS

Prints ``NAME: SECONDS s`` of the steps, after three to warm up.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda"


def net() -> Any:
    """Return a model of 13 layers with weights."""
    layers: list[Any] = []
    for _ in range(6):
        layers += [nn.Linear(512, 512), nn.ReLU(), nn.LayerNorm(512)]
    return nn.Sequential(*layers, nn.Linear(512, 64)).to(DEVICE)


def batches(steps: int) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and classes on the device."""
    for _ in range(steps):
        yield torch.randn(64, 512, device=DEVICE), torch.randint(64, (64,), device=DEVICE)


def loaded(steps: int, workers: int = 0) -> Any:
    """Return a loader of batches in pinned memory."""
    data = torch.utils.data.TensorDataset(
        torch.randn(steps * 8, 512), torch.randint(64, (steps * 8,))
    )
    return torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True, num_workers=workers)


def train(model: Any, optimizer: Any, data: Iterator[tuple[Any, Any]]) -> None:
    """Train a model on batches."""
    for x, target in data:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(x), target).backward()
        optimizer.step()


def sgd(model: Any) -> Any:
    """Return an optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.01)


def eager(steps: int) -> None:
    """AdamW with foreach."""
    model = net()
    train(model, torch.optim.AdamW(model.parameters(), foreach=True), batches(steps))


def compiled(steps: int, mode: str = "default") -> None:
    """A compiled model."""
    model = net()
    train(torch.compile(model, mode=mode), sgd(model), batches(steps))


def loader(steps: int) -> None:
    """Uploads from a loader with worker processes."""
    model = net()
    moved = (
        (x.to(DEVICE, non_blocking=True), t.to(DEVICE, non_blocking=True))
        for x, t in loaded(steps, 2)
    )
    train(model, sgd(model), moved)


def prefetch(steps: int) -> None:
    """The next batch is uploaded on a stream of its own."""
    model, side = net(), torch.cuda.Stream()

    def uploaded() -> Iterator[Any]:
        data = iter(loaded(steps))
        following = upload(data)
        while following is not None:
            here = torch.cuda.current_stream()
            here.wait_stream(side)
            for tensor in following:
                tensor.record_stream(here)
            batch, following = following, upload(data)
            yield batch

    def upload(data: Iterator[Any]) -> Any:
        batch = next(data, None)
        with torch.cuda.stream(side):
            return batch and [tensor.to(DEVICE, non_blocking=True) for tensor in batch]

    train(model, sgd(model), uploaded())


def offload(steps: int) -> None:
    """Activations wait in pinned memory."""
    model = net()
    optimizer = sgd(model)
    for x, _ in batches(steps):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def graph(steps: int) -> None:
    """A captured step; inputs are copied in."""
    model, x, side = net(), torch.randn(64, 512, device=DEVICE), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        model(x).sum().backward()
    for _ in range(steps):
        x.copy_(torch.randn(64, 512).pin_memory(), non_blocking=True)
        captured.replay()


def graphed_callables(steps: int) -> None:
    """A model as graphs of its forward and its backward pass."""
    model = torch.cuda.make_graphed_callables(net(), (torch.randn(64, 512, device=DEVICE),))
    train(model, sgd(model), batches(steps))


def decode(steps: int) -> None:
    """Rows of a cache, sampled ids, a download on a stream of its own."""
    cache = torch.zeros(4096, 8, 64, device=DEVICE)
    q, first = torch.randn(8, 8, 64, device=DEVICE), torch.arange(8, device=DEVICE) * 512
    landing, side = torch.zeros(8, dtype=torch.long).pin_memory(), torch.cuda.Stream()
    for step in range(steps):
        slots = first + step % 512
        cache[slots] = q
        scores = (q * cache.index_select(0, slots)).sum(-1)
        ids = torch.softmax(scores, -1).argmax(-1)
        ready = torch.cuda.current_stream().record_event()
        with torch.cuda.stream(side):
            side.wait_event(ready)
            ids.record_stream(side)
            landing.copy_(ids, non_blocking=True)
        side.synchronize()
        landing.tolist()


def distributed(steps: int, wrap: Callable[[Any], Any]) -> None:
    """A wrapped model on one rank."""
    from torch import distributed as dist

    device = torch.device(DEVICE, 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    model = wrap(net())
    train(model, sgd(model), batches(steps))
    dist.destroy_process_group()


def sharded(model: Any) -> Any:
    """Return a model whose layers are sharded one by one."""
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def triton_softmax(steps: int) -> None:
    """A kernel of Triton."""
    from benchmarks.gpu.race_triton import softmax

    x = torch.randn(64, 512, device=DEVICE)
    out = torch.empty_like(x)
    for _ in range(steps):
        softmax[(64,)](x, out, 512, B=512)
        x = out.clone()


def cupy_products(steps: int) -> None:
    """Arrays of CuPy that go to PyTorch and back."""
    import cupy

    side = cupy.cuda.Stream(non_blocking=True)
    a = cupy.ones((256, 256), dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    for _ in range(steps):
        with side:
            b = a @ a
            b /= cupy.abs(b).max()
            tensor = torch.from_dlpack(b)
        side.synchronize()
        a = cupy.from_dlpack(torch.relu(tensor) + 1)
        torch.cuda.synchronize()


PROGRAMS: dict[str, Callable[[int], None]] = {
    "eager": eager,
    "compiled": compiled,
    "reduce-overhead": partial(compiled, mode="reduce-overhead"),
    "loader": loader,
    "prefetch": prefetch,
    "offload": offload,
    "graph": graph,
    "graphed-callables": graphed_callables,
    "decode": decode,
    "ddp": partial(distributed, wrap=lambda m: nn.parallel.DistributedDataParallel(m, [0])),
    "fsdp2": partial(distributed, wrap=sharded),
    "triton": triton_softmax,
    "cupy": cupy_products,
}


def main() -> None:
    """Run the program that the command line names."""
    name, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    PROGRAMS[name](3)
    torch.cuda.synchronize()
    start = time.perf_counter()
    PROGRAMS[name](steps)
    torch.cuda.synchronize()
    print(f"{name}: {time.perf_counter() - start:.3f} s", flush=True)


if __name__ == "__main__":
    main()
