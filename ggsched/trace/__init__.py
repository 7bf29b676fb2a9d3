"""What happened: accesses, synchronisation and lifetimes, in the order of the calls.

A trace is data like a plan. The sanitizer checks it from disk; it comes from a recorder around
live devices, from a plan, or from a litmus program.
"""
