"""Preflight: the share of planted bad nodes that are named, and the seconds that a check takes."""
