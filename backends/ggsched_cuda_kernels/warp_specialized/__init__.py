"""Warp-specialised products: a producer warp loads weights for consumers; see ``gemv_jobs.h``."""
