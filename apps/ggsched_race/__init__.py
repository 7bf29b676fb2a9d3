"""Races in programs of others: PyTorch programs are recorded as traces and checked.

    with ggsched.watch() as watched:
        train_one_step()
    print(watched.report.to_text())

* ``recording`` writes what streams and the host do as a trace; ``byte_runs``, ``blocks``,
  ``host_memory``, ``host_buffers`` and ``call_sites`` say which bytes, which memory and which line
  of the program.
* ``pytorch`` feeds it from PyTorch's dispatcher and the hooks of ``torch.cuda._gpu_trace``;
  ``simulation`` puts streams, events, allocator and graphs on CPU tensors behind the same hooks.
* ``report`` turns findings of ``ggsched.sanitize`` into words of PyTorch.

Modules that import PyTorch are imported when a recording begins.
"""
