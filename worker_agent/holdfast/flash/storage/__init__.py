"""Committed steps in a directory: DCP files, manifest, atomic commit, owners, retention.

The decision to commit a step is the server's (`server`).
"""
