"""NVRTC, which compiles CUDA C++ and needs no driver."""
