"""Roles and the methods that each may call. An unlisted method is refused to every role."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_wire.keys import ROLE_AGENT, ROLE_MASTER, ROLE_OPERATOR, ROLE_USER
from holdfast_wire.messages import METHODS

_PEOPLE = frozenset({ROLE_USER, ROLE_OPERATOR})
_ANYBODY = frozenset({ROLE_USER, ROLE_OPERATOR, ROLE_AGENT, ROLE_MASTER})

ALLOWED: Mapping[str, frozenset[str]] = {
    "/holdfast.v1.AgentService/Session": frozenset({ROLE_AGENT}),
    "/holdfast.v1.PeerService/GetRound": frozenset({ROLE_AGENT}),
    "/holdfast.v1.PeerService/DescribePart": frozenset({ROLE_AGENT}),
    "/holdfast.v1.PeerService/ReadPart": frozenset({ROLE_AGENT}),
    "/holdfast.v1.OperatorService/Sync": frozenset({ROLE_OPERATOR}),
    # All of this service, and of no other: it is what people ask of a job.
    **{method: _PEOPLE for method in METHODS if method.startswith("/holdfast.v1.JobService/")},
    "/grpc.health.v1.Health/Check": _ANYBODY,
    "/grpc.health.v1.Health/Watch": _ANYBODY,
    "/grpc.health.v1.Health/List": _ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _PEOPLE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _PEOPLE,
}
"""Full method name → roles that may call it."""


def refusal(method: str, role: str) -> str | None:
    """The reason why a role may not call a method, for the caller; None: it may."""
    allowed = ALLOWED.get(method)
    if allowed is None:
        return f"{method} is not served to anybody"
    if role in allowed:
        return None
    return f"role {role!r} may not call {method}; allowed: {', '.join(sorted(allowed))}"
