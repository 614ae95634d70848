"""The master's policies: one file each, pure functions on frozen inputs, a verdict with its reason.

Belongs here: what is decided and why. Does not belong here: clocks, I/O, randomness, logging, the
master's own state, and what is done about a verdict.
"""
