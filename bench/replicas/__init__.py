"""Synchronous replicas: what a loss costs, steps without one, joins, goodput, simulated worlds."""
