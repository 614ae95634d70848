"""Where the objects of a job are in the API. Pure."""

from __future__ import annotations

from holdfast_operator.build.names import Owner
from holdfast_wire import keys


def core(owner: Owner, kind: str) -> str:
    """A kind of core/v1 in the job's namespace."""
    return f"/api/v1/namespaces/{owner.namespace}/{kind}"


def revisions(owner: Owner) -> str:
    """ControllerRevisions in the job's namespace."""
    return f"/apis/apps/v1/namespaces/{owner.namespace}/controllerrevisions"


def budgets(owner: Owner) -> str:
    """PodDisruptionBudgets in the job's namespace."""
    return f"/apis/policy/v1/namespaces/{owner.namespace}/poddisruptionbudgets"


def job(owner: Owner) -> str:
    """The job itself."""
    where = f"/apis/{keys.API_VERSION}/namespaces/{owner.namespace}"
    return f"{where}/elasticjobs/{owner.name}"
