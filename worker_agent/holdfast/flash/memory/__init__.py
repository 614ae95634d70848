"""Arenas in shared memory: layout, slots, backends, recovery of a dead agent's arenas.

Files of checkpoints do not belong here; they are `storage`.
"""
