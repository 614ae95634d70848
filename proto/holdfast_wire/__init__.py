"""The wire: protobuf messages, their frozen twins, the codec between them, names, identities.

Belongs here: what two components must agree on. Does not belong here: decisions, processes, torch,
Kubernetes, or anything that imports another component.
"""

__version__ = "0.1.0"
"""This release. Asking the installed package for it costs a process 2 MB."""
