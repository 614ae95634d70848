"""Classifies the end of a pod: by its own program, by its limits, or by a preemption."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from holdfast_master.policies.failure import EvidenceKind
from holdfast_wire.messages import PodObservation, PodPhase


class Ender(enum.Enum):
    """The party that ended a pod."""

    PROGRAM = "program"
    """Its main process: the exit code is its own."""
    LIMIT = "limit"
    """Its node, because of what the pod uses or asks for: the next one would end so too."""
    NODE = "node"
    """Its node or the cluster, whatever runs in the pod."""


_DISRUPTED = "DisruptionTarget=True"
"""Set by everybody who takes a healthy pod away: scheduler, eviction API, kubelet, controllers."""
_NO_RESOURCE = "OutOf"
"""The kubelet puts a resource's name after it: OutOfcpu, OutOfpods, OutOfnvidia.com/gpu."""
_TAKEN = ("Deleted", "Preempted", "Preempting", "TerminationByKubelet", "NodeLost")
_SHUT_DOWN = ("NodeShutdown", "Terminated")
"""The node shuts down in order: it turned the pod away, or had it end."""
_REBOOTED = ("ContainerStatusUnknown", "Unknown")
"""The kubelet (137) or containerd (255) does not find any more what ran before it began anew. The
exit codes are made up."""
_REJECTED = (
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
)
"""The kubelet did not admit a pod that the scheduler had given it: the node had changed meanwhile,
or one of its devices failed. Nothing of the pod ever ran."""
_ASKS_TOO_MUCH = (
    "AppArmor",
    "InitContainerRestartPolicyForbidden",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
)
"""The kubelet did not admit it either, but for what its template says."""
_EVICTED = "Evicted"
_OWN_RULES = ("DeadlineExceeded", "RestartingAllContainers", _EVICTED)
"""A deadline or a rule of the template; more disk than a limit of the template allows. A pod that
is evicted because its node runs out of something has the condition beside it."""

ENDERS: Mapping[str, Ender] = {
    **dict.fromkeys((*_TAKEN, *_SHUT_DOWN, *_REBOOTED, *_REJECTED), Ender.NODE),
    **dict.fromkeys((*_ASKS_TOO_MUCH, *_OWN_RULES), Ender.LIMIT),
}
"""By the reason of the pod, or of its container's end. Any other is the program's."""


def ended_by(reason: str, conditions: Sequence[str]) -> Ender:
    """The party that ended a pod with this reason and these conditions (Type=Status)."""
    if _DISRUPTED in conditions or reason.startswith(_NO_RESOURCE):
        return Ender.NODE
    return ENDERS.get(reason, Ender.PROGRAM)


def exit_code(pod: PodObservation) -> int | None:
    """The exit code of the pod's program; None: something else ended the pod."""
    own = ended_by(pod.reason, pod.conditions) is Ender.PROGRAM
    return pod.exit_code if own else None


def pod_kind(pod: PodObservation) -> EvidenceKind:
    """The kind of evidence that the end of a pod, or of its container, is."""
    if pod.wanted:
        return EvidenceKind.NODE_REMOVED
    deleted = pod.phase is PodPhase.GONE and pod.exit_code == 0 and not pod.reason
    if deleted or ended_by(pod.reason, pod.conditions) is Ender.NODE:
        return EvidenceKind.PREEMPTED
    if pod.phase is PodPhase.SUCCEEDED:
        return EvidenceKind.AGENT_LEFT
    return EvidenceKind.POD_FAILED
