"""Claims of volumes that stay: a folder of one node, which outlives the pods that mount it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster.kubectl import Kubectl


def make_claim(kubectl: Kubectl, name: str, folder: Path, node: str) -> None:
    """Claim a new folder of one node, and wait until the cluster's own controller has bound it."""
    folder.mkdir()
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    source = {
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    _claim(kubectl, name, "ReadWriteOnce", source)


def share_folder(kubectl: Kubectl, name: str, folder: str, mode: str = "ReadWriteMany") -> None:
    """Claim a folder that every node has, for pods that may not name it themselves."""
    _claim(kubectl, name, mode, {"hostPath": {"path": folder, "type": "Directory"}})


def _claim(kubectl: Kubectl, name: str, mode: str, source: dict[str, Any]) -> None:
    common = {"accessModes": [mode], "storageClassName": ""}
    volume: dict[str, Any] = {
        **common,
        **source,
        "capacity": {"storage": "1Gi"},
        "claimRef": {"name": name, "namespace": kubectl.namespace},
    }
    claim = {
        **common,
        "volumeName": _volume(kubectl, name),
        "resources": {"requests": {"storage": "1Gi"}},
    }
    for kind, called, spec in (
        ("PersistentVolume", _volume(kubectl, name), volume),
        ("PersistentVolumeClaim", name, claim),
    ):
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": called}, "spec": spec}
        kubectl.run("create", "-f", "-", stdin=body)
    bound = "--for=jsonpath={.status.phase}=Bound"
    kubectl.run("wait", f"pvc/{name}", bound, "--timeout=20s")


def remove_claim(kubectl: Kubectl, name: str) -> None:
    """Delete a claim that no pod mounts any more, and its volume, which has no namespace."""
    kubectl.run("delete", "pvc", name, "--timeout=20s")
    kubectl.run("delete", "pv", _volume(kubectl, name), "--timeout=20s")


def _volume(kubectl: Kubectl, name: str) -> str:
    return f"{kubectl.namespace}-{name}"
