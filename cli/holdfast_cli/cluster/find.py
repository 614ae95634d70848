"""Resolves a job's name to a job of this machine, or of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from holdfast_cli.cluster import kubeconfig
from holdfast_cli.cluster.connection import Connection
from holdfast_cli.cluster.job import ClusterJob
from holdfast_cli.cluster.kubeconfig import Where
from holdfast_cli.errors import BadInputError, JobNotFoundError, MasterUnreachableError


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
