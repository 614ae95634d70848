"""Decisions of local SGD: numbers go in, numbers come out with the reason.

Belongs here: pure functions of frozen values. Does not belong here: torch, a clock, a log, input
and output, randomness. A replica that has the same reports as another decides as that one does.
"""
