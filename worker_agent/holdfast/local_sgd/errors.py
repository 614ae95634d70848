"""Errors of local SGD that a training script may catch.

Belongs here: the family and its errors that need no torch. Does not belong here: an error of a
collective, which stands with its group (`sync.group`).
"""

from __future__ import annotations


class LocalSGDError(Exception):
    """An error of local SGD."""


class LocalSGDConfigError(LocalSGDError, ValueError):
    """A setting that is not valid, or contradicts another; it names field, value and remedy."""


class RosterError(LocalSGDError):
    """Replicas whose units no change of members can leave behind."""


class WarmUpError(LocalSGDError):
    """A replica was lost while gradients were averaged over all of them."""
