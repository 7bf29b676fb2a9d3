"""Streams: which nodes run beside each other, and which as one."""
