"""List of a namespace's jobs, for `holdfast status -n NAMESPACE`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from holdfast_cli.cluster.find import connect
from holdfast_cli.cluster.job import list_bodies
from holdfast_cli.cluster.kubeconfig import Where

HEADER = ("JOB", "STATE", "READY", "REPLICAS", "ROUND", "STEP")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterListed:
    """A line of the list."""

    name: str
    namespace: str
    state: str
    """The phase, in lower case."""
    ready: int
    replicas: int
    round: int
    step: int


def list_there(environ: Mapping[str, str], where: Mapping[str, str]) -> list[ClusterListed]:
    """Return every job of the chosen namespace, by name.

    Raises:
        BadInputError: the cluster cannot be used.
        MasterUnreachableError: the API server does not answer, or refuses.
    """
    with contextlib.closing(connect(environ, Where(**where))) as connection:
        bodies = list_bodies(connection, connection.access.namespace)
    found = []
    for body in bodies:
        status = body.get("status") or {}
        world = status.get("world") or {}
        found.append(
            ClusterListed(
                name=body["metadata"]["name"],
                namespace=body["metadata"]["namespace"],
                state=status.get("phase", "Pending").lower(),
                ready=status.get("readyReplicas", 0),
                replicas=body["spec"]["replicas"],
                round=world.get("round", 0),
                step=world.get("step", 0),
            )
        )
    return found


def row(job: ClusterListed) -> tuple[str, ...]:
    """Return a line as text."""
    numbers = (f"{job.ready}", f"{job.replicas}", f"{job.round}", f"{job.step}")
    return (job.name, job.state, *numbers)
