"""Shards: rewrite a graph so that several devices compute parts of each product."""
