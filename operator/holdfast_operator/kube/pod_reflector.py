"""Cache of all pods of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import quote

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.reflector import Reflector
from holdfast_operator.pods.record import PodRecord, read_pod
from holdfast_wire import keys

Heard = Callable[[PodRecord, bool], None]
"""Called with a pod that changed, and True if it is gone."""


class PodReflector(Reflector):
    """All pods with our label, by the key of their job."""

    def __init__(self, client: KubeClient, namespace: str, heard: Heard) -> None:
        """Begin without pods.

        Args:
            client: The API server.
            namespace: Namespace to watch; empty: all.
            heard: Called with every change.
        """
        where = f"/namespaces/{namespace}" if namespace else ""
        super().__init__(client, f"/api/v1{where}/pods?labelSelector={quote(keys.LABEL_JOB)}")
        self._heard = heard
        self._pods: dict[str, PodRecord] = {}
        self._by_job: dict[tuple[str, str], dict[str, PodRecord]] = {}

    def of(self, key: tuple[str, str]) -> list[PodRecord]:
        """Return the pods of a job."""
        return list(self._by_job.get(key, {}).values())

    def nodes(self) -> frozenset[str]:
        """Return the Kubernetes nodes that have pods of jobs."""
        return frozenset(pod.node for pod in self._pods.values() if pod.node)

    def _uids(self) -> Collection[str]:
        return self._pods.keys()

    def _take(self, body: dict[str, Any]) -> None:
        record = read_pod(body)
        known = self._pods.get(body["metadata"]["uid"])
        if known is not None and not _in_its_place(known, record):
            self._drop(known.uid)
        if record is None or known == record:
            return
        self._pods[record.uid] = record
        self._by_job.setdefault(record.key, {})[record.uid] = record
        self._heard(record, False)

    def _drop(self, uid: str) -> None:
        record = self._pods.pop(uid, None)
        if record is None:
            return
        of_job = self._by_job[record.key]
        del of_job[uid]
        if not of_job:
            del self._by_job[record.key]
        self._heard(record, True)


def _in_its_place(known: PodRecord, record: PodRecord | None) -> bool:
    """Return whether a pod's labels still name the same job and place.

    People can edit its labels: for planner and master the pod they knew is gone then.
    """
    return record is not None and (known.key, known.slot) == (record.key, record.slot)
