"""A conversion under way: the new job, further objects, and the fields that it leaves out."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Sequence
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
_SIZE: Final = re.compile(r"\$[({]?(NODE_NUM|WORKER_NUM|WORLD_SIZE|PET_NNODES)[)}]?")
"""Variables of DLRover and Kubeflow that stand for the number of pods."""
_BOUNDS: Final = "PET_NNODES"
"""The one that has the bounds of an elastic job."""
_REFERENCE: Final = re.compile(
    r"(?<!\$)\$\(((?:NODE|WORKER)_(?:NUM|RANK)|WORLD_SIZE|RANK|MASTER_(?:ADDR|PORT))\)"
)
"""Variables that those operators set in pods, as Kubernetes puts them into a command."""
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
    sized: bool = False
    """The command's --nnodes says how many pods train."""
    plain: bool = False
    """The command is a script without a launcher."""
    decided: str = ""
    """Sentence about the source of nprocPerNode."""

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

    def restarts(self, policy: Source, *limits: int | None) -> None:
        """Translate the restart policy of replicas, and limits of restarts beside it.

        limits: Restarts that happen under Never, too.
        """
        if policy.text() == "Never":
            if any(limits):
                why = "restarts are allowed, so a pod is replaced, too; write a budget of 0 if not"
                self.drop(policy, why)
            limits = (0, *limits)
        elif policy.text() == "ExitCode":
            codes = {"operator": "In", "values": _PERMANENT}
            self.put("failurePolicy.rules", [{"action": "FailJob", "onExitCodes": codes}])
        elif policy.text() not in {"", "Always", "OnFailure"}:
            self.refuse(policy, "is none of Always, OnFailure, Never, ExitCode")
        self.failures(*limits)

    def failures(self, *limits: int | None) -> None:
        """Set how many failures the job survives in its whole life: the largest limit given."""
        given = [limit for limit in limits if limit is not None]
        if given:
            budget = {"limit": max(given), "windowSeconds": _WHOLE_LIFE}
            self.put("failurePolicy.budgets.failures", budget)

    def processes(self, given: Source) -> None:
        """Set the processes of a pod, unless they are set: a number, auto, gpu or cpu."""
        text = "" if given.value is None else str(given.value)
        known = self.spec.get("nprocPerNode")
        if text and known is not None:
            self._overruled(given, text, str(known))
        elif text.isdecimal() or text in {"auto", "gpu", "cpu"}:
            self.spec["nprocPerNode"] = int(text) if text.isdecimal() else text
            self.decided = f"{given.field} wins"
        elif text:
            self.refuse(given, "is known only in the pod; write the number into nprocPerNode")

    def _overruled(self, given: Source, text: str, known: str) -> None:
        """Say that the processes of a field are not those that are started."""
        if self.plain and text.isdecimal() and text != known:
            why = "the command starts one process; write torchrun before the script, or remove it"
            self.refuse(given, why)
        elif text != known:
            self.drop(given, self.decided)

    def worker(self, template: Source, replicas: int, main: str) -> None:
        """Take the workers' pod template over, with a command that starts agents.

        template: A PodTemplateSpec.
        replicas: Number of pods; `--nnodes` of the command may give bounds.
        main: Name of the container that trains; where none has it, ours or the first one does.
        """
        containers = template.at("spec", "containers").items()
        if not containers:
            self.refuse(template.at("spec", "containers"), "has no container; there is no command")
            return
        names = [one.at("name").value for one in containers]
        bare = [one.mapping() for one in containers]
        at = names.index(main) if main in names else main_container({"containers": bare})
        place = containers[at].at("command")
        words = [*place.items(), *containers[at].at("args").items()]
        launch = convert_command([word.text() for word in words], place.field)
        self.findings += launch.findings
        self._references(launch.words, containers[at])
        self.spec["replicas"] = replicas
        self._asked(launch, place)
        self.put("worker.template", self._template(template, at, launch.words))

    def _template(self, given: Source, at: int, words: Sequence[str]) -> dict[str, Any]:
        """Return the pod template with its main container, which is at `at`, in front."""
        for name in ("hostname", "subdomain"):
            if given.at("spec", name):
                self.drop(given.at("spec", name), "each pod has its own")
        made = own_template(given)
        containers = made["spec"]["containers"]
        main = containers.pop(at)
        containers.insert(0, main)
        if words:
            main.pop("args", None)
            main["command"] = list(words)
        taken = main_container(made["spec"])
        if taken != 0:
            place = given.at("spec", "containers").items()[taken if taken > at else taken - 1]
            self.refuse(place.at("name"), "is the name of the container that trains; rename it")
        return made

    def _references(self, words: Sequence[str], container: Source) -> None:
        """Refuse variables that the other operator sets in the pod, and ours only in ranks."""
        own = {variable.at("name").value for variable in container.at("env").items()}
        for name in dict.fromkeys(_REFERENCE.findall(" ".join(words))):
            if name not in own:
                why = f"$({name}) is not set in the pod here; the ranks have the variable {name}"
                self.refuse(dataclasses.replace(container.at("command"), value=None), why)

    def _asked(self, launch: Launch, place: Source) -> None:
        """Take over what the command's flags ask of the job."""
        if launch.nodes is not None:
            self._nodes(launch.nodes, place)
        unit = Source(launch.unit, (*place.path, "--node-unit"), place.prefix)
        if unit.text().isdecimal():
            self.put("nodeUnit", int(unit.text()))
        elif unit:
            self.refuse(unit, "is known only in the pod; write the number into nodeUnit")
        self.put("health", dict(launch.health) or None)
        self.processes(Source(launch.nproc, (*place.path, "--nproc-per-node"), place.prefix))
        self.plain = launch.plain
        if launch.nproc is not None:
            alone = "a script without a launcher is one process"
            self.decided = alone if launch.plain else "the command's flag wins"

    def _nodes(self, nodes: tuple[str, str], place: Source) -> None:
        """Take over the bounds of --nnodes."""
        replicas = self.spec["replicas"]
        named = [_SIZE.fullmatch(text) for text in nodes]
        if not all(text.isdecimal() or name for text, name in zip(nodes, named, strict=True)):
            given = Source(":".join(dict.fromkeys(nodes)), (*place.path, "--nnodes"), place.prefix)
            self.refuse(given, "is known only in the pod; write the number of pods")
            return
        self.sized = any(name is None or name[1] != _BOUNDS for name in named)
        low, high = (int(text) if text.isdecimal() else replicas for text in nodes)
        if low != high:
            self.spec["minReplicas"], self.spec["maxReplicas"] = low, max(high, replicas)
        elif low != replicas:
            why = f"--nnodes={low}, but {replicas} pods are asked for; make them equal"
            self.refuse(dataclasses.replace(place, value=None), why)


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
