"""CUDA kernels of the plug-in ``cuda``: their sources, and how nodes are lowered to them.

``kernel_selection.lower`` makes kernel calls and cuBLAS products of nodes; ``sources`` gives the
texts of kernels and the options that compile them. Nothing here calls the driver: streams, memory,
graphs and the compiler are in ``ggsched_cuda``, which imports this package.
"""
