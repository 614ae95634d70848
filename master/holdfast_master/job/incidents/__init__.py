"""Incidents: opened by evidence, blamed, charged to a budget, closed by recovery.

`policies.failure` decides the class of a failure.
"""
