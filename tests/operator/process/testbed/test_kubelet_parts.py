"""The process kubelet's own decisions: what it reports of a pod, what its DNS answers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cluster.kubelet import dns
from cluster.kubelet.aftermath import settle
from cluster.kubelet.container import Container, restarts
from cluster.kubelet.refusals import ports, refused_path, refused_user, takes_anything
from cluster.kubelet.status import ContainerState, PodLook, report


def _state(**fields: Any) -> ContainerState:
    return ContainerState(name="c", image="x", **fields)


def _look(*containers: ContainerState, **fields: Any) -> PodLook:
    given: dict[str, Any] = {"conditions": (), "inits": (), "address": "10.244.0.9"} | fields
    return PodLook(host="127.0.0.1", since=1.0, now=9.0, containers=containers, **given)


@pytest.mark.parametrize(
    ("containers", "phase"),
    [
        ([_state()], "Pending"),
        ([_state(started=1.0)], "Running"),
        ([_state(started=1.0), _state()], "Running"),
        ([_state(started=1.0, ended=2.0)], "Succeeded"),
        ([_state(started=1.0, ended=2.0, exit_code=3)], "Failed"),
        ([_state(started=1.0, ended=2.0, exit_code=3, restarting=True)], "Running"),
        ([_state(started=1.0, ended=2.0, exit_code=3), _state(started=1.0)], "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(
    containers: list[ContainerState], phase: str
) -> None:
    """As a kubelet reports it."""
    assert report(_look(*containers))["phase"] == phase


@pytest.mark.parametrize(
    ("manifest", "policy", "code", "again"),
    [
        ({}, "Never", 137, False),
        ({}, "OnFailure", 1, True),
        ({}, "Always", 0, True),
        ({"restartPolicy": "Never"}, "Always", 1, False),
        ({"restartPolicy": "Never", "restartPolicyRules": "137"}, "Never", 137, True),
        ({"restartPolicy": "Never", "restartPolicyRules": "137"}, "Never", 1, False),
        ({"restartPolicy": "Never", "restartPolicyRules": "137"}, "Never", 0, False),
    ],
)
def test_a_container_s_own_rules_come_first(
    manifest: dict[str, Any], policy: str, code: int, *, again: bool
) -> None:
    """Then its own policy, then the pod's: `ContainerShouldRestart` of Kubernetes 1.37."""
    if "restartPolicyRules" in manifest:
        codes = {"operator": "In", "values": [int(manifest["restartPolicyRules"])]}
        manifest = {**manifest, "restartPolicyRules": [{"action": "Restart", "exitCodes": codes}]}
    assert restarts(manifest, policy, code) is again


def test_a_failed_init_container_fails_the_pod() -> None:
    """Its containers never start."""
    init = _state(started=1.0, ended=2.0, exit_code=1)
    assert report(_look(_state(), inits=[init]))["phase"] == "Failed"
    assert report(_look(_state(), inits=[_state(started=1.0)]))["phase"] == "Pending"


@pytest.mark.parametrize(
    ("sidecar", "main", "phase", "ready"),
    [
        ({}, {}, "Pending", False),
        ({"started": 1.0, "is_started": False}, {}, "Pending", False),
        ({"started": 1.0, "ready": True}, {}, "Pending", False),
        ({"started": 1.0, "ready": True}, {"started": 2.0, "ready": True}, "Running", True),
        ({"started": 1.0}, {"started": 2.0, "ready": True}, "Running", False),
        (
            {"started": 1.0, "ended": 2.0, "exit_code": 1, "restarting": True},
            {"started": 2.0, "ready": True},
            "Running",
            False,
        ),
        ({"started": 1.0}, {"started": 2.0, "ended": 3.0}, "Running", False),
        (
            {"started": 1.0, "ended": 4.0, "exit_code": 143},
            {"started": 2.0, "ended": 3.0},
            "Succeeded",
            False,
        ),
        (
            {"started": 1.0, "ended": 4.0},
            {"started": 2.0, "ended": 3.0, "exit_code": 2},
            "Failed",
            False,
        ),
    ],
)
def test_a_sidecar_decides_no_phase_and_is_waited_for(
    sidecar: dict[str, Any], main: dict[str, Any], phase: str, *, ready: bool
) -> None:
    """An init container with `restartPolicy: Always`: its end says nothing of the pod's."""
    found = report(_look(_state(**main), inits=[_state(sidecar=True, **sidecar)]))
    stated = {one["type"]: one["status"] for one in found["conditions"]}
    assert (found["phase"], stated["Ready"]) == (phase, str(ready))


def test_conditions_of_others_and_times_stay() -> None:
    """A DisruptionTarget that the scheduler wrote is not the kubelet's to take away."""
    before = [
        {"type": "DisruptionTarget", "status": "True"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
    ]
    found = report(_look(_state(started=1.0, ready=True), conditions=before))["conditions"]
    by_type = {one["type"]: one for one in found}
    assert by_type["DisruptionTarget"]["status"] == "True"
    assert by_type["Ready"]["lastTransitionTime"] == "2020-01-01T00:00:00Z"


def _ran(policy: str, *states: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A pod as an earlier kubelet left it."""
    names = [f"c{number}" for number in range(len(states))]
    listed: list[dict[str, Any]] = [
        {"name": name, "containerID": "process://7", "restartCount": 2, **state}
        for name, state in zip(names, states, strict=True)
    ]
    containers = [{"name": name, "image": "x"} for name in names]
    return {
        "metadata": metadata,
        "spec": {"restartPolicy": policy, "containers": containers},
        "status": {"containerStatuses": listed},
    }


def _settled(manifest: dict[str, Any]) -> tuple[bool, list[ContainerState]]:
    containers = [Container(one, lambda: None) for one in manifest["spec"]["containers"]]
    over = settle(manifest, [], containers, now=9.0)
    return over, [one.state for one in containers]


_RUNS: dict[str, Any] = {"state": {"running": {"startedAt": "1970-01-01T00:00:05Z"}}}
_DONE: dict[str, Any] = {
    "state": {
        "terminated": {
            "exitCode": 0,
            "reason": "Completed",
            "startedAt": "1970-01-01T00:00:01Z",
            "finishedAt": "1970-01-01T00:00:02Z",
            "containerID": "process://5",
        }
    }
}


@pytest.mark.parametrize(
    ("policy", "metadata"),
    [("Never", {}), ("Always", {"deletionTimestamp": "1970-01-01T00:00:08Z"})],
)
def test_what_ran_before_the_kubelet_is_reported_as_ended(
    policy: str, metadata: dict[str, str]
) -> None:
    """Nothing starts again: failed, with the end that a lost container has, or with its own."""
    over, states = _settled(_ran(policy, _RUNS, _DONE, **metadata))
    assert over
    found = report(_look(*states))
    assert found["phase"] == "Failed"
    lost, done = (one["state"]["terminated"] for one in found["containerStatuses"])
    assert (lost["exitCode"], lost["reason"], lost["startedAt"], lost["finishedAt"]) == (
        *(255, "Unknown"),
        *("1970-01-01T00:00:05Z", "1970-01-01T00:00:09Z"),
    )
    assert done.items() >= _DONE["state"]["terminated"].items()
    assert [one["restartCount"] for one in found["containerStatuses"]] == [2, 2]


def test_what_may_start_again_does_and_says_why() -> None:
    """The end is its last state; what succeeded under OnFailure stays as it is."""
    over, (lost, done) = _settled(_ran("OnFailure", _RUNS, _DONE))
    assert not over
    found = lost.report()
    assert "waiting" in found["state"]
    assert found["lastState"]["terminated"]["exitCode"] == 255
    assert found["restartCount"] == 3
    assert (done.finished, done.exit_code, done.restarts) == (True, 0, 2)


def test_a_container_that_waited_for_its_next_start_keeps_its_end() -> None:
    """A kubelet knows how it ended; it was not the node."""
    ended = {**_DONE["state"]["terminated"], "exitCode": 3}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    _, (state,) = _settled(_ran("Never", {"state": waiting, "lastState": {"terminated": ended}}))
    assert (state.finished, state.exit_code) == (True, 3)


@pytest.mark.parametrize("status", [{}, {"containerStatuses": [{"name": "c0", "containerID": ""}]}])
def test_a_pod_of_which_nothing_ran_begins(status: dict[str, Any]) -> None:
    """It is new, or its kubelet went away before its first start."""
    over, (state,) = _settled(_ran("Never", {}) | {"status": status})
    assert not over
    assert state == ContainerState(name="c0", image="x")


SERVICES = {
    "1": {"metadata": {"name": "m", "namespace": "a"}, "spec": {"clusterIP": "10.96.0.7"}},
    "2": {"metadata": {"name": "w", "namespace": "a"}, "spec": {"clusterIP": "None"}},
}
SLICES = {
    "1": {
        "metadata": {"namespace": "a", "labels": {"kubernetes.io/service-name": "w"}},
        "endpoints": [
            {"hostname": "w-0", "addresses": ["10.244.0.2"], "conditions": {"ready": True}},
            {"hostname": "w-1", "addresses": ["10.244.0.3"], "conditions": {"ready": True}},
            {"hostname": "w-2", "addresses": ["10.244.0.4"], "conditions": {"ready": False}},
        ],
    }
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("m.a.svc.cluster.local", ["10.96.0.7"]),
        ("M.A.SVC.cluster.local.", ["10.96.0.7"]),
        ("w.a.svc.cluster.local", ["10.244.0.2", "10.244.0.3"]),
        ("w-1.w.a.svc.cluster.local", ["10.244.0.3"]),
        ("m.b.svc.cluster.local", []),
        ("example.org", []),
        ("svc.cluster.local", []),
    ],
)
def test_names_of_services_and_their_pods_resolve(name: str, found: list[str]) -> None:
    """Cluster addresses, all ready pods of a headless Service, or one of them by its name."""
    assert dns.resolve(name, SERVICES, SLICES) == found


def test_a_dns_packet_is_answered() -> None:
    """The question comes back with one record for each address."""
    labels = b"".join(bytes([len(w)]) + w for w in b"w a svc cluster local".split())
    question = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\0" + struct.pack(">HH", 1, 1)
    answer = dns.answer(question, SERVICES, SLICES)
    assert answer[:2] == b"\x12\x34"
    assert struct.unpack(">H", answer[6:8]) == (2,)
    assert answer[-4:] == bytes([10, 244, 0, 3])


@pytest.mark.parametrize(
    ("accept", "taken"),
    [("", True), ("*/*", True), ("text/html, */*;q=0.1", True), ("application/json", False)],
)
def test_a_client_that_takes_some_media_types_only_is_refused(accept: str, *, taken: bool) -> None:
    """A kubelet's streams have no media type: go-restful answers 406."""
    assert takes_anything(accept) is taken


@pytest.mark.parametrize("port", ["", "0", "65536", "http", "50051,"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    """As a kubelet reads them, before it looks for the pod."""
    assert ports(["1", "65535"]) == [1, 65535]
    with pytest.raises(web.HTTPBadRequest):
        ports([port])


@pytest.mark.parametrize(
    ("container", "pod", "refused"),
    [
        ({}, {"runAsNonRoot": True}, False),
        ({}, {"runAsNonRoot": True, "runAsUser": 0}, True),
        ({"runAsUser": 5}, {"runAsNonRoot": True, "runAsUser": 0}, False),
        ({"runAsNonRoot": False}, {"runAsNonRoot": True, "runAsUser": 0}, False),
    ],
)
def test_root_is_refused_where_it_may_not_be(
    container: dict[str, Any], pod: dict[str, Any], *, refused: bool
) -> None:
    """The container's own settings come before the pod's."""
    assert bool(refused_user({"securityContext": container}, pod)) is refused


def test_a_path_of_another_kind_is_no_volume(tmp_path: Path) -> None:
    """A pod waits for it, as for a Secret that is not there."""
    assert refused_path({"path": str(tmp_path), "type": "Directory"}) == ""
    assert "is not a file" in refused_path({"path": str(tmp_path), "type": "File"})
    assert "is not a directory" in refused_path({"path": str(tmp_path / "a"), "type": "Directory"})
    assert refused_path({"path": str(tmp_path / "a")}) == ""
