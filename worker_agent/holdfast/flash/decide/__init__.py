"""Decisions of the flash checkpoint: pure functions, no clock, no file, no torch."""
