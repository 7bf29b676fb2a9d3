"""Products with weights that one warp feeds to the others; see ``fed_jobs.h``."""
