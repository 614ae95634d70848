"""Errors of the zygote's handle."""


class ZygoteError(Exception):
    """The zygote cannot be started or no longer takes commands."""
