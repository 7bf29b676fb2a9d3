"""Placement policies: ggml's rules, pins by pattern, predicted cost."""
