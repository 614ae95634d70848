"""Strikes against Kubernetes nodes: kept by the operator from one job to the next."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.commands import Commands
from cluster.control_plane import ControlPlane
from cluster.jobs import SHARED, Job, Make, looping, share
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import HISTORY, Release
from cluster.rights import needs_pods
from holdfast_operator.nodes.strikes import NodeStrike, from_data, to_data
from holdfast_operator.plan.inputs import avoided_by
from holdfast_wire.strikes import NODE_SOURCE, StrikeCause

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]


def _job(folder: Path, *flags: str, **spec: Any) -> dict[str, Any]:
    """A job of processes that take steps, whose pods share a folder."""
    return share(looping(folder, "--steps=100000", *flags, **spec), folder)


def _kept(release: Release) -> tuple[NodeStrike, ...]:
    """Return the strikes in the operator's ConfigMap; none without one."""
    found = release.kubectl.try_run("get", "configmap", HISTORY)
    if found.returncode:
        return ()
    return from_data(release.kubectl.json("get", "configmap", HISTORY)["data"])


def test_a_later_job_knows_what_an_earlier_one_met_on_its_nodes(
    make_job: Make,
    plane: ControlPlane,
    release: Release,
    kubectl: Kubectl,
    namespace: str,
    tmp_path: Path,
) -> None:
    """Also when the job is gone, and with it its master, and the operator is another one."""
    first = make_job("first")
    first.create(_job(tmp_path, f"--exit-once=137:0:{SHARED}/exited"))
    first.until(
        "its strike", lambda: any(one.job == f"{namespace}/first" for one in _kept(release))
    )
    (strike,) = (one for one in _kept(release) if one.job == f"{namespace}/first")
    assert strike.cause == StrikeCause.FAILURE
    assert strike.host == first.pods()[0]["spec"]["nodeName"]
    first.delete()
    release.restart()
    second = make_job("second")
    second.create(_job(tmp_path, replicas=2))
    second.until_training(2)
    holdfast = Commands(plane.kubeconfig, tmp_path, namespace)

    def told() -> list[dict[str, Any]]:
        hosts = holdfast.json("nodes", "second", "--history")
        there = [one for host in hosts if host["host"] == strike.host for one in host["strikes"]]
        # Jobs of other tests may have failed on this node of the cluster, too.
        return [one for one in there if one["job"] == f"{namespace}/first"]

    second.until("the first job's strike", lambda: bool(told()))
    assert [one["cause"] for one in told()] == ["Failure"]
    assert f"{namespace}/first" in holdfast.run("nodes", "second", "--history")


def _remember(release: Release, host: str, *jobs: str) -> None:
    """Have the next operator find a fresh straggler of each job on a node, and nothing else."""
    strikes = [
        NodeStrike(
            host=host,
            cause=StrikeCause.STRAGGLER,
            unix_time=time.time(),
            job=f"team/{name}",
            job_uid=name,
            text="rank 0 was slow",
        )
        for name in jobs
    ]
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": HISTORY, "labels": {"team": "infrastructure"}},
        "data": to_data(strikes),
    }
    with release.away():  # else it would merge its own into it
        release.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)
    release.until_rolled_out()


def _workers(*jobs: Job) -> list[tuple[str, dict[str, Any]]]:
    return [(pod["metadata"]["name"], pod) for job in jobs for pod in job.pods()]


def test_a_job_keeps_away_from_a_node_on_which_two_jobs_had_trouble(
    make_job: Make, plane: ControlPlane, release: Release, namespace: str, tmp_path: Path
) -> None:
    """It is told so; a job that needs every node of the cluster takes that one, too."""
    names = sorted(one["metadata"]["name"] for one in plane.api.get("/api/v1/nodes").body["items"])
    bad, good = names
    _remember(release, bad, "one", "two")
    careful = make_job("careful")
    careful.create(_job(tmp_path))
    careful.until_training(1)
    assert careful.pods()[0]["spec"]["nodeName"] == good
    careful.until("the event", lambda: "NodeAvoided" in careful.events())
    holdfast = Commands(plane.kubeconfig, tmp_path, namespace)
    (host,) = holdfast.json("nodes", "careful", "--history")
    assert (host["host"], host["avoided"]) == (
        bad,
        "Straggler 1 in team/one; Straggler 1 in team/two",
    )
    whole = make_job("whole")
    whole.create(_job(tmp_path, replicas=2))
    whole.until_training(2)
    avoided = {name: avoided_by(pod["spec"]) for name, pod in _workers(careful, whole)}
    assert avoided == {"careful-worker-0-0": (bad,), "whole-worker-0-0": (), "whole-worker-1-0": ()}


def _set_condition(kubectl: Kubectl, node: str, status: str, began: str) -> None:
    condition = {
        "type": "GpuMemWatch",
        "status": status,
        "reason": "GpuMemWatchIsNotHealthy",
        "message": "as NVSentinel says it",
        "lastTransitionTime": began,
    }
    patch = json.dumps({"status": {"conditions": [condition]}})
    kubectl.run("patch", "node", node, "--subresource=status", "-p", patch)


def test_what_a_node_shows_is_kept_too(
    plane: ControlPlane, nodes: Nodes, release: Release, kubectl: Kubectl
) -> None:
    """Once, whatever happens to the operator: it counts from the time when it began.

    What others have put on the ConfigMap stays on it.
    """
    name = plane.api.get("/api/v1/nodes").body["items"][0]["metadata"]["name"]
    _remember(release, name)
    began = dt.datetime.now(dt.UTC).replace(microsecond=0)
    _set_condition(kubectl, name, "True", began.isoformat())

    def shown() -> list[tuple[str, str, float]]:
        mine = (one for one in _kept(release) if one.job == NODE_SOURCE)
        return [(one.host, one.cause, one.unix_time) for one in mine]

    wanted = [(name, "Condition", began.timestamp())]
    plane.until("the strike", lambda: shown() == wanted)
    release.restart()
    _set_condition(kubectl, name, "False", dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
    assert shown() == wanted
    kept = release.kubectl.json("get", "configmap", HISTORY)
    assert kept["metadata"]["labels"] == {"team": "infrastructure"}
