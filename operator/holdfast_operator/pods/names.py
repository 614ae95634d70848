"""Names, paths, labels and owner references of a job's objects. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast_operator.plan.pods import MASTER, WORKER, PodSlot, Role
from holdfast_wire import keys

KEYS_PER_SECRET: Final = 128
"""Key pairs of workers in one Secret: 180 kB, of the 1 MiB that a Secret may have."""
LABEL_INCARNATION: Final = "holdfast.dev/incarnation"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Job that owns all objects made for it."""

    name: str
    namespace: str
    uid: str

    @property
    def master_service(self) -> str:
        """Name of the Service in front of the master."""
        return f"{self.name}-master"

    @property
    def master_host(self) -> str:
        """Host name of the master, valid anywhere in the cluster."""
        return f"{self.master_service}.{self.namespace}.svc"

    @property
    def master_secret(self) -> str:
        """Name of the Secret with the master's certificate."""
        return f"{self.name}-master-tls"

    @property
    def user_secret(self) -> str:
        """Name of the Secret with the certificate for people."""
        return f"{self.name}-user-tls"

    @property
    def budget(self) -> str:
        """Name of the PodDisruptionBudget of its workers."""
        return f"{self.name}-worker"

    @property
    def gang(self) -> str:
        """Name of the PodGroup of its workers."""
        return f"{self.name}-worker"

    @property
    def path(self) -> str:
        """Path of the job itself in the API."""
        where = f"/apis/{keys.API_VERSION}/namespaces/{self.namespace}"
        return f"{where}/elasticjobs/{self.name}"

    @property
    def revisions(self) -> str:
        """Path of the ControllerRevisions in its namespace."""
        return f"/apis/apps/v1/namespaces/{self.namespace}/controllerrevisions"

    @property
    def budget_path(self) -> str:
        """Path of the PodDisruptionBudget of its workers."""
        where = f"/apis/policy/v1/namespaces/{self.namespace}"
        return f"{where}/poddisruptionbudgets/{self.budget}"

    @property
    def policy(self) -> str:
        """Name of that policy: the job's own name may well be taken by a person's."""
        return f"{self.name}-pods"

    @property
    def policy_path(self) -> str:
        """Path of the NetworkPolicy of its pods."""
        where = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}"
        return f"{where}/networkpolicies/{self.policy}"

    def core(self, kind: str) -> str:
        """Return the path of a kind of core/v1 in its namespace."""
        return f"/api/v1/namespaces/{self.namespace}/{kind}"

    def worker_secret(self, rank: int) -> str:
        """Name of the Secret with the certificate of a worker."""
        return f"{self.name}-worker-tls-{rank // KEYS_PER_SECRET}"

    @property
    def reference(self) -> dict[str, str]:
        """The job, as objects name another one."""
        kind = {"apiVersion": keys.API_VERSION, "kind": keys.KIND}
        return {**kind, "name": self.name, "uid": self.uid}

    def labels(self) -> dict[str, str]:
        """Return the labels of every object of the job."""
        return {keys.LABEL_JOB: self.name, "app.kubernetes.io/managed-by": "holdfast-operator"}

    def pod_labels(self, slot: PodSlot, incarnation: int) -> dict[str, str]:
        """Return the labels of one pod; the one master has no index, which could name a worker."""
        place = {keys.LABEL_ROLE: slot.name, LABEL_INCARNATION: str(incarnation)}
        if slot.role is not Role.MASTER:
            place[keys.LABEL_INDEX] = str(slot.index)
        return self.labels() | place

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata of an object that is deleted with the job."""
        owner = {**self.reference, "controller": True, "blockOwnerDeletion": True}
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(),
            "ownerReferences": [owner],
        }


def services(owner: Owner, port: int) -> list[dict[str, Any]]:
    """Return the master's Service, and the headless one that names the workers."""
    selector = {keys.LABEL_JOB: owner.name}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": owner.metadata(owner.master_service),
            "spec": {
                "selector": selector | {keys.LABEL_ROLE: MASTER},
                "ports": [{"name": "grpc", "port": port, "targetPort": port}],
                # Agents reach a master that is not ready for other clients yet.
                "publishNotReadyAddresses": True,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": owner.metadata(owner.name),
            "spec": {
                "clusterIP": "None",
                "selector": selector | {keys.LABEL_ROLE: WORKER},
                "publishNotReadyAddresses": True,
            },
        },
    ]


def budget(owner: Owner, least: int) -> dict[str, Any]:
    """Return the PodDisruptionBudget that keeps `least` workers while nodes are drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.metadata(owner.budget),
        "spec": {
            "minAvailable": least,
            "selector": {"matchLabels": {keys.LABEL_JOB: owner.name, keys.LABEL_ROLE: WORKER}},
        },
    }


def policy(owner: Owner, others: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the NetworkPolicy that lets a job's pods hear each other, and whom `others` name.

    On every port: ranks listen where their collectives' library chooses.
    """
    mine = {"matchLabels": {keys.LABEL_JOB: owner.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.metadata(owner.policy),
        "spec": {
            "podSelector": mine,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": mine}]}, *others],
        },
    }
