"""Rounds: a world is formed, gets its store, is assigned to its members, starts, is flushed.

Which size it should have belongs to `rescale`.
"""
