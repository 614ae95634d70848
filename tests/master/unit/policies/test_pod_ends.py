"""Causes of a pod's end, from its reason, conditions and phase."""

from __future__ import annotations

import re

import pytest

from holdfast_master.policies.failure import Evidence, EvidenceKind, charge, respond
from holdfast_master.policies.pod_ends import ENDERS, Ender, ended_by, exit_code, pod_kind
from holdfast_wire.messages import BudgetKind, FailureAction, FailureRule, PodObservation, PodPhase
from house.repository import ROOT

PAGE = ROOT / "docs/reference/conditions.md"
EVERY_CODE = FailureRule(action=FailureAction.FAIL_JOB, exit_codes=(0,), exit_codes_not_in=True)
TARGET = ("DisruptionTarget=True",)

PROGRAM, LIMIT, NODE = Ender.PROGRAM, Ender.LIMIT, Ender.NODE
# reason, conditions, exit code as it is reported, who ended it
ENDS = [
    # the program
    ("Error", (), 1, PROGRAM),
    ("Error", (), 255, PROGRAM),
    ("Error", (), -9, PROGRAM),
    ("OOMKilled", ("Ready=False",), -9, PROGRAM),
    ("StartError", (), 128, PROGRAM),
    ("Killed", (), -9, PROGRAM),
    ("", ("DisruptionTarget=False",), 1, PROGRAM),
    # whoever says that it did
    ("", ("Ready=False", *TARGET), -9, NODE),
    ("Error", TARGET, -15, NODE),
    ("Evicted", TARGET, -9, NODE),
    ("Deleted", (), 0, NODE),
    ("Preempted", (), -9, NODE),
    ("Preempting", TARGET, -9, NODE),
    ("TerminationByKubelet", (), -9, NODE),
    ("NodeLost", (), 1, NODE),
    # a node that shuts down, or was started anew
    ("NodeShutdown", (), 1, NODE),
    ("Terminated", TARGET, -15, NODE),
    ("Terminated", (), -9, NODE),
    ("ContainerStatusUnknown", (), -9, NODE),
    ("Unknown", (), -127, NODE),
    # a node that had changed since the scheduler chose it
    ("InvalidNodeInfo", (), 1, NODE),
    ("NodeAffinity", (), 1, NODE),
    ("NodeName", (), 1, NODE),
    ("NodePorts", (), 1, NODE),
    ("OutOfcpu", (), 1, NODE),
    ("OutOfephemeral-storage", (), 1, NODE),
    ("OutOfmemory", (), 1, NODE),
    ("OutOfnvidia.com/gpu", (), 1, NODE),
    ("OutOfpods", (), 1, NODE),
    ("TaintToleration", (), 1, NODE),
    ("TopologyAffinityError", (), 1, NODE),
    ("UnexpectedAdmissionError", (), 1, NODE),
    ("UnexpectedPredicateFailureType", (), 1, NODE),
    ("UnknownReason", (), 1, NODE),
    ("VolumeAttachmentLimitExceeded", (), 1, NODE),
    # what the template says, or a limit in it
    ("AppArmor", (), 1, LIMIT),
    ("DeadlineExceeded", (), -9, LIMIT),
    ("Evicted", (), -9, LIMIT),
    ("InitContainerRestartPolicyForbidden", (), 1, LIMIT),
    ("PodFeatureUnsupported", (), 1, LIMIT),
    ("PodLevelResourcesNotSupported", (), 1, LIMIT),
    ("PodOSNotSupported", (), 1, LIMIT),
    ("PodOSSelectorNodeLabelDoesNotMatch", (), 1, LIMIT),
    ("RestartingAllContainers", (), -9, LIMIT),
    ("SupplementalGroupsPolicyNotSupported", (), 1, LIMIT),
    ("SysctlForbidden", (), 1, LIMIT),
]
KINDS = {
    PROGRAM: EvidenceKind.POD_FAILED,
    LIMIT: EvidenceKind.POD_FAILED,
    NODE: EvidenceKind.PREEMPTED,
}
BUDGETS = {PROGRAM: BudgetKind.FAILURES, LIMIT: BudgetKind.FAILURES, NODE: BudgetKind.PREEMPTIONS}


def _pod(reason: str, conditions: tuple[str, ...] = (), code: int = 0) -> PodObservation:
    return PodObservation(
        pod_uid="p", phase=PodPhase.FAILED, reason=reason, conditions=conditions, exit_code=code
    )


@pytest.mark.parametrize(("reason", "conditions", "code", "ender"), ENDS)
def test_who_ended_a_pod_decides_budget_and_rules(
    reason: str, conditions: tuple[str, ...], code: int, ender: Ender
) -> None:
    """Only a program's own end has an exit code; only what a node did is a preemption."""
    pod = _pod(reason, conditions, code)
    assert ended_by(reason, conditions) is ender
    own, kind = exit_code(pod), pod_kind(pod)
    assert kind is KINDS[ender]
    assert own == (code if ender is PROGRAM else None)
    item = Evidence(kind=kind, text="", at=0.0, exit_code=own, conditions=conditions)
    paid = charge(item, FailureAction.RESTART_IN_PLACE, progressed=True, asked=False)
    assert paid.kind is BUDGETS[ender]
    fails = respond(item, [EVERY_CODE]).action is FailureAction.FAIL_JOB
    assert fails is (ender is PROGRAM)


def test_every_reason_of_the_table_is_tried() -> None:
    """A reason that is added is added above too."""
    assert set(ENDERS) <= {reason for reason, *_ in ENDS}


def test_the_page_of_reasons_names_every_one() -> None:
    """Under the heading that assumptions and changelog refer to."""
    _, _, part = PAGE.read_text().partition("## Who ended a pod\n")
    assert set(ENDERS) <= set(re.findall(r"`(\w+)`", part))


OTHER_ENDS = [
    ({"phase": PodPhase.SUCCEEDED}, EvidenceKind.AGENT_LEFT),
    ({"phase": PodPhase.SUCCEEDED, "reason": "Terminated"}, EvidenceKind.PREEMPTED),
    ({"phase": PodPhase.GONE}, EvidenceKind.PREEMPTED),
    ({"phase": PodPhase.GONE, "exit_code": 3}, EvidenceKind.POD_FAILED),
    ({"phase": PodPhase.GONE, "wanted": True}, EvidenceKind.NODE_REMOVED),
    ({"phase": PodPhase.FAILED, "exit_code": 1, "wanted": True}, EvidenceKind.NODE_REMOVED),
    # its container ended and starts again
    ({"phase": PodPhase.RUNNING, "exit_code": -9, "ends": 1}, EvidenceKind.POD_FAILED),
    (
        {"phase": PodPhase.RUNNING, "ends": 1, "reason": "ContainerStatusUnknown"},
        EvidenceKind.PREEMPTED,
    ),
]


@pytest.mark.parametrize(("pod", "kind"), OTHER_ENDS)
def test_a_pods_phase_tells_what_its_end_is_evidence_of(
    pod: dict[str, object], kind: EvidenceKind
) -> None:
    """Success is an agent that left; gone without a word, and unwanted, was taken away."""
    assert pod_kind(PodObservation(pod_uid="p", **pod)) is kind  # type: ignore[arg-type]
