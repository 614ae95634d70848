"""Requests of a job's whole life to the API server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cluster.audit import Use, most_in_a_second, uses
from cluster.control_plane import ControlPlane
from cluster.jobs import Make, training
from cluster.kubectl import Kubectl
from cluster.release import ACCOUNT
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_WORKERS = 2


def test_a_jobs_life_costs_few_requests(
    plane: ControlPlane, make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """One creation and one deletion of each worker's pod, one write of the status a second.

    Also around a master that is lost, whose successor's epoch stands in the status, and at the end.
    """
    job = make_job("life")
    body = training(tmp_path, "--steps=200", replicas=_WORKERS, cleanup__pods="All")
    (tmp_path / "hold").touch()
    job.create(body)
    job.until_training(_WORKERS)
    epoch = job.world["epoch"]
    kubectl.run("delete", "pod", "-l", "holdfast.dev/job=life,holdfast.dev/role=master")
    job.until("the next master", lambda: bool(job.world["epoch"] > epoch))
    (tmp_path / "hold").unlink()
    job.until_over()
    job.until("no pods", lambda: not job.pods() + job.pods("master"))
    job.delete()

    def asked(verb: str, resource: str) -> list[Use]:
        found = uses(plane.audit_log, ACCOUNT)
        mine = [one for one in found if one.namespace == kubectl.namespace and not one.trial]
        return [one for one in mine if (one.verb, one.resource) == (verb, resource)]

    deleted = Counter[str]()

    def told() -> bool:
        deleted.clear()
        deleted.update(one.name for one in asked("delete", "pods"))
        return deleted.keys() >= {f"life-worker-{rank}-0" for rank in range(_WORKERS)}

    plane.until("the log", told)
    assert len(asked("create", "pods")) == _WORKERS + 2  # and two masters
    assert set(deleted.values()) == {1}
    written = [one.at for one in asked("patch", "elasticjobs/status")]
    assert len(written) > 5
    assert most_in_a_second(written) == 1, written
