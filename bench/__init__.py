"""Benchmarks: each folder measures one thing, beside its peers, in one run.

Not shipped: nothing here is imported by a part of Holdfast.
"""
