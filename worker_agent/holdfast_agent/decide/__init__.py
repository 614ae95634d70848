"""The agent's decisions: pure functions from what is known to what follows, with the reason.

No clock, no I/O, no randomness, no logging here; `now` is passed in.
"""
