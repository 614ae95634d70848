"""Paths of a job's objects in the API. Pure."""

from __future__ import annotations

from holdfast_operator.pods.names import Owner
from holdfast_wire import keys


def core(owner: Owner, kind: str) -> str:
    """Return the path of a kind of core/v1 in the job's namespace."""
    return f"/api/v1/namespaces/{owner.namespace}/{kind}"


def revisions(owner: Owner) -> str:
    """Return the path of ControllerRevisions in the job's namespace."""
    return f"/apis/apps/v1/namespaces/{owner.namespace}/controllerrevisions"


def budgets(owner: Owner) -> str:
    """Return the path of PodDisruptionBudgets in the job's namespace."""
    return f"/apis/policy/v1/namespaces/{owner.namespace}/poddisruptionbudgets"


def job(owner: Owner) -> str:
    """Return the path of the job itself."""
    where = f"/apis/{keys.API_VERSION}/namespaces/{owner.namespace}"
    return f"{where}/elasticjobs/{owner.name}"
