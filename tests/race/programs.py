"""Programs after published races: ordinary PyTorch, each broken and mended.

The threads are listed in the docstrings; what is here was written for this project after their
descriptions. Streams are created as the programs do; ``settle`` orders set-up before the part that
the thread is about.
"""

import sys

import torch

CUDA = torch.device("cuda")


def settle():
    torch.cuda.synchronize()


def here():
    return torch.cuda.current_stream()


# --- pinned memory --------------------------------------------------------------------------------


def vllm_24527(mended):
    """Input tensors in pinned memory are refilled while the last step's uploads are queued."""
    positions = torch.zeros(16, dtype=torch.int64, pin_memory=True)
    on_device = torch.zeros(16, dtype=torch.int64, device=CUDA)
    uploaded = torch.cuda.Event()
    for step in range(3):
        if mended:
            uploaded.synchronize()
        positions[:8] = step
        on_device.copy_(positions, non_blocking=True)
        uploaded.record()
        on_device.mul_(2)


def vllm_25279(mended):
    """The host waits before it refills inputs, but sampling tensors were refilled before that."""
    tokens = torch.zeros(8, pin_memory=True)
    temperature = torch.zeros(8, pin_memory=True)
    uploaded = torch.cuda.Event()
    for step in range(3):
        if mended:
            uploaded.synchronize()
        temperature.fill_(step)
        uploaded.synchronize()
        tokens.fill_(step)
        inputs = [t.to(CUDA, non_blocking=True) for t in (tokens, temperature)]
        uploaded.record()
        (inputs[0] * inputs[1]).sum()


def vllm_31841(mended):
    """A mask in pinned memory is rewritten under its upload; two buffers are used in turn."""
    masks = [torch.zeros(32, dtype=torch.bool).pin_memory() for _ in range(2 if mended else 1)]
    done = None
    for step in range(4):
        mask = masks[step % len(masks)]
        mask.numpy()[step:] = True
        on_device = mask.to(CUDA, non_blocking=True)
        if done is not None:
            done.synchronize()
        done = here().record_event()
        on_device.sum()


def vllm_36013(mended):
    """Counters are read through a numpy view before their download has landed."""
    counts = torch.arange(6, device=CUDA)
    landing = torch.empty(6, dtype=torch.int64, pin_memory=True)
    view = landing.numpy()
    landing.copy_(counts, non_blocking=True)
    landed = here().record_event()
    if mended:
        landed.synchronize()
    return view.sum() + int(view[2])


def vllm_48085(mended):
    """A list of blocks goes through one pinned buffer in each step."""
    buffer = torch.zeros(8, dtype=torch.int64).pin_memory()
    cache = torch.ones(16, 4, device=CUDA)
    for step in range(3):
        if mended:
            buffer = torch.zeros(8, dtype=torch.int64).pin_memory()
        buffer[:2] = torch.tensor([step, step + 8])
        blocks = buffer[:2].to(CUDA, non_blocking=True)
        cache.index_fill_(0, blocks, 0.0)


def vllm_53057(mended):
    """A ring of host buffers relies on a wait in each step; a step without outputs has none."""
    ring = [torch.zeros(4, pin_memory=True) for _ in range(2)]
    for step in range(4):
        slot = ring[step % 2]
        slot.copy_(torch.full((4,), float(step)))
        embedded = slot.to(CUDA, non_blocking=True)
        is_encoder_only = step < 2
        if mended or not is_encoder_only:
            embedded.sum().item()


def sglang_31427(mended):
    """A host page is evicted and filled again while a restore still reads it."""
    page = torch.ones(2, 8).pin_memory()
    cache = torch.zeros(4, 8, device=CUDA)
    load = torch.cuda.Stream()
    settle()
    with torch.cuda.stream(load):
        cache[1:3].copy_(page, non_blocking=True)
        restored = load.record_event()
    if mended:
        restored.synchronize()
    page.numpy()[0] = 7.0


# --- events and waits -----------------------------------------------------------------------------


def vllm_45704(mended):
    """The copy stream saves cache blocks that queued kernels are still to write."""
    cache = torch.zeros(8, 16, device=CUDA)
    saved = torch.empty(2, 16, pin_memory=True)
    save = torch.cuda.Stream()
    settle()
    cache[2:4].add_(1)
    written = here().record_event()
    with torch.cuda.stream(save):
        if mended:
            save.wait_event(written)
        saved.copy_(cache[2:4], non_blocking=True)
    save.synchronize()


def vllm_47282(mended):
    """A load writes a freed block of the cache while attention of its last owner reads it."""
    cache = torch.zeros(8, 16, device=CUDA)
    host = torch.ones(1, 16).pin_memory()
    table = torch.tensor([1, 5], device=CUDA)
    load = torch.cuda.Stream()
    settle()
    scores = cache.index_select(0, table).sum(1)
    if mended:
        load.wait_stream(here())
    with torch.cuda.stream(load):
        cache[5:6].copy_(host, non_blocking=True)
    here().wait_stream(load)
    return scores


def vllm_32881(mended):
    """The buffer for weights of layer 2 is filled while the copy of layer 1 out of it is queued."""
    staging = torch.zeros(64, device=CUDA)
    layers = [torch.zeros(64, device=CUDA) for _ in range(2)]
    receive = torch.cuda.Stream()
    settle()
    taken = torch.cuda.Event()
    for layer in layers:
        with torch.cuda.stream(receive):
            if mended:
                taken.wait()
            staging.fill_(1.0)
            received = receive.record_event()
        received.wait()
        layer.copy_(staging)
        taken.record()


def sglang_26380(mended):
    """The scheduler's stream writes index tables that the last forward pass still reads."""
    table = torch.zeros(8, 4, dtype=torch.int64, device=CUDA)
    forward = torch.cuda.Stream()
    schedule = torch.cuda.Stream()
    settle()
    for step in range(3):
        with torch.cuda.stream(schedule):
            if mended:
                schedule.wait_stream(forward)
            table[torch.tensor([step, step + 1], device=CUDA)] = step
        forward.wait_stream(schedule)
        with torch.cuda.stream(forward):
            table[step + 1].sum()


def sglang_35748(mended):
    """The state of a reused request row is published while the forward stream may change it."""
    state = torch.zeros(4, 4, device=CUDA)
    published = torch.zeros(4, 4, device=CUDA)
    forward = torch.cuda.Stream()
    settle()
    with torch.cuda.stream(forward):
        state[2].add_(1)
    if mended:
        here().wait_stream(forward)
    published[2].copy_(state[2])


def tensorrt_llm_15349(mended):
    """Cache transfers wait for the buffer manager's stream instead of the executing one."""
    cache = torch.zeros(4, 8, device=CUDA)
    execute = torch.cuda.Stream()
    manage = torch.cuda.Stream()
    transfer = torch.cuda.Stream()
    settle()
    with torch.cuda.stream(execute):
        cache[0].normal_()
    transfer.wait_stream(execute if mended else manage)
    with torch.cuda.stream(transfer):
        sent = cache[0] * 1
    sent.record_stream(here())
    execute.wait_stream(transfer)


def megatron_3140(mended):
    """The copy is queued on the upload stream, the event recorded on the download stream."""
    host = torch.ones(32).pin_memory()
    upload = torch.cuda.Stream()
    download = torch.cuda.Stream()
    with torch.cuda.stream(upload):
        weights = host.to(CUDA, non_blocking=True)
    ready = (upload if mended else download).record_event()
    here().wait_event(ready)
    weights.record_stream(here())
    (weights * 2).sum()


def torchtitan_2581(mended):
    """Inside the context of the copy stream ``current_stream()`` is that stream itself."""
    pool = torch.zeros(16, device=CUDA)
    fresh = torch.ones(16).pin_memory()
    copies = torch.cuda.Stream()
    settle()
    compute = here()
    pool.mul(2)
    with torch.cuda.stream(copies):
        copies.wait_stream(compute if mended else torch.cuda.current_stream())
        pool.copy_(fresh, non_blocking=True)
    compute.wait_stream(copies)


def deepspeed_5606(mended):
    """The compute stream refills a bucket of gradients that the reduction stream still reads."""
    bucket, total = torch.zeros(32, device=CUDA), torch.zeros(32, device=CUDA)
    reduction = torch.cuda.Stream()
    settle()
    for step in range(3):
        if mended:
            here().wait_stream(reduction)
        bucket.fill_(step)
        reduction.wait_stream(here())
        with torch.cuda.stream(reduction):
            total.add_(bucket)


# --- blocks of the allocator ----------------------------------------------------------------------


def vllm_ascend_13394(mended):
    """Random numbers are made on one stream, used on another, and freed there."""
    generate = torch.cuda.Stream()
    probabilities = torch.rand(64, device=CUDA)
    settle()
    for _ in range(3):
        with torch.cuda.stream(generate):
            noise = torch.empty(64, device=CUDA).exponential_()
        here().wait_stream(generate)
        if mended:
            noise.record_stream(here())
        probabilities.div(noise).argmax()
        del noise


def sglang_34076(mended):
    """Ids of one stream are gathered with on another; only luck keeps their block from reuse."""
    table = torch.zeros(16, 4, device=CUDA)
    forward = torch.cuda.Stream()
    ids = torch.arange(4, device=CUDA)
    forward.wait_stream(here())
    with torch.cuda.stream(forward):
        rows = table[ids]
        if mended:
            ids.record_stream(forward)
    del ids
    other = torch.full((2,), 3, device=CUDA)
    here().wait_stream(forward)
    return rows, other


def ray_66344(mended):
    """Prefetched batches are recorded one level deep; tensors in nested lists are not."""
    load = torch.cuda.Stream()

    def fetch():
        with torch.cuda.stream(load):
            return [torch.ones(8, device=CUDA), [torch.ones(8, device=CUDA)]]

    def protect(batch):
        for item in batch:
            if isinstance(item, torch.Tensor):
                item.record_stream(here())
            elif mended:
                protect(item)

    for _ in range(2):
        batch = fetch()
        here().wait_stream(load)
        protect(batch)
        batch[1][0].mul(2)
        del batch


def diffusers_12673(mended):
    """``record_stream`` names the transfer stream instead of the one that uses the weights."""
    weights = torch.ones(128).pin_memory()
    transfer = torch.cuda.Stream()
    outer = here()
    for _ in range(2):
        with torch.cuda.stream(transfer):
            loaded = weights.to(CUDA, non_blocking=True)
            loaded.record_stream(outer if mended else torch.cuda.current_stream())
        outer.wait_stream(transfer)
        loaded.sum()
        del loaded


def diffusers_14657(mended):
    """``.data`` is replaced on the host while kernels of another stream read the old storage."""
    layer = torch.nn.Linear(8, 8, bias=False, device=CUDA)
    compute = torch.cuda.Stream()
    settle()
    x = torch.ones(1, 8, device=CUDA)
    compute.wait_stream(here())
    with torch.cuda.stream(compute), torch.no_grad():
        y = layer(x)
    if mended:
        here().wait_stream(compute)
    layer.weight.data = torch.empty(0, device=CUDA)
    fresh = torch.zeros(8, 8, device=CUDA)
    x.record_stream(compute)
    return y, fresh


def megatron_5788(mended):
    """A gather buffer is resized to nothing while the compute stream uses it."""
    gather = torch.cuda.Stream()
    with torch.cuda.stream(gather):
        full = torch.ones(256, device=CUDA)
    here().wait_stream(gather)
    full.mul(2)
    if mended:
        full.record_stream(here())
    full.untyped_storage().resize_(0)
    with torch.cuda.stream(gather):
        again = torch.zeros(256, device=CUDA)
    here().wait_stream(gather)
    again.record_stream(here())


def timm_2784(mended):
    """A prefetch stream gets a block again that the consumer has let go while its reads run."""
    source = torch.ones(4, 16).pin_memory()
    prefetch = torch.cuda.Stream()
    for _ in range(3):
        if mended:
            prefetch.wait_stream(here())
        with torch.cuda.stream(prefetch):
            batch = source.to(CUDA, non_blocking=True)
            batch = batch.div_(255)
        here().wait_stream(prefetch)
        batch.sum()
        del batch


def pytorch_181218(mended):
    """A block that the communication stream still adds to is given to the next chunk."""
    reduce = torch.cuda.Stream()
    total = torch.zeros(64, device=CUDA)
    settle()
    for _ in range(2):
        chunk = torch.ones(64, device=CUDA)
        reduce.wait_stream(here())
        with torch.cuda.stream(reduce):
            total.add_(chunk)
            end = reduce.record_event()
        if mended:
            here().wait_event(end)
        del chunk


# --- graphs ---------------------------------------------------------------------------------------


def rtp_llm_1360(mended):
    """The host overwrites pinned memory that the last replay of a graph reads."""
    host = torch.zeros(8, pin_memory=True)
    inputs = torch.zeros(8, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs.copy_(host, non_blocking=True)
        inputs.mul(2)
    staged = torch.cuda.Event()
    for step in range(3):
        if mended:
            staged.synchronize()
        host.fill_(step)
        graph.replay()
        staged.record()


def onnxruntime_32121(mended):
    """A captured copy keeps the address of pinned memory that has gone back to its pool."""
    host = torch.zeros(8).pin_memory()
    inputs = torch.zeros(8, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs.copy_(host, non_blocking=True)
        inputs.add_(1)
    graph.replay()
    settle()
    if not mended:
        del host
    graph.replay()


def early_inputs(mended):
    """Inputs of a graph are uploaded on a side stream for which the replay does not wait."""
    host = torch.ones(8).pin_memory()
    inputs = torch.zeros(8, device=CUDA)
    upload = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = inputs * 2
    settle()
    with torch.cuda.stream(upload):
        inputs.copy_(host, non_blocking=True)
    if mended:
        here().wait_stream(upload)
    graph.replay()
    return outputs


# --- right, though it does not look so ------------------------------------------------------------


def vllm_36942():
    """Views of a pinned tensor are made before the wait; the contents are read behind it."""
    landing = torch.empty(8, pin_memory=True)
    landing.copy_(torch.ones(8, device=CUDA), non_blocking=True)
    view, array = landing[2:6], landing.numpy()[1:]
    here().record_event().synchronize()
    return view.sum(), array.sum()


def nnsight_666():
    """Non-blocking copies on one stream; what the host reads waits."""
    x = torch.ones(8).pin_memory().to(CUDA, non_blocking=True)
    y = (x * 2).to("cpu", non_blocking=False)
    return y.sum().item() + x.sum().item()


def vllm_32799():
    """Pageable memory is rewritten behind a non-blocking upload: the runtime has staged it."""
    ids = torch.zeros(8)
    on_device = torch.zeros(8, device=CUDA)
    for step in range(3):
        ids.fill_(step)
        on_device.copy_(ids, non_blocking=True)


def other_rows():
    """One stream reads rows of a table while another writes other rows."""
    table = torch.zeros(8, 4, device=CUDA)
    side = torch.cuda.Stream()
    settle()
    table[torch.tensor([1, 2], device=CUDA)].sum()
    with torch.cuda.stream(side):
        table[torch.tensor([3, 6], device=CUDA)] = 1.0


def polled():
    """A buffer is used again when a poll says that its copy is done."""
    buffer = torch.zeros(8).pin_memory()
    done = torch.cuda.Event()
    for step in range(3):
        while not done.query():
            pass
        buffer.fill_(step)
        buffer.to(CUDA, non_blocking=True)
        done.record()


RIGHT = (vllm_36942, nnsight_666, vllm_32799, other_rows, polled)
RACING = tuple(
    value
    for value in list(globals().values())
    if getattr(getattr(value, "__code__", None), "co_varnames", ())[:1] == ("mended",)
)

if __name__ == "__main__":
    name, *variant = sys.argv[1:]
    globals()[name](*(v == "mended" for v in variant))
