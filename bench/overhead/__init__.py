"""Costs of Holdfast in a job without faults, beside torchrun."""
