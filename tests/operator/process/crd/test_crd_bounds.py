"""Every bound, choice and pattern of the CRD on a real API server, at its edge and one beyond."""

from __future__ import annotations

import pytest

from cluster.api import Answer
from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from jobs.job_files import job
from jobs.schema_edges import Edge, every_edge

pytestmark = pytest.mark.kube


def _try(plane: ControlPlane, namespace: str, edge: Edge) -> Answer:
    """Show it to the API server; nothing is stored."""
    jobs = f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/elasticjobs"
    how, body = "dryRun=All&fieldValidation=Strict", edge.body()
    if edge.path[0] != "status":
        return plane.api.post(f"{jobs}?{how}", body)
    return plane.api.merge(f"{jobs}/there/status?{how}", {"status": body["status"]})


def test_an_edge_is_accepted_and_what_is_beyond_it_is_refused(
    plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    """With the name of the field and the bound in the API server's words."""
    kubectl.run("create", "-f", "-", stdin=job("there"))
    unlike = {}
    for edge in every_edge():
        answer = _try(plane, namespace, edge)
        told = edge.refused in answer.message and edge.field in answer.message
        if not (answer.code == 422 and told if edge.refused else answer.ok):
            unlike[edge.name] = (answer.code, answer.message)
    assert unlike == {}
