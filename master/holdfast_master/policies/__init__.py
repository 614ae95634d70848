"""Decisions of the job master: pure functions that return a verdict with its reason.

No clock, no randomness, no I/O and no logging belongs here; nor state: callers pass what is judged.
"""
