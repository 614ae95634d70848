"""The CRD of this checkout in a test cluster."""

from __future__ import annotations

from typing import Final

from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from house.repository import ROOT

_JOBS: Final = "/apis/holdfast.dev/v1alpha1/elasticjobs"


def install_crd(plane: ControlPlane) -> None:
    """Apply it, and wait until jobs can be listed."""
    crd = ROOT / "manifests" / "crd" / "elasticjobs.yaml"
    Kubectl(plane.kubeconfig).run("apply", "-f", str(crd))
    plane.until("the CRD", lambda: plane.api.get(_JOBS).ok)
