"""Seconds until a hang is noticed, beside torchrun and DLRover."""
