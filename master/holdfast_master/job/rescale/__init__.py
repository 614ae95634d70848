"""Planned changes of a world's members, and the barrier at which all ranks save and stop.

Unplanned losses belong to `nodes` and `incidents`.
"""
