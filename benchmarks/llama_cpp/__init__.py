"""Decoding and prefill on CPUs, as ratios against llama-bench in the same run."""
