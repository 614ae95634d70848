"""Fields of pod objects that are read: phases, exit codes, reasons, and their owners."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast_operator.plan.pods import MASTER_SLOT, WORKER, PodSlot
from holdfast_operator.pods.record import PodRecord, not_started, read_pod
from holdfast_wire.messages import PodPhase
from jobs.pod_objects import pod_object, recorded

_DONE = {"terminated": {"exitCode": 0}}
_RUNS: dict[str, Any] = {"running": {}}
_INITIALIZES = {"waiting": {"reason": "PodInitializing"}}
_CREATES = {"waiting": {"reason": "ContainerCreating"}}
SPEC: dict[str, Any] = {
    "nodeName": "n1",
    "initContainers": [{"name": "mesh", "restartPolicy": "Always"}, {"name": "fetch"}],
    "containers": [{"name": "logs"}, {"name": "worker"}],
}


def _pod(phase: str = "Running", **status: Any) -> dict[str, Any]:
    pod = pod_object(index=3, incarnation=2, job="gpt", phase=phase)
    pod["spec"] = {
        "nodeName": "n1",
        "restartPolicy": "Never",
        "containers": [{"name": "logs"}, {"name": "worker"}],
    }
    pod["status"] |= status
    return pod


def _read(body: dict[str, Any]) -> PodRecord:
    record = read_pod(body)
    assert record is not None
    return record


def _ended(name: str, code: int, reason: str = "Error") -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:01:00Z"}
    return {"name": name, "state": {"terminated": ended}}


def test_a_running_pod_is_read() -> None:
    """Its place, its owner and its node come from labels and fields."""
    record = _read(_pod(conditions=[{"type": "Ready", "status": "True"}]))
    assert (record.slot, record.incarnation, record.owner) == (PodSlot(WORKER, 3), 2, "u-1")
    assert (record.phase, record.exit_code, record.ready) == (PodPhase.RUNNING, None, True)
    assert record.key == ("team", "gpt")


@pytest.mark.parametrize(
    ("phase", "code", "reason", "expected"),
    [
        ("Failed", 1, "Error", 1),
        ("Failed", 137, "OOMKilled", -9),
        ("Failed", 143, "Error", -15),
        ("Succeeded", 0, "Completed", 0),
    ],
)
def test_an_exit_code_is_that_of_the_training_container(
    phase: str, code: int, reason: str, expected: int
) -> None:
    """A side container's end says nothing; codes above 128 are signals."""
    statuses = [_ended("logs", 7), _ended("worker", code, reason)]
    record = _read(_pod(phase, containerStatuses=statuses))
    assert (record.exit_code, record.reason) == (expected, reason)
    assert record.ended_at == pytest.approx(1_767_225_660)


def test_a_container_that_a_webhook_puts_first_is_not_taken_for_the_training() -> None:
    """The one with Holdfast's variables is, whatever its name and place."""
    pod = _pod("Failed", containerStatuses=[_ended("mesh", 7), _ended("trainer", 3)])
    ours = {"name": "trainer", "env": [{"name": "HOLDFAST_JOB_UID", "value": "u-1"}]}
    pod["spec"]["containers"] = [{"name": "mesh"}, ours]
    record = _read(pod)
    assert record.exit_code == 3
    waits = {"containerStatuses": [{"name": "mesh", "state": {"running": {}}}]}
    pod["status"] = {"phase": "Pending", **waits}
    record = _read(pod)
    assert record.not_started == "container trainer waits"


def test_a_sidecar_with_a_variable_of_ours_is_not_taken_for_the_training() -> None:
    """The container named `worker` trains, whatever another one needs the job's uid for."""
    pod = _pod("Failed", containerStatuses=[_ended("upload", 0), _ended("worker", 3)])
    upload = {"name": "upload", "env": [{"name": "HOLDFAST_JOB_UID", "value": "u-1"}]}
    pod["spec"]["containers"] = [upload, {"name": "worker"}]
    record = _read(pod)
    assert record.exit_code == 3


def test_a_master_is_read_with_an_index_and_without() -> None:
    """A master that an older operator made has one."""
    pod = _pod()
    labels = pod["metadata"]["labels"]
    labels |= {"holdfast.dev/role": "master", "holdfast.dev/index": "0"}
    before = _read(pod)
    del labels["holdfast.dev/index"]
    assert before == _read(pod)
    assert before.slot == MASTER_SLOT


def test_lack_of_memory_is_read_with_the_limit_that_was_too_small() -> None:
    """Of the training container only."""
    pod = _pod("Failed", containerStatuses=[_ended("worker", 137, "OOMKilled")])
    pod["spec"]["containers"][1]["resources"] = {"limits": {"memory": "2Gi"}}
    record = _read(pod)
    assert (record.ran_out_of_memory, record.memory_limit) == (True, 2 * 2**30)
    other = _read(_pod("Failed", containerStatuses=[_ended("worker", 1)]))
    assert (other.ran_out_of_memory, other.memory_limit) == (False, 0)


def test_a_pod_that_was_evicted_before_it_ran_has_failed() -> None:
    """There is no container status then; the pod's own reason and message count."""
    record = _read(_pod("Failed", reason="Evicted", message="out of disk"))
    assert (record.exit_code, record.reason, record.text) == (1, "Evicted", "out of disk")


def test_a_pod_on_a_node_that_does_not_answer_is_lost() -> None:
    """The taint manager deletes it, and nobody reports its end."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    body = _pod(conditions=[target, {"type": "Ready", "status": "False"}])
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    record = _read(body)
    assert record.lost
    assert record.gone_by == pytest.approx(1_767_225_630)
    assert "DisruptionTarget=True" in record.conditions


def _waits(name: str, image: str, **waiting: str) -> list[dict[str, Any]]:
    return [{"name": name, "image": image, "state": {"waiting": waiting}}]


_UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (
            {"conditions": [{**_UNPLACED, "message": "0/2 nodes are available"}]},
            "Unschedulable",
            "0/2 nodes are available",
        ),
        (
            {"containerStatuses": _waits("worker", "gone:1", reason="ErrImagePull", message="no")},
            "ImagePullFailed",
            "container worker, image gone:1: no",
        ),
        (
            {"initContainerStatuses": _waits("prepare", "i", reason="CreateContainerConfigError")},
            "ContainerNotStarted",
            "container prepare, image i: CreateContainerConfigError",
        ),
        ({"containerStatuses": _waits("worker", "i", reason="ContainerCreating")}, "", ""),
    ],
)
def test_what_keeps_a_pod_from_beginning_is_read(
    status: dict[str, Any], reason: str, words: str
) -> None:
    """The scheduler's words, or the node's; that a container is being made is no news."""
    record = _read(_pod("Pending", **status))
    assert (record.waiting, record.waiting_text) == (reason, words)


def test_a_pod_that_is_not_of_our_making_is_left_alone() -> None:
    """Labels that lack a part, or hold no number, are somebody else's."""
    for label, value in (
        ("holdfast.dev/role", None),
        ("holdfast.dev/index", None),
        ("holdfast.dev/index", "x"),
    ):
        body = _pod()
        body["metadata"]["labels"].pop(label)
        if value is not None:
            body["metadata"]["labels"][label] = value
        assert read_pod(body) is None


_KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "the last words"}}
_RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [137]}}]


@pytest.mark.parametrize(
    ("main", "ends"),
    [
        ({"restartCount": 0, "state": {"running": {}}}, 0),
        ({"restartCount": 0, "state": _KILLED}, 1),
        ({"restartCount": 0, "state": {"waiting": {}}, "lastState": _KILLED}, 1),
        ({"restartCount": 1, "state": {"running": {}}, "lastState": _KILLED}, 1),
        ({"restartCount": 1, "state": _KILLED, "lastState": _KILLED}, 2),
        ({"restartCount": 1, "state": {"waiting": {}}, "lastState": _KILLED}, 2),
        ({"restartCount": 2, "state": {"running": {}}, "lastState": _KILLED}, 2),
    ],
)
def test_an_end_counts_once_from_the_moment_it_is_seen(main: dict[str, Any], ends: int) -> None:
    """Not from the next start, which a kubelet may put off; and the master hears how it ended."""
    body = _pod(containerStatuses=[{"name": "worker", **main}])
    body["spec"]["containers"][1]["restartPolicyRules"] = _RULES
    record = _read(body)
    told = record.observation(wanted=False)
    assert (told.phase, told.ends) == (PodPhase.RUNNING, ends)
    said = (told.exit_code, told.reason, told.text)
    assert said == ((-9, "OOMKilled", "the last words") if ends else (0, "", ""))
    assert record.exit_code is None


_SIDE = {"name": "logs", "state": {"running": {}}}


@pytest.mark.parametrize("said", ["Running", "Pending"])
@pytest.mark.parametrize(
    ("code", "phase", "expected"),
    [(0, PodPhase.SUCCEEDED, 0), (42, PodPhase.FAILED, 42), (137, PodPhase.FAILED, -9)],
)
def test_a_pod_is_over_with_its_training_container(
    said: str, code: int, phase: PodPhase, expected: int
) -> None:
    """A side container goes on, or never began: the pod runs, and its worker does not come back."""
    statuses = [_SIDE if said == "Running" else _WAITS, _ended("worker", code)]
    record = _read(_pod(said, containerStatuses=statuses))
    assert (record.phase, record.lingers) == (phase, True)
    told = record.observation(wanted=False)
    assert (told.phase, told.exit_code, told.ends) == (phase, expected, 0)
    assert record.ended_at == pytest.approx(1_767_225_660)


_WAITS = {"name": "logs", "image": "i", "state": {"waiting": {"reason": "ImagePullBackOff"}}}


def test_a_side_container_that_fails_takes_nothing_from_the_training() -> None:
    """Kubernetes calls the whole pod Failed; before and after that it has succeeded."""
    statuses = [_ended("logs", 1), _ended("worker", 0, "Completed")]
    for said in ("Running", "Failed"):
        record = _read(_pod(said, containerStatuses=statuses))
        assert (record.phase, record.exit_code) == (PodPhase.SUCCEEDED, 0)
        assert not record.lingers


def test_a_side_container_that_ends_first_ends_nothing() -> None:
    """However it ended, the training goes on."""
    statuses = [_ended("logs", 1), {"name": "worker", "state": {"running": {}}}]
    record = _read(_pod(containerStatuses=statuses))
    assert (record.phase, record.exit_code, record.lingers) == (PodPhase.RUNNING, None, False)


@pytest.mark.parametrize(
    "stated",
    [{"reason": "Evicted"}, {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}],
)
def test_what_a_node_did_to_a_pod_stands_beside_an_exit_code_of_0(stated: dict[str, Any]) -> None:
    """A training that is told to leave may well end with 0: it is not done for that."""
    statuses = [_ended("logs", 143), _ended("worker", 0, "Completed")]
    record = _read(_pod("Failed", containerStatuses=statuses, **stated))
    assert (record.phase, record.exit_code) == (PodPhase.FAILED, 1)


def test_restartable_init_containers_keep_no_pod_from_its_end() -> None:
    """Their kubelet ends them once the others are done: nobody else has to."""
    body = _pod(containerStatuses=[_ended("logs", 0), _ended("worker", 0)])
    body["spec"]["initContainers"] = [{"name": "mesh", "restartPolicy": "Always"}]
    body["status"]["initContainerStatuses"] = [{"name": "mesh", "state": {"running": {}}}]
    record = _read(body)
    assert (record.phase, record.lingers) == (PodPhase.SUCCEEDED, False)


def test_a_master_that_has_ended_is_started_again_in_its_pod() -> None:
    """Its pod restarts it always; only workers and extra roles are over with their container."""
    body = _pod(containerStatuses=[_ended("worker", 1)])
    body["spec"]["restartPolicy"] = "Always"
    record = _read(body)
    assert (record.phase, record.lingers) == (PodPhase.RUNNING, False)


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ({"restartPolicy": "Always"}, {0, 1, 42}),
        ({"restartPolicy": "OnFailure"}, {1, 42}),
        ({"restartPolicy": "Never"}, set()),
        ({"restartPolicyRules": [{"exitCodes": {"operator": "In", "values": [42]}}]}, {42}),
        ({"restartPolicyRules": [{"exitCodes": {"operator": "NotIn", "values": [0, 1]}}]}, {42}),
    ],
)
def test_a_container_that_starts_itself_again_ends_no_pod(
    given: dict[str, Any], codes: set[int]
) -> None:
    """Its own policy and rules say so, by its exit code."""
    again = set()
    for code in (0, 1, 42):
        body = _pod(containerStatuses=[_SIDE, _ended("worker", code)])
        body["spec"]["containers"][1].update(given)
        record = _read(body)
        if record.phase is PodPhase.RUNNING:
            assert record.ends == 1
            again.add(code)
    assert again == codes


def test_an_init_containers_exit_code_is_not_the_trainings() -> None:
    """No rule about exit codes may match it: the training never ran. Its name is in the words.

    A restartable one that its kubelet ends because of that is no cause.
    """
    failed = {"exitCode": 3, "reason": "Error", "message": "no data"}
    prepare = {"name": "prepare", "state": {"terminated": failed}}
    inits = [_ended("mesh", 143), _ended("fetch", 0), prepare]
    waits = {"name": "worker", "state": {"waiting": {"reason": "PodInitializing"}}}
    body = _pod("Failed", initContainerStatuses=inits, containerStatuses=[waits])
    sidecar = {"name": "mesh", "restartPolicy": "Always"}
    body["spec"]["initContainers"] = [sidecar, {"name": "fetch"}, {"name": "prepare"}]
    record = _read(body)
    assert (record.phase, record.exit_code) == (PodPhase.FAILED, None)
    told = record.observation(wanted=False)
    assert (told.exit_code, told.reason) == (0, "InitContainerFailed")
    assert told.text == "init container prepare ended with exit code 3: no data"


@pytest.mark.parametrize(
    ("ready", "containers", "unheard", "serving"),
    [
        ({"status": "True"}, "True", False, True),
        ({"status": "False"}, "True", True, True),
        ({"status": "False", "reason": "ReadinessGatesNotReady"}, "True", False, True),
        ({"status": "False", "reason": "ContainersNotReady"}, "False", False, False),
    ],
)
def test_a_pod_whose_node_is_not_heard_of_is_told_from_one_that_is_not_ready(
    ready: dict[str, str], containers: str, *, unheard: bool, serving: bool
) -> None:
    """The node controller takes Ready away, without a reason and without its containers' word."""
    stated = [{"type": "Ready", **ready}, {"type": "ContainersReady", "status": containers}]
    record = _read(_pod(conditions=stated))
    assert (record.unheard, record.serving) == (unheard, serving)


def _status(mesh: Any, fetch: Any, worker: Any, *, started: bool = True) -> dict[str, Any]:
    return {
        "initContainerStatuses": [
            {"name": "mesh", "state": mesh, "started": started},
            {"name": "fetch", "state": fetch},
        ],
        "containerStatuses": [{"name": "logs", "state": _CREATES}, {"name": "worker", **worker}],
    }


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (_status(_RUNS, _DONE, {"state": _RUNS}), ""),
        (_status(_RUNS, _DONE, {"state": _DONE}), ""),
        (_status(_RUNS, _DONE, {"state": _CREATES}), "container worker waits: ContainerCreating"),
        (_status(_RUNS, _RUNS, {"state": _INITIALIZES}), "init container fetch runs"),
        (
            _status(_RUNS, {"terminated": {"exitCode": 3}}, {"state": _INITIALIZES}),
            "init container fetch ended with exit code 3",
        ),
        (
            _status(_RUNS, _INITIALIZES, {"state": _INITIALIZES}, started=False),
            "init container mesh runs, and its startup probe has not succeeded",
        ),
        (
            _status(
                {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                _INITIALIZES,
                {"state": _INITIALIZES},
                started=False,
            ),
            "init container mesh waits: CrashLoopBackOff: back-off 10s",
        ),
        ({}, "init container mesh waits"),
    ],
)
def test_the_first_container_that_has_not_started_is_named(
    status: dict[str, Any], words: str
) -> None:
    """In the order in which a kubelet starts them; side containers hold up nothing."""
    assert not_started(SPEC, status) == words


def test_a_pod_without_a_node_waits_for_one() -> None:
    """None of its containers can start."""
    spec = {name: value for name, value in SPEC.items() if name != "nodeName"}
    assert not_started(spec, {}) == "it has no node yet"


def test_records_share_what_pods_have_in_common() -> None:
    """Thousands of pods have a dozen sets of conditions, and one owner for each job."""
    records = []
    for rank in (0, 1):
        body = json.loads(json.dumps(pod_object(index=rank, owner="u-1 x", uid=f"p-{rank}")))
        body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        records.append(recorded(body))
    one, other = records
    assert one.conditions == ("Ready=True",)
    assert one.conditions is other.conditions
    assert one.owner is other.owner
