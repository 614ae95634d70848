"""What is read from pod objects: phases, exit codes, reasons, and whose they are."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.kube.pods import read_pod
from holdfast_operator.plan.pods import WORKER, Slot
from holdfast_wire.messages import PodPhase


def _pod(phase: str = "Running", **status: Any) -> dict[str, Any]:
    labels = {
        "holdfast.dev/job": "gpt",
        "holdfast.dev/role": "worker",
        "holdfast.dev/index": "3",
        "holdfast.dev/incarnation": "2",
    }
    metadata = {
        "name": "gpt-worker-3-2",
        "namespace": "team",
        "uid": "p-1",
        "labels": labels,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"uid": "u-1", "controller": True}],
    }
    spec = {"nodeName": "n1", "containers": [{"name": "logs"}, {"name": "worker"}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


def _ended(name: str, code: int, reason: str = "Error") -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:01:00Z"}
    return {"name": name, "state": {"terminated": ended}}


def test_a_running_pod_is_read() -> None:
    """Its place, its owner and its node come from labels and fields."""
    record = read_pod(_pod(conditions=[{"type": "Ready", "status": "True"}]))
    assert record is not None
    assert (record.slot, record.incarnation, record.owner) == (Slot(WORKER, 3), 2, "u-1")
    assert (record.phase, record.exit_code, record.ready) == (PodPhase.RUNNING, None, True)
    assert record.key == ("team", "gpt")


@pytest.mark.parametrize(
    ("phase", "code", "reason", "expected"),
    [
        ("Failed", 1, "Error", 1),
        ("Failed", 137, "OOMKilled", -9),
        ("Failed", 143, "Error", -15),
        ("Failed", 0, "Completed", 1),
        ("Succeeded", 0, "Completed", 0),
    ],
)
def test_an_exit_code_is_that_of_the_training_container(
    phase: str, code: int, reason: str, expected: int
) -> None:
    """A side container's end says nothing; codes above 128 are signals."""
    statuses = [_ended("logs", 7), _ended("worker", code, reason)]
    record = read_pod(_pod(phase, containerStatuses=statuses))
    assert record is not None
    assert (record.exit_code, record.reason) == (expected, reason)
    assert record.ended_at == pytest.approx(1_767_225_660)


def test_a_pod_that_was_evicted_before_it_ran_has_failed() -> None:
    """There is no container status then; the pod's own reason and message count."""
    record = read_pod(_pod("Failed", reason="Evicted", message="out of disk"))
    assert record is not None
    assert (record.exit_code, record.reason, record.text) == (1, "Evicted", "out of disk")


def test_a_pod_on_a_node_that_does_not_answer_is_lost() -> None:
    """The taint manager deletes it, and nobody reports its end."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    body = _pod(conditions=[target, {"type": "Ready", "status": "False"}])
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    record = read_pod(body)
    assert record is not None
    assert record.lost
    assert record.gone_by == pytest.approx(1_767_225_630)
    assert "DisruptionTarget=True" in record.conditions


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/2 nodes are available",
                    }
                ]
            },
            "Unschedulable",
            "0/2 nodes are available",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "worker",
                        "image": "gone:1",
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}},
                    }
                ]
            },
            "ImagePullFailed",
            "container worker, image gone:1: no",
        ),
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "prepare",
                        "image": "i",
                        "state": {"waiting": {"reason": "CreateContainerConfigError"}},
                    }
                ]
            },
            "ContainerNotStarted",
            "container prepare, image i: CreateContainerConfigError",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "worker",
                        "image": "i",
                        "state": {"waiting": {"reason": "ContainerCreating"}},
                    }
                ]
            },
            "",
            "",
        ),
    ],
)
def test_what_keeps_a_pod_from_beginning_is_read(
    status: dict[str, Any], reason: str, words: str
) -> None:
    """The scheduler's words, or the node's; that a container is being made is no news."""
    record = read_pod(_pod("Pending", **status))
    assert record is not None
    assert record.waiting == (reason, words)


def test_a_pod_that_is_not_of_our_making_is_left_alone() -> None:
    """Labels that lack a part, or hold no number, are somebody else's."""
    for label, value in (("holdfast.dev/role", None), ("holdfast.dev/index", "x")):
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
    record = read_pod(body)
    assert record is not None
    told = record.observation(wanted=False)
    assert (told.phase, told.ends) == (PodPhase.RUNNING, ends)
    said = (told.exit_code, told.reason, told.text)
    assert said == ((-9, "OOMKilled", "the last words") if ends else (0, "", ""))
    assert record.exit_code is None


def test_an_end_that_no_rule_answers_is_not_one_of_them() -> None:
    """Beside a side container that goes on: the pod runs, and its worker does not come back."""
    record = read_pod(_pod(containerStatuses=[{"name": "worker", "state": _KILLED}]))
    assert record is not None
    assert record.observation(wanted=False).ends == 0


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
    record = read_pod(_pod(conditions=stated))
    assert record is not None
    assert (record.unheard, record.serving) == (unheard, serving)
