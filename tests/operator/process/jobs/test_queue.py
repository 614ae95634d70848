"""Jobs under the real Kueue: queued, admitted in part, shrunk for a better one, grown again."""

from __future__ import annotations

import collections
import itertools
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.audit import Grant, granted, unused, uses
from cluster.control_plane import ControlPlane
from cluster.jobs import SHARED, Job, Make, container, manifest, share, training
from cluster.kubectl import Kubectl
from cluster.queue import (
    NOT_BUILT,
    WORKLOAD_API,
    WORKLOADS,
    Kueue,
    QuotaWitness,
    kueue,
    kueue_folder,
    queue,
    reserved,
)
from cluster.release import ACCOUNT, Release
from cluster.rights import needs_pods
from house.extended import usual
from house.repository import ROOT

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_QUEUE = "kueue.x-k8s.io/queue-name"
_QUOTA = 4500
"""Thousandths of CPUs."""
_APART_SECONDS = 1.0
"""A node whose steps are further apart does not train in between."""
_PREEMPTED_SECONDS = 30.0
_MORE = pytest.mark.extended(
    "more seeds; ten minutes",
    held_by=[
        "operator/process/jobs/test_queue.py::test_quota_is_never_overcommitted",
        "operator/unit/plan/test_slices.py::test_quota_is_never_overcommitted_and_every_job_gets_its_share",
    ],
)


@pytest.fixture(scope="module", autouse=True)
def running_kueue(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """Kueue beside the cluster, from before the operator on."""
    tools = kueue_folder()
    if tools is None:
        pytest.skip(NOT_BUILT)
    with kueue(plane, tmp_path_factory.mktemp("kueue"), tools) as running:
        yield running


@pytest.fixture(autouse=True)
def quota(kubectl: Kubectl) -> Iterator[QuotaWitness]:
    """A queue with 4 CPUs for workers, and a rest for masters: never more is used or reserved."""
    queue(kubectl, f"{_QUOTA}m")
    witness = QuotaWitness(kubectl)
    yield witness
    witness.stop()
    assert witness.faults(_QUOTA) == []


def _queued(folder: Path, priority: str = "", *flags: str, **spec: Any) -> dict[str, Any]:
    """Return a job whose workers ask for a CPU each."""
    folder.mkdir(exist_ok=True)
    body = training(folder, *flags, **spec)
    container(body)["resources"] = {"requests": {"cpu": "1"}}
    body["metadata"]["labels"] = {_QUEUE: "team"}
    if priority:
        body["spec"]["scheduling"] = {"priorityClassName": priority}
    return body


def _steps(folder: Path) -> list[int]:
    """Return the steps that were made, in order; a lost one stands there twice."""
    return [int(line.split()[0]) for line in (folder / "steps").read_text().splitlines()]


def _made_again(folder: Path) -> int:
    steps = _steps(folder)
    return len(steps) - len(set(steps))


def _assert_preempted_in_order(story: list[str]) -> None:
    """By the store's order: the victim's pods leave, the quota is the better job's, it starts."""
    leave = [at for at, one in enumerate(story) if re.match(r"Pod low-worker-.*: leaves", one)]
    reserved = [at for at, one in enumerate(story) if re.match("Workload high-.* QuotaRes", one)]
    starts = [at for at, one in enumerate(story) if one.startswith("Pod high-")]
    assert leave[0] < leave[1] < reserved[0] < starts[0], story


def test_a_better_job_shrinks_the_one_that_trains_and_it_grows_again(
    make_job: Make, kubectl: Kubectl, quota: QuotaWitness, tmp_path: Path
) -> None:
    """The victim loses a step at each change at most, though it saves few, and no budget."""
    kubectl.run("create", "priorityclass", "better", "--value=1000")
    low, high = make_job("low"), make_job("high")
    low.create(_queued(tmp_path / "low", "", "--save-every=1000", replicas=4, minReplicas=1))
    low.until_training(4)
    low.until("all are admitted", lambda: low.condition("Admitted")["reason"] == "AllAdmitted")
    began = time.monotonic()
    high.create(_queued(tmp_path / "high", "better", replicas=2, minReplicas=2))
    high.until("its pods run", lambda: len(high.live()) == 2)
    took = time.monotonic() - began
    low.until_training(2)
    assert low.condition("Admitted")["reason"] == "PartlyAdmitted"
    low.until_steps()
    shrunk = _made_again(tmp_path / "low")
    high.until_training(2)
    high.delete()
    low.until_training(4)
    low.until_steps()
    grown = _made_again(tmp_path / "low") - shrunk
    print(f"a better job's pods ran after {took:.1f} s; steps made again: {shrunk}, then {grown}")
    for at, what in quota.story(began):
        print(f"  {at:5.2f} s {what}")
    _assert_preempted_in_order([what for _, what in quota.story(began)])
    assert shrunk <= 1
    assert grown <= 1
    assert low.used() in ({}, {"rescales": 0})


def test_a_job_waits_for_its_queue_and_begins_with_what_there_is(
    make_job: Make, tmp_path: Path
) -> None:
    """No pod before the core is admitted; then as many workers as fit."""
    first, second = make_job("first"), make_job("second")
    first.create(_queued(tmp_path / "first", replicas=3, minReplicas=3))
    first.until_training(3)
    second.create(_queued(tmp_path / "second", replicas=4, minReplicas=2))
    second.until("its word", lambda: second.condition("Suspended").get("reason") == "Queued")
    assert second.pods() == []
    assert second.pods("master") == []
    first.delete()
    second.until_training(4)


@pytest.mark.extended(
    "suspensions are among what is drawn",
    held_by=["operator/process/jobs/test_queue.py::test_quota_is_never_overcommitted"],
)
def test_an_owner_s_suspension_gives_the_quota_back(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """A job that is suspended by its owner holds nothing; resumed it queues again."""
    job = make_job("paused")
    job.create(_queued(tmp_path / "paused", replicas=2, minReplicas=2))
    job.until_training(2)
    job.patch(suspend=True)
    job.until("no quota", lambda: reserved(kubectl) == 0)
    job.patch(suspend=False)
    job.until_training(2)


def test_a_queue_that_is_missing_or_stopped_is_named_and_its_flavor_places_the_pods(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """The condition names the cause, and the job goes on by itself once that is mended."""
    job, other = make_job("lost"), make_job("elsewhere")
    body = _queued(tmp_path / "lost", replicas=2, minReplicas=1)
    body["metadata"]["labels"][_QUEUE] = "spot"
    job.create(body)
    body["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    other.create(body)
    job.until("the cause", lambda: "LocalQueue spot doesn't exist" in _why(job))
    assert "the job goes on by itself once that is mended" in _why(job)
    kubectl.run("label", "nodes", "--all", "pool=spot", "--overwrite")
    tolerated = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    queue(kubectl, "2500m", "spot", nodeLabels={"pool": "spot"}, tolerations=[tolerated])
    job.until_training(2)
    for pod in (*job.pods(), *job.pods("master")):
        assert pod["spec"]["nodeSelector"] == {"pool": "spot"}
        assert tolerated in pod["spec"]["tolerations"]
    stop = '{"spec":{"stopPolicy":"%s"}}'
    kubectl.run("patch", "clusterqueue", "spot", "--type=merge", "-p", stop % "HoldAndDrain")
    job.until("the cause", lambda: "stopped" in _why(job) and job.pods() == [])
    kubectl.run("patch", "clusterqueue", "spot", "--type=merge", "-p", stop % "None")
    job.until_training(2)
    assert (other.pods("master"), other.body.get("status")) == ([], None)
    names = [one["metadata"]["name"] for one in kubectl.json("get", WORKLOADS)["items"]]
    assert [name for name in names if not name.startswith("lost-")] == []


def test_a_job_whose_label_is_removed_trains_with_all_that_it_asks_for(
    make_job: Make, kubectl: Kubectl, release: Release, quota: QuotaWitness, tmp_path: Path
) -> None:
    """Half of it was admitted; out of the queue it grows, though its spec is not edited.

    So it does if no operator ran when the label was removed.
    """
    queue(kubectl, "2500m")
    job = make_job("freed")
    job.create(_queued(tmp_path / "freed", replicas=4, minReplicas=2))
    job.until_training(2)
    job.until("its word", lambda: "2 of 4 workers are admitted" in _why(job))
    generation = job.body["metadata"]["generation"]
    quota.stop()  # from here on it runs outside of it
    kubectl.run("label", "ej", job.name, f"{_QUEUE}-")
    job.until_training(4)
    job.until("no quota", lambda: reserved(kubectl) == 0)
    kubectl.run("label", "ej", job.name, f"{_QUEUE}=team")
    job.until("its word", lambda: "2 of 4 workers are admitted" in _why(job))
    job.until_training(2)
    with release.away():
        kubectl.run("label", "ej", job.name, f"{_QUEUE}-")
    job.until_training(4)
    assert job.body["metadata"]["generation"] == generation


@pytest.mark.extended(
    "a rare mishap",
    held_by=[
        "operator/unit/shell/test_job_queues.py::test_a_workload_of_its_name_that_is_another_s_is_named"
    ],
)
def test_a_workload_of_its_name_that_is_another_s_is_named_until_it_is_gone(
    make_job: Make, kubectl: Kubectl, quota: QuotaWitness, tmp_path: Path
) -> None:
    """The rights of the chart suffice to find out whose it is."""
    quota.stop()  # the other one is nobody's whose pods could be counted
    template = {"spec": {"containers": [{"name": "a", "image": "b"}], "restartPolicy": "Never"}}
    other = {"podSets": [{"name": "main", "count": 1, "template": template}]}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": other}
    kubectl.run("create", "-f", "-", stdin={**body, "metadata": {"name": "taken-core"}})
    job = make_job("taken")
    job.create(_queued(tmp_path / "taken", replicas=2, minReplicas=2))
    job.until("the cause", lambda: "taken-core exists and is not this job's" in _why(job))
    kubectl.run("delete", WORKLOADS, "taken-core")
    job.until_training(2)


def _why(job: Job) -> str:
    return str(job.condition("Admitted").get("message", ""))


def test_training_goes_on_while_kueue_and_the_operator_are_away(
    make_job: Make,
    kubectl: Kubectl,
    running_kueue: Kueue,
    release: Release,
    quota: QuotaWitness,
    tmp_path: Path,
) -> None:
    """What cannot be asked now is asked later; a Workload deleted by hand is asked anew."""
    job = make_job("calm")
    job.create(_queued(tmp_path / "calm", replicas=2, minReplicas=1, maxReplicas=3))
    job.until_training(2)
    pods = job.uids()
    running_kueue.kill()
    job.patch(replicas=3)
    job.until("the cause", lambda: "the queue cannot be asked" in _why(job))
    release.restart()
    job.until("the cause", lambda: "the queue cannot be asked" in _why(job))
    job.until_steps()
    assert job.uids() == pods
    running_kueue.start()
    job.until_training(3)
    assert pods < job.uids()
    quota.stop()  # whoever deletes a Workload by hand takes its quota at once
    kubectl.run("delete", WORKLOADS, "calm-core", "--wait=false")
    job.until("an end", lambda: job.uids().isdisjoint(pods))
    job.until_training(3)
    steps = _steps(tmp_path / "calm")
    assert len(steps) == len(set(steps))


def test_the_operator_uses_each_right_to_queues_that_it_has(
    make_job: Make, plane: ControlPlane, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Jobs with both kinds of priority, a preemption and an end need all of them, and no other."""
    kubectl.try_run("create", "priorityclass", "better", "--value=1000")
    class_ = {"apiVersion": WORKLOAD_API, "kind": "WorkloadPriorityClass", "value": 5}
    kubectl.run("apply", "-f", "-", stdin={**class_, "metadata": {"name": "usual"}})
    low, high = make_job("low"), make_job("high")
    body = _queued(tmp_path / "low", replicas=4, minReplicas=1)
    body["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "usual"
    low.create(body)
    low.until_training(4)
    high.create(_sleeping("better", replicas=2, minReplicas=2))
    high.until("its pods run", lambda: len(high.live()) == 2)
    high.delete()
    low.until_training(4)
    of_kueue = [one for one in granted(plane.api) if one.group == "kueue.x-k8s.io"]
    priorities = Grant("get", "scheduling.k8s.io", "priorityclasses", "")
    assert priorities in granted(plane.api)
    planted = Grant("update", "kueue.x-k8s.io", "workloads", "")
    used = list(uses(plane.audit_log, ACCOUNT))
    assert unused(plane.api, [*of_kueue, priorities, planted], used) == [planted]


@pytest.mark.parametrize("seed", usual(range(1, 51), 1, more=_MORE))
def test_quota_is_never_overcommitted(
    make_job: Make, kubectl: Kubectl, quota: QuotaWitness, seed: int
) -> None:
    """Jobs come, scale, pause and go in a drawn order; then the best one has all that it wants."""
    chance = random.Random(seed)
    story = [f"seed {seed}"]
    jobs: list[Job] = []
    for level in chance.sample(range(3), 3):
        name = f"level-{level}-{seed}"
        kubectl.try_run("create", "priorityclass", f"level-{level}", f"--value={level + 1}0")
        jobs.append(make_job(name))
        least, most = sorted(chance.choices(range(1, 5), k=2))
        jobs[-1].create(_sleeping(f"level-{level}", minReplicas=least, replicas=most))
        story.append(f"{name} of {least} to {most}")
        for _ in range(2):
            time.sleep(chance.random())
            story.append(_change(chance, kubectl, chance.choice(jobs)))
    best = max(jobs, key=lambda job: job.name)
    best.patch(suspend=False)
    wanted = best.body["spec"]["replicas"]
    best.until(f"all of {wanted}; {story}", lambda: len(best.live()) == wanted)
    best.delete()
    faults = quota.faults(_QUOTA)
    assert not faults, "\n".join([*story, *faults, *(text for _, text in quota.story(0.0))])


@pytest.mark.extended(
    "a measurement; two minutes",
    held_by=[
        "operator/process/jobs/test_queue.py::test_a_better_job_shrinks_the_one_that_trains_and_it_grows_again"
    ],
)
def test_a_preemption_costs_a_fraction_of_what_it_costs_a_batch_job(
    make_job: Make, kubectl: Kubectl, quota: QuotaWitness, tmp_path: Path
) -> None:
    """Node-seconds that were left to a job of 4, and in which it did not train, of both."""
    kubectl.try_run("create", "priorityclass", "best", "--value=2000")
    low, folder, batch = make_job("low"), tmp_path / "low", tmp_path / "batch"
    low.create(_queued(folder, replicas=4, minReplicas=1))
    ours = _lost(make_job("short"), [folder / "steps"])
    low.delete()
    quota.stop()  # the pods of a batch Job still end when its quota is another's
    batch.mkdir()
    kubectl.run("create", "-f", "-", stdin=_batch_job(batch))
    theirs = _lost(make_job("shorter"), [batch / f"steps-{index}" for index in range(4)])
    kubectl.run("delete", "job", "batch", "--wait=true")
    print(f"lost: {ours:.1f} node-seconds, a batch Job {theirs:.1f}: {theirs / ours:.1f} times")
    assert theirs > 1.5 * ours


def _lost(better: Job, logs: list[Path]) -> float:
    """Preempt 2 of 4 nodes for half a minute; return the node-seconds left, and not trained in."""
    better.until("4 nodes train", lambda: _training(logs) == 4)
    began = time.time()
    better.create(_sleeping("best", replicas=2, minReplicas=2))
    better.until("its pods run", lambda: len(better.live()) == 2)
    runs = time.time()
    time.sleep(_PREEMPTED_SECONDS)
    better.delete()
    gone = time.time()
    better.until("4 nodes train", lambda: _training(logs) == 4)
    ended = time.time()
    useful = sum(
        nodes * (at - before)
        for log in logs
        for (before, _), (at, nodes) in itertools.pairwise(_steps_of(log))
        if at - before < _APART_SECONDS and began <= at <= ended
    )
    return 4 * (ended - began) - 2 * (gone - runs) - useful


def _training(logs: list[Path]) -> int:
    """Return how many nodes have made a step just now."""
    last = [_steps_of(log)[-1:] for log in logs if log.exists()]
    return sum(nodes for ((at, nodes),) in filter(None, last) if time.time() - at < _APART_SECONDS)


def _steps_of(log: Path) -> list[tuple[float, int]]:
    """Return time and nodes of each whole line of a log of steps."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return [(float(line[2]), int(line[1])) for line in lines if len(line) == 3]


_BATCH = """
import os, pathlib, time
import torch

index = os.environ["JOB_COMPLETION_INDEX"]
state, log = (pathlib.Path(f"/work-files/{name}-{index}") for name in ("state", "steps"))
step = int(state.read_text()) if state.exists() else 0
while True:
    time.sleep(0.05)
    step += 1
    with log.open("a") as file:
        print(step, 1, time.time(), file=file)
    state.with_suffix(".new").write_text(str(step))
    state.with_suffix(".new").replace(state)
"""
"""A node of a batch Job: it needs no other one to train, and saves each step."""


def _batch_job(folder: Path) -> dict[str, Any]:
    """Return a batch Job of 4 nodes, suspended as Kueue's webhook would have it."""
    (folder / "batch.py").write_text(_BATCH)
    body = share(manifest(sys.executable, f"{SHARED}/batch.py"), folder)
    container(body)["resources"] = {"requests": {"cpu": "1"}}
    template = body["spec"]["worker"]["template"]
    template["spec"]["restartPolicy"] = "Never"
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "suspend": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "batch", "labels": {_QUEUE: "team"}},
        "spec": {**spec, "template": template},
    }


_REPLICA = """
import os, runpy
with open("/work-files/started", "a") as file:
    print(os.environ["HOSTNAME"], file=file)
runpy.run_path({path!r}, run_name="__main__")
"""
"""Notes each start of a process of the example."""


@pytest.mark.extended(
    "replicas that go are tested beside; here a queue takes them",
    held_by=[
        "operator/process/jobs/test_queue.py::test_a_better_job_shrinks_the_one_that_trains_and_it_grows_again",
        "local_sgd/process/test_elastic_members.py::test_four_replicas_become_two_and_then_six",
    ],
)
def test_a_preemption_of_replicas_ends_no_process_of_the_others(
    make_job: Make, tmp_path: Path, kubectl: Kubectl
) -> None:
    """Under local SGD the survivors train on in their processes, with a smaller roster."""
    kubectl.try_run("create", "priorityclass", "best", "--value=2000")
    example = ROOT / "examples" / "with_local_sgd" / "train_elastic.py"
    (tmp_path / "replica.py").write_text(_REPLICA.format(path=str(example)))
    flags = ("--steps=100000", f"--checkpoint-dir={SHARED}/saved")
    words = ("holdfast-run", "--nproc-per-node=1", f"{SHARED}/replica.py", *flags)
    body = share(manifest(*words, replicas=4, minReplicas=1), tmp_path)
    body["spec"]["replicaPolicy"] = {"nodesPerReplica": 1}
    container(body)["resources"] = {"requests": {"cpu": "1"}}
    body["metadata"]["labels"] = {_QUEUE: "team"}
    job, better = make_job("replicas"), make_job("better")
    job.create(body)
    job.until_training(4)
    better.create(_sleeping("best", replicas=2, minReplicas=2))
    better.until("its pods run", lambda: len(better.live()) == 2)
    job.until_training(2)
    job.until_steps()
    better.delete()
    job.until_training(4)
    starts = collections.Counter((tmp_path / "started").read_text().split())
    print(f"starts of each worker's process: {dict(starts)}")
    assert sorted(starts.values())[:2] == [1, 1]
    assert job.status["restarts"]["inPlace"] == 0


def _sleeping(priority: str, **spec: int) -> dict[str, Any]:
    """Return a job whose workers ask for a CPU each, and only sleep."""
    body = manifest("sleep", "3600", grace_s=1, **spec)
    container(body)["resources"] = {"requests": {"cpu": "1"}}
    body["metadata"]["labels"] = {_QUEUE: "team"}
    body["spec"]["elasticPolicy"] = {"scaleDownGraceSeconds": 0}
    body["spec"]["scheduling"] = {"priorityClassName": priority}
    return body


def _change(chance: random.Random, kubectl: Kubectl, job: Job) -> str:
    """Change a job at random; return what was done."""
    spec = job.body["spec"]
    match chance.randrange(4):
        case 0 | 1:
            replicas = chance.randint(spec["minReplicas"], 4)
            job.patch(replicas=replicas)
            return f"{job.name} wants {replicas}"
        case 2:
            job.patch(suspend=not spec["suspend"])
            return f"{job.name} is suspended: {not spec['suspend']}"
        case _:
            for name in job.live()[:1]:
                kubectl.try_run("delete", "pod", name, "--force", "--grace-period=0")
            return f"a pod of {job.name} is taken"
