"""Checkpoints of other frameworks and libraries: one module a format, each with a reader.

Belongs here: what a format's files mean, in torch's names.
"""
