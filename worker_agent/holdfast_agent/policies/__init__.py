"""Decisions of the agent: pure functions and state machines.

No clock, no I/O and no logging belongs here.
"""
