"""Memory of the operator between two looks at a job, while its copy of the cluster lags."""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import holdfast_operator
from holdfast_operator.credentials import JobCredentials
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError
from holdfast_operator.nodes.history import ClusterNodes, NodeHistory
from holdfast_operator.nodes.reachability import NodeReachability
from holdfast_operator.plan.actions import CreatePod, DeletePod, DeleteReason
from holdfast_operator.plan.pods import MASTER_SLOT, WORKER, PodSlot
from holdfast_operator.plan.slices import Verdict
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.pods.revision import revision_name, templates_of
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.credentials import HURRY_SECONDS, HeldCredentials
from holdfast_operator.state.expectations import EXPECT_SECONDS
from holdfast_operator.state.job_state import JobState
from holdfast_operator.state.status import WrittenStatus
from holdfast_wire.messages import (
    Fence,
    JobStatus,
    MasterSpec,
    NoticeKind,
    NoticeReceived,
    PodListDone,
    PodObservation,
    StopRequest,
)
from jobs.job_files import job, read
from jobs.pod_objects import pod_object, recorded

SLOT = PodSlot(WORKER, 1)
SETTINGS = OperatorSettings(namespace="holdfast", identity="me", image="i")
NODES = ClusterNodes(NodeHistory(KubeClient(1.0, 1), SETTINGS))
NAME = "t-worker-1-0"


def _state(pods: list[PodRecord]) -> JobState:
    body = dict(read(job(replicas=2)).body)
    body["metadata"] = {"name": "t", "namespace": "team", "uid": "u-1", "generation": 3}
    owner = Owner(name="t", namespace="team", uid="u-1")
    return JobState(
        owner=owner,
        job=read(job(replicas=2)),
        body=body,
        status=WrittenStatus({}),
        credentials=HeldCredentials(JobCredentials(bytes(32), owner, dt.timedelta(days=1))),
        pods_now=lambda _: pods,
        nodes=NODES,
    )


def _pod(**metadata: Any) -> PodRecord:
    return recorded(pod_object(**metadata))


def _spoken(incarnation: int, address: str, **fields: Any) -> PodRecord:
    name = f"t-master-0-{incarnation}"
    record = dataclasses.replace(
        _pod(name=name, uid=f"m-{incarnation}"),
        slot=MASTER_SLOT,
        incarnation=incarnation,
        address=address,
        serving=True,
    )
    return dataclasses.replace(record, **fields)


CREATE = CreatePod(slot=SLOT, incarnation=0, name=NAME, reason="")
DELETE = DeletePod(slot=SLOT, name=NAME, uid="p-1", grace_s=1, reason=DeleteReason.SURPLUS)


def test_a_pod_that_was_made_is_not_made_again_before_it_shows() -> None:
    """Nor for ever: what does not show for long is asked for once more."""
    state = _state([])
    assert state.expectations.wait(CREATE, 100.0) == 0
    state.expect(NAME, 100.0 + EXPECT_SECONDS)
    assert state.expectations.wait(CREATE, 101.0) == EXPECT_SECONDS - 1
    assert state.runs
    assert state.expectations.wait(CREATE, 100.0 + EXPECT_SECONDS) == 0
    state.expect(NAME, 200.0)
    state.shows(_pod(), gone=False)
    assert state.expectations.wait(CREATE, 101.0) == 0


def test_a_deletion_is_not_asked_for_twice() -> None:
    """Until the pod shows that it is being deleted, or is gone."""
    state = _state([_pod()])
    state.expect_deletion("p-1", 200.0)
    state.shows(_pod(), gone=False)
    assert state.expectations.wait(DELETE, 100.0) == 100.0
    state.shows(_pod(deletionTimestamp="2026-01-01T00:01:00Z"), gone=False)
    assert state.expectations.wait(DELETE, 100.0) == 0


def test_a_deletion_that_was_seen_before_its_answer_is_not_waited_for() -> None:
    """That of a pod that has ended is over at once: the entry would keep old templates for ever."""
    pods = [_pod()]
    state = _state(pods)
    state.expectations.delete("p-1", 200.0, forced=False)
    gone = pods.pop()
    state.shows(gone, gone=True)
    state.expect_deletion("p-1", 200.0)
    assert not state.runs
    assert state.expectations.deletions == set()


def test_what_did_not_show_in_time_keeps_no_templates() -> None:
    """Nobody may ever ask for it again, as the place is not wanted any more."""
    state = _state([])
    state.expect(NAME, 200.0)
    state.expectations.expire(199.0)
    assert state.runs
    state.expectations.expire(200.0)
    assert not state.runs


def test_what_shows_already_is_not_expected() -> None:
    """A watch can be faster than the answer to the request."""
    state = _state([_pod()])
    state.expect(NAME, 200.0)
    assert state.expectations.wait(CREATE, 100.0) == 0


def test_pods_of_an_earlier_job_of_the_name_are_not_its_own() -> None:
    """Nothing is made from them, and they keep no template in force."""
    record = dataclasses.replace(_pod(), owner="u-0")
    state = _state([record])
    assert state.pods() == []
    assert not state.runs


def test_pods_are_made_from_the_templates_in_force() -> None:
    """An edit of the spec changes what will be in force next, and nothing before."""
    state = _state([_pod()])
    old = templates_of(state.job.spec)
    state.templates.put_in_force(revision_name("t", old), old)
    edited = job(replicas=4, worker__template={"spec": {"containers": [{"name": "other"}]}})
    edited["metadata"] = state.body["metadata"]
    state.update({**read(edited).body, "metadata": state.body["metadata"]})
    assert state.spec.replicas == 4
    assert state.spec.worker_template == old["worker"]
    assert state.source(SETTINGS, newest=True).spec.worker_template != old["worker"]
    assert revision_name("t", templates_of(state.job.spec)) != state.templates.revision


def test_a_master_that_comes_later_is_asked_to_stop_too() -> None:
    """The wish is part of what every stream begins with, after all pods."""
    state = _state([])
    state.link.ask_to_stop(StopRequest(reason="the job is deleted", grace_seconds=5))
    state.link.ask_to_stop(StopRequest(reason="the job is deleted", grace_seconds=4))
    *_, done, wish = state.first_messages()
    assert done == PodListDone()
    assert wish == StopRequest(reason="the job is deleted", grace_seconds=5)


def test_a_new_stream_tells_of_the_older_pod_of_a_place_first() -> None:
    """A list has number 10 before number 9, whose end would be taken for its successor's."""
    pods = [
        dataclasses.replace(_pod(), uid=f"p-{index}-{number}", slot=PodSlot(WORKER, index))
        for index, number in ((10, 0), (9, 10), (9, 9))
    ]
    pods = [dataclasses.replace(pod, incarnation=int(pod.uid.split("-")[2])) for pod in pods]
    messages = list(_state(pods).first_messages())
    told = [one.pod_uid for one in messages if isinstance(one, PodObservation)]
    assert told == ["p-9-9", "p-9-10", "p-10-0"]


@pytest.mark.parametrize(
    ("code", "message", "admission", "invalid"),
    [
        (403, 'pods "x" is forbidden: exceeded quota: few', True, False),
        (422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", True, False),
        (400, 'admission webhook "w" denied the request: no', True, False),
        (500, 'failed calling webhook "w": timeout', True, False),
        (422, "Pod is invalid: spec.containers[0].image: Required value", False, True),
        (500, "etcdserver: leader changed", False, False),
        (429, "too many requests", False, False),
    ],
)
def test_rules_of_the_cluster_are_told_from_faults_of_the_object(
    code: int, message: str, *, admission: bool, invalid: bool
) -> None:
    """The first are waited for, the second end the job; trouble is neither."""
    error = ApiRefusedError("POST pods", code, "", message)
    assert (error.is_admission, error.is_invalid) == (admission, invalid)


@pytest.mark.parametrize(
    ("what", "code", "reason", "gone", "trouble"),
    [
        ("PATCH job", 409, "Conflict", True, False),
        ("DELETE pod", 404, "NotFound", True, False),
        ("POST pods", 409, "Conflict", False, True),
        ("POST pods", 409, "AlreadyExists", False, False),
    ],
)
def test_a_quota_that_is_counted_twice_at_once_is_no_deleted_job(
    what: str, code: int, reason: str, *, gone: bool, trouble: bool
) -> None:
    """The API server answers both with a conflict; only the request tells them apart."""
    error = ApiRefusedError(what, code, reason, "")
    assert (error.is_gone, error.is_trouble) == (gone, trouble)


def test_a_field_that_the_crd_lacks_is_no_trouble_of_the_api_server() -> None:
    """Its code is 500 all the same; the same request again would only be refused again."""
    words = '.status.roles[name="worker"].lag: field not declared in schema'
    error = ApiRefusedError("PATCH job", 500, "", f"failed to create typed patch object: {words}")
    assert (error.undeclared, error.is_trouble) == (frozenset({"roles.lag"}), False)
    other = ApiRefusedError("PATCH job", 500, "", "etcdserver: leader changed")
    assert (other.undeclared, other.is_trouble) == (frozenset(), True)


def test_the_planner_goes_on_from_what_it_said_although_that_is_not_written_yet() -> None:
    """A pod that comes to be between two writes of the status is still part of a scaling."""
    state = _state([])
    state.status.written(
        {"phase": "Running", "conditions": [{"type": "Scaling", "status": "False"}]}
    )
    assert state.planned("").status == state.status.fields
    conditions = [{"type": "Scaling", "status": "True"}]
    state.status.conditions = conditions
    assert state.planned("").status == {"phase": "Running", "conditions": conditions}


def test_the_planner_is_told_since_when_the_job_is_known() -> None:
    """Only a planner that has just begun believes what its predecessor wrote."""
    state = _state([])
    state.first_seen_at = 5.0
    assert state.planned("").first_seen_at == 5.0


def test_a_container_that_starts_again_may_keep_its_epoch() -> None:
    """Without a journal it does: once its end was seen, its successor is no second master."""
    state = _state([])
    first, second = (Fence(epoch=5, incarnation=name) for name in "ab")
    assert state.link.refusal(first) == ""
    assert state.link.refusal(second)
    master = dataclasses.replace(_pod(), slot=MASTER_SLOT)
    state.shows(dataclasses.replace(_pod(), ends=1), gone=False)
    state.shows(master, gone=False)
    assert state.link.refusal(second)
    state.shows(dataclasses.replace(master, ends=1), gone=False)
    assert state.link.refusal(second) == ""
    state.shows(dataclasses.replace(master, ends=1), gone=False)
    assert state.link.refusal(first)


def test_the_status_is_written_once_in_a_period() -> None:
    """The first time at once; who writes it does not matter."""
    state = _state([])
    assert state.status.may_write_in(1.0, 100.0) == 0
    state.status.asked(100.0)
    assert state.status.may_write_in(1.0, 100.25) == 0.75
    assert state.status.may_write_in(1.0, 101.0) == 0


def test_a_masters_pod_and_the_first_of_a_template_need_a_write_of_the_status() -> None:
    """Its epoch, and what it is made from, are written down before."""
    state = _state([])
    master = CreatePod(slot=MASTER_SLOT, incarnation=1, name="t-master-1", reason="")
    state.templates.put_in_force("t-2", templates_of(state.job.spec))
    state.status.written({"templateRevision": "t-2"})
    needs = [state.needs_note(action) for action in (master, CREATE, DELETE)]
    assert needs == [True, False, False]
    state.status.written({"templateRevision": "t-1"})
    assert state.needs_note(CREATE)


def test_the_status_waits_a_period_for_a_master_that_goes() -> None:
    """Its successor's epoch is about to be written; one that does not go keeps nobody waiting."""
    there = {"holdfast.dev/job": "t", "holdfast.dev/role": "master", "holdfast.dev/index": "0"}
    labels = {**there, "holdfast.dev/incarnation": "0"}
    pods = [_pod(labels=labels)]
    state = _state(pods)
    assert state.status.holds_back(state.pods(), 1.0, 100.0) == 0
    pods[0] = _pod(labels=labels, deletionTimestamp="2026-01-01T00:01:00Z")
    assert state.status.holds_back(state.pods(), 1.0, 101.0) == 1.0
    assert state.status.holds_back(state.pods(), 1.0, 101.25) == 0.75
    assert state.status.holds_back(state.pods(), 1.0, 102.0) == 0
    pods.append(_pod(labels={**labels, "holdfast.dev/incarnation": "1"}))
    assert state.status.holds_back(state.pods(), 1.0, 103.0) == 0
    pods.pop()
    assert state.status.holds_back(state.pods(), 1.0, 104.0) == 1.0


def _master(*, serving: bool, uid: str = "m-1") -> PodRecord:
    pod = dataclasses.replace(_pod(), uid=uid, slot=MASTER_SLOT, serving=serving, node="n1")
    return dataclasses.replace(pod, incarnation=int(uid[2:]))


def test_it_is_known_which_pod_the_master_speaks_from() -> None:
    """The newest that stays; one that its node starts again has to be reached once more."""
    pods = [_master(serving=True), dataclasses.replace(_master(serving=True, uid="m-2"))]
    state = _state(pods)
    state.receive(JobStatus(round=1), 5.0)
    assert (state.link.view.speaker, state.met_at) == ("m-2", "n1")
    state.receive(None, 6.0)
    assert (state.link.view.speaker, state.link.view.silent_since) == ("m-2", 6.0)
    state.shows(_master(serving=True, uid="m-2"), gone=False)
    assert state.link.view.speaker == "m-2"
    state.shows(_master(serving=False, uid="m-2"), gone=False)
    assert (state.link.view.speaker, state.met_at) == ("", None)


def test_a_master_that_its_node_starts_again_was_seen_to_end() -> None:
    """That shows before the stream breaks, or after: it is not taken for lost either way."""
    pods = [_master(serving=True)]
    state = _state(pods)
    state.receive(JobStatus(round=1), 5.0)
    pods[:] = [_master(serving=False)]
    state.shows(pods[0], gone=False)
    state.receive(None, 6.0)
    assert state.link.view.speaker == ""


def test_a_master_is_looked_for_at_its_newest_pod_that_stays() -> None:
    """Not behind its Service, which leads to pods of nodes that are gone, too."""
    pods: list[PodRecord] = []
    state = _state(pods)
    assert state.master_address() == ""
    pods.append(_spoken(0, "10.0.0.1"))
    assert state.master_address() == "10.0.0.1:50051"
    pods.append(_spoken(1, ""))
    assert state.master_address() == "", "its successor is about to have an address"
    pods[1] = _spoken(1, "fd00::1")
    assert state.master_address() == "[fd00::1]:50051"
    pods[1] = _spoken(1, "fd00::1", deleting=True)
    assert state.master_address() == "10.0.0.1:50051"
    pods[0] = _spoken(0, "10.0.0.1", deleting=True)
    assert state.master_address() == "[fd00::1]:50051", "it may have a state to save"


def test_the_node_of_a_master_that_cannot_be_reached_any_more_is_in_doubt() -> None:
    """While it is reached, or never was, nothing is."""
    pods = [_spoken(0, "10.0.0.1", node="n1")]
    state = _state(pods)
    state.receive(None, 1.0)
    assert state.in_doubt() == ()
    state.receive(JobStatus(round=1), 2.0)
    assert state.in_doubt() == ()
    state.receive(None, 3.0)
    assert state.in_doubt() == ("n1",)


def test_a_master_hears_which_of_its_workers_nodes_answer_nothing() -> None:
    """At once on an open stream, with the list on a new one, and when they answer again."""
    sent: list[PodObservation] = []

    class Link:
        def send(self, message: PodObservation) -> None:
            sent.append(message)

    state = _state([dataclasses.replace(_pod(), node="n1")])
    state.link.stream = Link()  # type: ignore[assignment]
    known = NodeReachability(answered=frozenset({"p-1"}))
    state.finds(dataclasses.replace(known, unreachable=frozenset({"n1", "n2"})))
    (listed,) = [one for one in state.first_messages() if isinstance(one, PodObservation)]
    state.finds(known)
    state.finds(known)
    assert [one.unreachable for one in [*sent, listed]] == [True, False, True]
    assert state.planned("m").unreachable == frozenset()
    state.finds(NodeReachability(unreachable=frozenset({"n1"})))
    assert not sent[-1].unreachable, "a pod that never answered may be new there"


def test_a_pod_is_forgotten_by_force_once() -> None:
    """Though it is being deleted already; with a finalizer of others it may stay for long."""
    state = _state([_spoken(0, "10.0.0.1", deleting=True)])
    forced = DeletePod(
        slot=MASTER_SLOT, name="t-master-0-0", uid="m-0", grace_s=0, reason=DeleteReason.LOST
    )
    assert state.expectations.wait(forced, 100.0) == 0
    state.expectations.delete("m-0", 130.0, forced=True)
    assert state.expectations.wait(forced, 101.0) == 29.0
    state.shows(state.pods()[0], gone=True)
    assert state.expectations.until == {}


def test_a_jobs_objects_are_looked_at_sooner_while_one_may_be_missing() -> None:
    """Less and less often, though: other jobs need the requests, too; a renewal is never late."""
    objects = _state([]).credentials
    assert objects.due_in(100.0, 300.0, hurry=False) == 300.0
    assert objects.due_in(101.0, 300.0, hurry=True) == HURRY_SECONDS - 1
    objects.look(110.0, hurry=True)
    assert objects.due_in(110.0, 300.0, hurry=True) == 2 * HURRY_SECONDS
    assert objects.due_in(110.0, 300.0, hurry=False) == 300.0
    assert objects.due_in(110.0, 300.0, hurry=True) == HURRY_SECONDS, "it was all well in between"
    objects.renew(200.0)
    assert objects.due_in(110.0, 300.0, hurry=False) == 90.0
    assert objects.due_in(250.0, 300.0, hurry=False) == 0.0


def test_a_jobs_state_is_changed_by_its_own_methods_alone() -> None:
    """A value that four modules assign to has no owner who could keep it right."""
    assigned = [
        f"{path.name}:{node.lineno}"
        for path in Path(holdfast_operator.__path__[0]).rglob("*.py")
        if path.parent.name != "state"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and not isinstance(node.ctx, ast.Load)
        and ast.unparse(node).startswith("state.")
    ]
    assert assigned == []


class _Stream:
    """In place of the stream to a master: keeps what it is sent, and nothing else counts."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        """Keep a message."""
        self.sent.append(message)

    def hurry(self) -> None:
        """Do nothing: there is no pause."""


def test_a_notice_of_a_node_reaches_the_master_with_its_workers() -> None:
    """At once, and again first thing on a new stream; masters and other nodes are not spoken of."""
    spot = NoticeReceived(kind=NoticeKind.PREEMPTION, source="Kubernetes node gpu-7", text="taint")
    there = dataclasses.replace(_pod(), node="gpu-7")
    elsewhere = dataclasses.replace(_pod(name="t-worker-2-0", uid="p-2"), node="gpu-8")
    state = _state([there, elsewhere, dataclasses.replace(_spoken(0, "10.0.0.9"), node="gpu-7")])
    state.nodes = dataclasses.replace(NODES, notice={"gpu-7": spot}.get)
    stream = _Stream()
    state.link.stream = stream  # type: ignore[assignment]
    state.noticed("gpu-7")
    state.noticed("gpu-9")
    (observation,) = stream.sent
    assert (observation.pod_uid, observation.notice) == ("p-1", spot)
    first = [one for one in state.first_messages() if isinstance(one, PodObservation)]
    assert {one.pod_uid: one.notice for one in first} == {"p-1": spot, "p-2": None}


def test_a_master_is_told_how_often_it_may_report_progress() -> None:
    """With its spec, and again once the number of jobs has doubled: not at each new job."""
    state = _state([])
    now = [2.0]
    state.progress_seconds = lambda: now[0]
    stream = _Stream()
    state.link.stream = stream  # type: ignore[assignment]
    (spec, *_) = state.first_messages()
    assert isinstance(spec, MasterSpec)
    assert spec.progress_seconds == 2.0
    told = []
    for now[0] in (3.0, 4.5, 6.0, 0.0, 0.0):
        state.send_news()
        told.append([one.progress_seconds for one in stream.sent])
        stream.sent.clear()
    assert told == [[], [4.5], [], [0.0], []]


def test_a_job_whose_queue_is_taken_away_has_a_newer_spec() -> None:
    """Labels do not change the generation: its master would train on with what was admitted."""
    state = _state([])
    state.admits(None, 1000.0)
    assert state.spec_version == (3, 0)
    state.admits(Verdict(workers=1), 1000.0)
    state.admits(Verdict(workers=1, reason="the same"), 1500.0)
    assert (state.spec_version, state.spec.replicas) == ((3, 1_000_000), 1)
    state.admits(None, 1001.0)
    state.admits(None, 2001.0)
    assert (state.spec_version, state.spec.replicas) == ((3, 1_001_000), 2)


@pytest.mark.parametrize("verdict", [None, Verdict(workers=1)])
def test_an_operator_goes_on_from_the_version_in_the_status(verdict: Verdict | None) -> None:
    """Its clock is behind, or the label was removed while none ran: the master heeds it still."""
    state = _state([])
    state.revision = WrittenStatus({"admissionRevision": 5_000_000}).admission
    state.admits(verdict, 1.0)
    state.admits(verdict, 2.0)
    assert state.spec_version == (3, 5_000_001)


def test_a_master_is_told_what_the_owner_asks_for_beside_what_is_admitted() -> None:
    """A request for a size is compared with the owner's."""
    state = _state([])
    state.admits(Verdict(workers=1), 1.0)
    (spec,) = [one for one in state.first_messages() if isinstance(one, MasterSpec)]
    assert (spec.replicas, spec.asked_replicas) == (1, 2)
