"""One job in a cluster: its object, its master and its end."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from holdfast_cli.cluster.connection import Connection
from holdfast_cli.cluster.ended import ending_of, holding
from holdfast_cli.errors import MasterUnreachableError
from holdfast_cli.final_state import FinalState
from holdfast_cli.target import MasterChannel
from holdfast_wire import keys
from holdfast_wire.channel import master_channel_options


@dataclasses.dataclass(slots=True)
class ClusterJob:
    """A job of one namespace."""

    name: str
    _connection: Connection
    _namespace: str

    @property
    def hint(self) -> str:
        """Arguments that name the job in a command."""
        return f"{self.name} -n {self._namespace}"

    def body(self) -> Any:
        """Return the job's object.

        Raises:
            JobNotFoundError: There is no such job.
            MasterUnreachableError: the API server does not answer, or refuses.
        """
        return self._connection.get(f"{_jobs(self._namespace)}/{quote(self.name, safe='')}")

    def ending(self) -> FinalState | None:
        """Final state of the job; None while it has not ended."""
        body = self.body()
        if "completionTime" not in (body.get("status") or {}):
            return None
        events = f"/apis/events.k8s.io/v1/namespaces/{self._namespace}/events"
        chosen = quote(f"regarding.uid={body['metadata']['uid']}")
        told: list[Any] = []
        with contextlib.suppress(MasterUnreachableError):  # the right to list events may be missing
            told = self._connection.get(f"{events}?fieldSelector={chosen}")["items"]
        return ending_of(body, told)

    def is_running(self) -> bool:
        """Return True unless the job is known to have ended."""
        try:
            return "completionTime" not in (self.body().get("status") or {})
        except MasterUnreachableError:  # the API server's fault says nothing of the job
            return True

    @contextlib.contextmanager
    def reach(self) -> Iterator[MasterChannel]:
        """Forward a port of the job's master while the context lasts.

        Raises:
            MasterUnreachableError: There is no reachable master.
        """
        body = self.body()
        port = body["spec"]["master"]["port"]
        pod = self._master(body)
        credentials = self._credentials()
        with tempfile.TemporaryDirectory(prefix="holdfast-forward-") as folder:  # 0700
            socket = Path(folder) / "master"
            self._connection.forward(self._namespace, pod, port, socket)
            try:
                options = master_channel_options(body["metadata"]["uid"])
                yield MasterChannel(f"unix:{socket}", credentials, options)
            finally:
                self._connection.stop_forwarding(socket)

    def why_unreachable(self, cause: str) -> str:
        """Explain why a master does not answer."""
        trouble = f" (port-forward: {self._connection.trouble})" if self._connection.trouble else ""
        return f"the master of {self.name} does not answer: {cause}{trouble}; {self._look()}"

    def close(self) -> None:
        """Close the connection to the API server."""
        self._connection.close()

    def _look(self) -> str:
        return f"see `kubectl -n {self._namespace} describe ej {self.name}`"

    def _master(self, body: Mapping[str, Any]) -> str:
        labels = f"{keys.LABEL_JOB}={self.name},{keys.LABEL_ROLE}=master"
        path = f"/api/v1/namespaces/{self._namespace}/pods?labelSelector={quote(labels)}"
        running = [
            pod
            for pod in self._connection.get(path)["items"]
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        if running:
            newest = max(running, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
            return str(newest["metadata"]["name"])
        status = body.get("status") or {}
        why = holding(status, "MasterReady") or "no operator has looked at it"
        phase = status.get("phase", "Pending")
        raise MasterUnreachableError(
            f"the master of {self.name} does not run (phase {phase}; {why}); {self._look()}"
        )

    def _credentials(self) -> grpc.ChannelCredentials:
        name = f"{self.name}-user-tls"
        secret = self._connection.get(f"/api/v1/namespaces/{self._namespace}/secrets/{name}")
        ca, certificate, key = (
            base64.b64decode(secret["data"][file])
            for file in (keys.CA_FILE, keys.CERT_FILE, keys.KEY_FILE)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)


def list_bodies(connection: Connection, namespace: str) -> list[Any]:
    """Return the objects of all jobs of a namespace, by name."""
    found: list[Any] = connection.get(_jobs(namespace))["items"]
    return sorted(found, key=lambda body: str(body["metadata"]["name"]))


def _jobs(namespace: str) -> str:
    return f"/apis/{keys.API_VERSION}/namespaces/{namespace}/elasticjobs"
