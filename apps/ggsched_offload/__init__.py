"""Experts: whether those of a mixture are computed where their weights are, or copied."""
