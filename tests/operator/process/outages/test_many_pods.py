"""Paper nodes: a job of more pods than this machine could run, and what the scheduler decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.audit import most_in_a_second, uses
from cluster.control_plane import ControlPlane
from cluster.jobs import Job, manifest
from cluster.kubectl import Kubectl
from cluster.kubelet.paper import KEY
from cluster.nodes import Nodes
from cluster.release import ACCOUNT
from cluster.rights import needs_pods
from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.pods import MASTER_SLOT, OVERDUE_SECONDS
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.pod import PodSource, master_pod, worker_pod
from jobs.planned import made_by, running

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_MANY, _FEW = 120, 20


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> Iterator[Nodes]:
    """Two nodes for operator and master, two on paper with room for 220 pods."""
    with Nodes(plane, paper=2) as started:
        yield started


def _bound(plane: ControlPlane, namespace: str, pod: dict[str, Any]) -> str:
    """Make a pod that may run on paper nodes only, and return the node that it is bound to."""
    del pod["metadata"]["ownerReferences"]  # there is no such job: it would be collected
    pod["metadata"]["namespace"] = namespace
    pod["spec"]["nodeSelector"] = {KEY: "true"}
    pod["spec"]["tolerations"] = [{"key": KEY, "operator": "Exists"}]
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m"}}
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = plane.api.post(path, pod)
    assert made.ok, made.message
    name = pod["metadata"]["name"]
    found: list[str] = []

    def bound() -> bool:
        found[:] = [plane.api.get(f"{path}/{name}").body["spec"].get("nodeName", "")]
        return found != [""]

    plane.until(f"a node for {name}", bound)
    return found[0]


def test_the_scheduler_binds_a_lost_workers_successor_to_a_node_that_lives(
    plane: ControlPlane, nodes: Nodes, namespace: str
) -> None:
    """Though the master, which keeps away from workers, is on the only other node."""
    world = running(replicas=2)
    owner = Owner(name="t", namespace=namespace, uid="u")
    source = PodSource(owner=owner, spec=world.job.spec, body=world.job.body, image="x")
    master = CreatePod(slot=MASTER_SLOT, incarnation=0, name="t-master-0-0", reason="")
    kept = _bound(plane, namespace, master_pod(source, master, 1))
    (lost,) = {"n3", "n4"} - {kept}
    gone = world.pods["t-worker-1-0"]
    world.change(gone.name, node=lost, deleting=True, gone_by=world.now - OVERDUE_SECONDS)
    (again,) = made_by(world.look())
    assert _bound(plane, namespace, worker_pod(source, again)) == kept


def _body() -> dict[str, Any]:
    body = manifest(
        "true",
        replicas=_MANY,
        minReplicas=1,
        maxReplicas=_MANY,
        elasticPolicy__scaleDownGraceSeconds=5,  # no agent is there to leave before
    )
    pod = body["spec"]["worker"]["template"]["spec"]
    pod["nodeSelector"] = {KEY: "true"}
    pod["tolerations"] = [{"key": KEY, "operator": "Exists"}]
    return body


def test_hundreds_of_pods_are_made_and_taken_away_once_each(
    plane: ControlPlane, make_job: Callable[[str], Job], kubectl: Kubectl
) -> None:
    """120 workers, then 20, then none: no pod twice, no write of the status that nobody needs."""
    job = make_job("many")
    job.create(_body())
    job.until("all pods", lambda: len(job.live()) == _MANY)
    indices = {pod["metadata"]["labels"]["holdfast.dev/index"] for pod in job.pods()}
    assert indices == {str(index) for index in range(_MANY)}
    kubectl.run("scale", "ej", "many", f"--replicas={_FEW}")
    job.until("few pods", lambda: len(job.pods()) == _FEW)
    left = {int(pod["metadata"]["labels"]["holdfast.dev/index"]) for pod in job.pods()}
    assert left == set(range(_FEW)), "the highest indices go first"
    job.delete()
    job.until("no pods", lambda: not job.pods() + job.pods("master"))
    mine = [one for one in uses(plane.audit_log, ACCOUNT) if one.namespace == kubectl.namespace]
    asked = Counter((one.verb, one.resource) for one in mine if not one.trial)
    assert asked["create", "pods"] == _MANY + 1  # and the master
    assert asked["delete", "pods"] <= _MANY + 1
    written = [
        one.at for one in mine if (one.verb, one.resource) == ("patch", "elasticjobs/status")
    ]
    assert most_in_a_second(written) == 1
