"""Kernels of the host's processor as LLVM IR, and the team of threads that runs them.

Leaves: these modules know element types and rotations (``ggsched.ir``), and no device. Whoever
imports ``compiler`` needs llvmlite; the others do not.
"""
