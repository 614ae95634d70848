"""A conversion under way: the new job, further objects, and the fields that it leaves out."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Final

from holdfast_cli.convert.launcher import Launch, convert_command
from holdfast_cli.convert.rules import Finding, Outcome
from holdfast_cli.convert.source import Source
from holdfast_operator.pods.template import main_container
from holdfast_operator.spec.problems import show_value

_SERVER_METADATA: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
"""Fields of `metadata` that an API server writes."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KUEUE: Final = "kueue.x-k8s.io/multikueue"
_PERMANENT: Final = list(range(1, 128))
"""Exit codes that Kubeflow and DLRover take as permanent under the restart policy ExitCode."""
_WHOLE_LIFE: Final = 0
_FIRST: Final = (
    *("suspend", "managedBy", "replicas", "minReplicas", "maxReplicas", "nodeUnit"),
    "nprocPerNode",
)
_LAST: Final = ("worker", "extraRoles")


@dataclasses.dataclass(slots=True)
class Conversion:
    """The result of a conversion, filled by the kind's module."""

    source: Source
    """The foreign object."""
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The ElasticJob's spec."""
    others: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Objects beside the job, such as a HorizontalPodAutoscaler."""
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Findings that a person has to decide."""
        return tuple(one for one in self.findings if one.outcome is Outcome.REFUSED)

    def drop(self, place: Source, reason: str) -> None:
        """Note a dropped field."""
        self.findings.append(_finding(place, Outcome.DROPPED, reason))

    def refuse(self, place: Source, reason: str) -> None:
        """Note a field that a person has to decide."""
        self.findings.append(_finding(place, Outcome.REFUSED, reason))

    def job(self) -> dict[str, Any]:
        """Return the ElasticJob."""
        return {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": _own_metadata(self.source.at("metadata")),
            "spec": dict(sorted(self.spec.items(), key=lambda item: _place(item[0]))),
        }

    def put(self, path: str, value: Any) -> None:
        """Set a field of the new spec by its path with dots, unless the value is None."""
        if value is None:
            return
        *steps, name = path.split(".")
        place = self.spec
        for step in steps:
            place = place.setdefault(step, {})
        place[name] = copy.deepcopy(value)

    def managed_by(self, given: Source, own: str) -> None:
        """Keep MultiKueue as the one who reconciles; drop the foreign operator's own name."""
        if given.text() == _KUEUE:
            self.put("managedBy", _KUEUE)
        elif given.text() not in {"", own}:
            self.refuse(given, "another controller reconciles it; remove it")

    def restarts(self, policy: Source) -> None:
        """Translate the restart policy of replicas."""
        if policy.text() == "Never":
            self.failures(0)
        elif policy.text() == "ExitCode":
            codes = {"operator": "In", "values": _PERMANENT}
            self.put("failurePolicy.rules", [{"action": "FailJob", "onExitCodes": codes}])
        elif policy.text() not in {"", "Always", "OnFailure"}:
            self.refuse(policy, "is none of Always, OnFailure, Never, ExitCode")

    def failures(self, *limits: int | None) -> None:
        """Set how many failures the job survives in its whole life: the largest limit given."""
        given = [limit for limit in limits if limit is not None]
        if given and "budgets" not in self.spec.get("failurePolicy", {}):
            budget = {"limit": max(given), "windowSeconds": _WHOLE_LIFE}
            self.put("failurePolicy.budgets.failures", budget)

    def processes(self, given: Source) -> None:
        """Set the processes of a pod: a number, auto, gpu or cpu."""
        text = "" if given.value is None else str(given.value)
        if text.isdecimal():
            self.spec["nprocPerNode"] = int(text)
        elif text in {"auto", "gpu", "cpu"}:
            self.spec["nprocPerNode"] = text
        elif text:
            self.refuse(given, "is known only in the pod; write the number into nprocPerNode")

    def worker(self, template: Source, replicas: int) -> None:
        """Take the workers' pod template over, with a command that starts agents.

        template: A PodTemplateSpec.
        replicas: Number of pods; `--nnodes` of the command may give bounds.
        """
        containers = template.at("spec", "containers").items()
        if not containers:
            self.refuse(template.at("spec", "containers"), "has no container; there is no command")
            return
        at = main_container({"containers": [one.mapping() for one in containers]})
        place = containers[at].at("command")
        words = [*place.items(), *containers[at].at("args").items()]
        launch = convert_command([word.text() for word in words], place.field)
        self.findings += launch.findings
        made = own_template(template)
        if launch.words:
            main = made["spec"]["containers"][at]
            main.pop("args", None)
            main["command"] = list(launch.words)
        self.spec["replicas"] = replicas
        self._asked(launch, place)
        self.put("worker.template", made)

    def _asked(self, launch: Launch, place: Source) -> None:
        """Take over what the command's flags ask of the job."""
        replicas = self.spec["replicas"]
        if launch.nodes is not None:
            low, high = (int(text) if text.isdecimal() else replicas for text in launch.nodes)
            if low != high:
                self.spec["minReplicas"], self.spec["maxReplicas"] = low, max(high, replicas)
            elif low != replicas:
                why = f"--nnodes={low}, but {replicas} pods are asked for; make them equal"
                self.refuse(dataclasses.replace(place, value=None), why)
        self.put("nodeUnit", launch.unit)
        self.put("health", dict(launch.health) or None)
        self.processes(Source(launch.nproc, (*place.path, "--nproc-per-node"), place.prefix))


def own_template(given: Source) -> dict[str, Any]:
    """Return a pod template as an ElasticJob has it: labels, annotations and spec.

    `restartPolicy` goes: pods of an ElasticJob are never restarted by the kubelet.
    """
    metadata = {
        name: place.value
        for name, place in given.at("metadata").entries().items()
        if name in {"labels", "annotations"} and place
    }
    gone = {"restartPolicy", "hostname", "subdomain"}
    spec = {name: value for name, value in given.at("spec").mapping().items() if name not in gone}
    made: dict[str, Any] = copy.deepcopy({"metadata": metadata, "spec": spec})
    return made if metadata else {"spec": made["spec"]}


def _own_metadata(given: Source) -> dict[str, Any]:
    """Return an object's metadata without what an API server or kubectl has written."""
    made = {name: value for name, value in given.mapping().items() if name not in _SERVER_METADATA}
    notes = given.at("annotations").mapping()
    if _LAST_APPLIED in notes:
        made["annotations"] = {k: v for k, v in notes.items() if k != _LAST_APPLIED}
    return {name: value for name, value in made.items() if value not in (None, {})}


def _finding(place: Source, outcome: Outcome, reason: str) -> Finding:
    value = "" if place.value is None else show_value(place.value)
    return Finding(place.field, outcome, reason, value)


def _place(name: str) -> int:
    """Return where a field of the spec stands: sizes first, templates last."""
    if name in _FIRST:
        return _FIRST.index(name)
    return len(_FIRST) + (1 + _LAST.index(name) if name in _LAST else 0)
