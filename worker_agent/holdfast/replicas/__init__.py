"""Synchronous replicas that nobody restarts: each step has the same micro-batches, whoever trains.

Belongs here: gradients over replicas that come and go, and what a joiner is given. Does not belong
here: who is a member of the job, which its master decides, and which samples a micro-batch has
(`holdfast.data`). No module imports torch before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.local_sgd.members.members import (
        RosterMembers,
        StaticMembers,
        members_of_environment,
        mesh_of,
    )
    from holdfast.replicas.errors import ContentError, MeetingError, ModelError, ReplicasError
    from holdfast.replicas.replicated import Replicated

__all__ = [
    "ContentError",
    "MeetingError",
    "ModelError",
    "ReplicasError",
    "Replicated",
    "RosterMembers",
    "StaticMembers",
    "members_of_environment",
    "mesh_of",
]
_MODULES = {
    "ContentError": "replicas.errors",
    "MeetingError": "replicas.errors",
    "ModelError": "replicas.errors",
    "Replicated": "replicas.replicated",
    "ReplicasError": "replicas.errors",
    "RosterMembers": "local_sgd.members.members",
    "StaticMembers": "local_sgd.members.members",
    "members_of_environment": "local_sgd.members.members",
    "mesh_of": "local_sgd.members.members",
}


def __getattr__(name: str) -> Any:
    """Import a name's module on first use: the decisions need no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_MODULES[name]}"), name)
