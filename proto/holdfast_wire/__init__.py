"""The wire: messages, their frozen twins, the codec between them, streams, names, identities."""

__version__ = "0.1.0"
"""This release. Reading it from the installed package would cost a process 2 MB."""
