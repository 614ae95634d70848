"""Errors of synchronous replicas that a training script may catch.

Belongs here: the family. Does not belong here: errors of a collective, which stand with its group.
"""

from __future__ import annotations


class ReplicasError(Exception):
    """An error of synchronous replicas."""


class ContentError(ReplicasError, RuntimeError):
    """A reduced gradient that does not have each micro-batch of its step once."""


class MeetingError(ReplicasError, RuntimeError):
    """Replicas that no meeting brings to one step."""


class ModelError(ReplicasError, ValueError):
    """A model or an optimizer that cannot be replicated as it is; it names the part."""
