"""The master's knowledge of its job, as values: durable state, nodes, world, timers.

Nothing here decides; each module holds one subject and its invariants.
"""
