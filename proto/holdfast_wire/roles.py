"""Which role may call which method. A method that is not listed may be called by nobody."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_wire.keys import ROLE_AGENT, ROLE_MASTER, ROLE_OPERATOR, ROLE_USER

_PEOPLE = frozenset({ROLE_USER, ROLE_OPERATOR})
_ANYBODY = frozenset({ROLE_USER, ROLE_OPERATOR, ROLE_AGENT, ROLE_MASTER})

ALLOWED: Mapping[str, frozenset[str]] = {
    "/holdfast.v1.AgentService/Session": frozenset({ROLE_AGENT}),
    "/holdfast.v1.PeerService/GetRound": frozenset({ROLE_AGENT}),
    "/holdfast.v1.PeerService/DescribePart": frozenset({ROLE_AGENT}),
    "/holdfast.v1.PeerService/ReadPart": frozenset({ROLE_AGENT}),
    "/holdfast.v1.OperatorService/Sync": frozenset({ROLE_OPERATOR}),
    "/holdfast.v1.JobService/GetJob": _PEOPLE,
    "/holdfast.v1.JobService/WatchJob": _PEOPLE,
    "/holdfast.v1.JobService/ListNodes": _PEOPLE,
    "/holdfast.v1.JobService/ListEvents": _PEOPLE,
    "/holdfast.v1.JobService/GetGoodput": _PEOPLE,
    "/holdfast.v1.JobService/Scale": _PEOPLE,
    "/holdfast.v1.JobService/RestartWorker": _PEOPLE,
    "/holdfast.v1.JobService/DumpStacks": _PEOPLE,
    "/holdfast.v1.JobService/DrainNode": _PEOPLE,
    "/holdfast.v1.JobService/StopJob": _PEOPLE,
    "/holdfast.v1.JobService/TriggerCheckpoint": _PEOPLE,
    "/grpc.health.v1.Health/Check": _ANYBODY,
    "/grpc.health.v1.Health/Watch": _ANYBODY,
    "/grpc.health.v1.Health/List": _ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _PEOPLE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _PEOPLE,
}
"""Full method name to the roles that may call it."""


def refusal(method: str, role: str) -> str | None:
    """Return why `role` may not call `method`; None where it may."""
    allowed = ALLOWED.get(method)
    if allowed is None:
        return f"{method} is not served to anybody"
    if role in allowed:
        return None
    return f"role {role!r} may not call {method}; allowed: {', '.join(sorted(allowed))}"
