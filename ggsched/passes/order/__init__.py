"""Order: what must follow what, and the waits, barriers and host syncs that see to it."""
