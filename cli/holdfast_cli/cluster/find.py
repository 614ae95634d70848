"""Jobs of a cluster: one by its name, or all of a namespace, for `holdfast status`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping

from holdfast_cli.cluster import kubeconfig
from holdfast_cli.cluster.connection import Connection
from holdfast_cli.cluster.job import ClusterJob, list_bodies
from holdfast_cli.cluster.kubeconfig import Where
from holdfast_cli.errors import BadInputError, JobNotFoundError, MasterUnreachableError

HEADER = ("JOB", "STATE", "READY", "REPLICAS", "ROUND", "STEP")


def connect(environ: Mapping[str, str], where: Where) -> Connection:
    """Return a connection to the chosen cluster; raises BadInputError."""
    return Connection(functools.partial(kubeconfig.load, environ, where))


def find_there(environ: Mapping[str, str], name: str, where: Where) -> ClusterJob:
    """Return the job of that name in the chosen cluster and namespace.

    Raises:
        BadInputError: no cluster is configured, or its configuration cannot be used.
        JobNotFoundError: The cluster has no such job.
        MasterUnreachableError: the API server does not answer, or refuses.
    """
    connection = connect(environ, where)
    job = ClusterJob(name, connection, connection.access.namespace)
    try:
        job.body()
    except BaseException:
        connection.close()
        raise
    return job


def find_elsewhere(environ: Mapping[str, str], name: str, absent: JobNotFoundError) -> ClusterJob:
    """Return the job of that name in the configured cluster, if this machine has none.

    Raises:
        JobNotFoundError: The cluster has none either, or cannot be asked.
    """
    if not kubeconfig.is_configured(environ):
        raise absent
    try:
        return find_there(environ, name, Where())
    except (BadInputError, JobNotFoundError, MasterUnreachableError) as error:
        raise JobNotFoundError(f"{absent}; {error}") from error


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
