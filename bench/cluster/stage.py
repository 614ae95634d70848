"""A control plane, four nodes and the operator's release for one measurement.

Needs root, as every test with pods does, and what `make cluster-tools` builds.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.control_plane import ControlPlane
from cluster.crd import install_crd
from cluster.jobs import Job
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import Release

NAMESPACE = "bench"
_DEFAULTS = {"node_grace_s": 40, "toleration_s": 300}


@dataclass(frozen=True, slots=True)
class Stage:
    """The cluster, the operator's release and the folder that a measurement works with."""

    plane: ControlPlane
    nodes: Nodes
    release: Release
    kubectl: Kubectl
    folder: Path
    """Of its jobs."""

    def job(self, name: str) -> Job:
        """Return a job that is not made yet."""
        return Job(self.plane, self.kubectl, name, self.release.operator_log)

    def nodes_without_us(self, job: Job) -> list[str]:
        """Return the nodes of workers that have neither the operator nor the job's master."""
        taken = {pod["spec"]["nodeName"] for pod in job.pods("master")}
        taken |= {
            pod["spec"]["nodeName"] for pod in self.release.kubectl.json("get", "pods")["items"]
        }
        return sorted({pod["spec"]["nodeName"] for pod in job.pods()} - taken)

    def close_own_nodes(self) -> None:
        """Let no more pods onto the operator's node."""
        for pod in self.release.kubectl.json("get", "pods")["items"]:
            self.kubectl.run("cordon", pod["spec"]["nodeName"])


@contextlib.contextmanager
def stage(*, own_times: bool = False) -> Iterator[Stage]:
    """Begin with an idle cluster; everything is gone afterwards.

    Args:
        own_times: It gives a silent node up as late as Kubernetes does by default.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        times = _DEFAULTS if own_times else {}
        plane = ControlPlane(Path(folder), **times)
        try:
            plane.start(lambda: install_crd(plane))
            nodes = Nodes(plane, count=4)
            try:
                release = Release(plane.kubeconfig)
                release.install()
                kubectl = Kubectl(plane.kubeconfig, NAMESPACE)
                kubectl.run("create", "namespace", NAMESPACE)
                account = ("get", "serviceaccount", "default")
                plane.until("the account", lambda: kubectl.try_run(*account).returncode == 0)
                jobs = Path(folder) / "jobs"
                jobs.mkdir()
                yield Stage(plane, nodes, release, kubectl, jobs)
            finally:
                nodes.stop()
        finally:
            plane.stop()
