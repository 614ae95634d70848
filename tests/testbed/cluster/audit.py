"""Rights that an account used, from the API server's audit log, beside those it was granted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cluster.api import Api

_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_FORBIDDEN: Final = {"authorization.k8s.io/decision": "forbid"}
_UNAUTHORIZED: Final = 401
_READS_SECONDS: Final = 10.0
"""An API server that is ready has read all roles after this long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """One request."""

    verb: str
    group: str
    resource: str
    """With its subresource: pods/status."""
    namespace: str
    name: str
    refused: bool
    """By the authorizer: an admission that says no is none of it."""
    uri: str
    at: float
    """When the API server received it; Unix time, s."""

    @property
    def trial(self) -> bool:
        """Return whether the request was to change nothing."""
        return "dryRun" in self.uri


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One verb on one resource, for one name or for all."""

    verb: str
    group: str
    resource: str
    namespace: str
    """Empty: everywhere."""
    name: str = ""

    def covers(self, use: Use) -> bool:
        """Return whether the grant allows a request."""
        return (
            (self.verb, self.group, self.resource) == (use.verb, use.group, use.resource)
            and self.namespace in {"", use.namespace}
            and self.name in {"", use.name}
        )


def uses(log: Path, user: str) -> Iterator[Use]:
    """Yield what a user asked for, oldest first; `user` ends in `:` for all that begin so."""
    for line in log.read_text().splitlines():
        event = json.loads(line)
        name = event["user"].get("username", "")
        if name == user or (user.endswith(":") and name.startswith(user)):
            yield _use(event)


def refusals(log: Path, user: str, without: Iterable[tuple[float, float]] = ()) -> list[str]:
    """Return the requests refused for lack of rights, each once. Read a long log quickly.

    Args:
        log: The API server's.
        user: Whose.
        without: From when to when a test had taken rights away, or the API server was started
            again, which refuses what it has not read yet who may do; Unix time, s.
    """
    lines = [one for one in log.read_text().splitlines() if f'"{user}"' in one]
    events = [json.loads(one) for one in lines if '"forbid"' in one]
    spans = list(without)
    found = [
        one
        for one in events
        if not any(since <= _at(one) < until + _READS_SECONDS for since, until in spans)
    ]
    return sorted({one.uri for one in map(_use, found) if one.refused})


def _at(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


def _use(event: Mapping[str, Any]) -> Use:
    about = event.get("objectRef") or {}
    resource, part = about.get("resource", ""), about.get("subresource")
    refused = _FORBIDDEN.items() <= (event.get("annotations") or {}).items()
    code = (event.get("responseStatus") or {}).get("code")
    return Use(
        verb=event["verb"],
        group=about.get("apiGroup", ""),
        resource=f"{resource}/{part}" if part else resource,
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        refused=refused or code == _UNAUTHORIZED,
        uri=f"{event['verb']} {event['requestURI']}",
        at=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
    )


def most_in_a_second(times: Sequence[float]) -> int:
    """Return the most moments (Unix time, s) that lie in any one second."""
    return max((sum(one <= other < one + 1 for other in times) for one in times), default=0)


def grants(roles: Iterable[Mapping[str, Any]]) -> Iterator[Grant]:
    """Yield every single right that Roles and ClusterRoles give."""
    for role in roles:
        namespace = role["metadata"].get("namespace", "")
        for rule in role["rules"]:
            yield from (
                Grant(verb, group, resource, namespace, name)
                for verb in rule["verbs"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames", [""])
            )


def granted(api: Api) -> list[Grant]:
    """Return the operator's grants from the roles of the release `holdfast`."""
    chosen = "?labelSelector=app.kubernetes.io%2Finstance%3Dholdfast"
    roles = [
        role
        for kind in ("clusterroles", "namespaces/holdfast-system/roles")
        for role in api.get(f"{_RBAC}/{kind}{chosen}").body["items"]
        if not any("aggregate-to" in label for label in role["metadata"]["labels"])
    ]
    return list(grants(roles))


def unused(
    api: Api, given: Iterable[Grant], used: Sequence[Use], besides: Iterable[Grant] = ()
) -> list[Grant]:
    """Return the grants without a use but those for APIs that the cluster does not serve.

    besides: grants whose use no request shows, or another test.
    """
    served = {"", *(one["name"] for one in api.get("/apis").body["groups"])}
    return [
        one
        for one in given
        if one.group in served and one not in besides and not any(one.covers(use) for use in used)
    ]
