"""DLRover's ElasticJob (`elastic.iml.github.io/v1alpha1`) as one of ours. Pure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast_cli.convert.conversion import Conversion, own_template
from holdfast_cli.convert.rules import Rule, dropped, judge, mapped, refused
from holdfast_cli.convert.source import Source

_REPLICAS: Final = "spec.replicaSpecs"
_SERVERS: Final = "parameter servers and a chief are TensorFlow's; an ElasticJob trains PyTorch"
_BRAIN: Final = "sizes stay as they are written, or as an autoscaler on the job's scale sets them"

FIELDS: Final[tuple[Rule, ...]] = (
    *mapped("apiVersion", "kind", "metadata", "spec.distributionStrategy", "spec.suspend"),
    dropped("status", "the operator writes its own"),
    dropped("spec.brainService", _BRAIN, ""),
    dropped("spec.optimizeMode", _BRAIN, "manual", ""),
    dropped("spec.resourceLimits", _BRAIN),
    *mapped("spec.envs", f"{_REPLICAS}.worker.replicas", f"{_REPLICAS}.worker.restartPolicy"),
    *mapped(f"{_REPLICAS}.worker.restartCount", f"{_REPLICAS}.worker.template"),
    *mapped(f"{_REPLICAS}.worker.BatchScheduler", f"{_REPLICAS}.worker.priority"),
    *mapped(f"{_REPLICAS}.evaluator.replicas", f"{_REPLICAS}.evaluator.restartPolicy"),
    *mapped(f"{_REPLICAS}.evaluator.template"),
    dropped(f"{_REPLICAS}.evaluator.BatchScheduler", "the workers' scheduler alone matters"),
    dropped(f"{_REPLICAS}.evaluator.priority", "spec.scheduling.priorityClassName is the job's"),
    dropped(f"{_REPLICAS}.evaluator.restartCount", "its restartPolicy decides"),
    dropped(f"{_REPLICAS}.*.autoScale", _BRAIN, False),
    dropped(f"{_REPLICAS}.*.restartTimeout", "a new pod may take as long as it needs"),
    refused(f"{_REPLICAS}.ps", _SERVERS),
    refused(f"{_REPLICAS}.chief", _SERVERS),
    dropped(f"{_REPLICAS}.dlrover-master", "the operator makes the job's master"),
)

_MAIN: Final = "main"
"""Name that DLRover wants of the container that trains, where a pod has several."""
_STRATEGIES: Final = frozenset({"", "AllreduceStrategy", "CustomStrategy", "Local"})


def convert(source: Source) -> Conversion:
    """Return the ElasticJob of DLRover's ElasticJob."""
    made = Conversion(source)
    made.findings += judge(source.mapping(), FIELDS)
    spec = source.at("spec")
    if spec.at("distributionStrategy").text() not in _STRATEGIES:
        made.refuse(spec.at("distributionStrategy"), _SERVERS)
    made.put("suspend", spec.at("suspend").value)
    variables = [
        {"name": name, **place.mapping()} for name, place in spec.at("envs").entries().items()
    ]
    worker = spec.at("replicaSpecs", "worker")
    if worker:
        _worker(made, worker, variables)
    else:
        made.refuse(worker, "is missing; there is nothing to start")
    if spec.at("replicaSpecs", "evaluator"):
        _evaluator(made, spec.at("replicaSpecs", "evaluator"), variables)
    return made


def _worker(made: Conversion, worker: Source, variables: Sequence[Mapping[str, Any]]) -> None:
    given = worker.at("replicas").integer()
    replicas = 1 if given is None else given
    restarts = worker.at("restartCount").integer()
    total = None if restarts is None else restarts * replicas
    made.restarts(worker.at("restartPolicy"), total)
    template = _with_env(worker.at("template"), variables)
    if worker.at("BatchScheduler"):
        template.at("spec").mapping()["schedulerName"] = worker.at("BatchScheduler").text()
    priority = worker.at("priority").text()
    if priority.replace(".", "", 1).isdecimal():
        why = "a share of the pods would have another priority; write one of your PriorityClasses"
        made.refuse(worker.at("priority"), why)
    else:
        made.put("scheduling.priorityClassName", priority or None)
    made.worker(template, replicas, _MAIN)
    if not any(one.field.endswith("--auto-config") for one in made.findings):
        # Without a flag its launcher starts one process; an ElasticJob counts the devices.
        made.spec.setdefault("nprocPerNode", 1)


def _evaluator(made: Conversion, evaluator: Source, variables: Sequence[Mapping[str, Any]]) -> None:
    replicas = evaluator.at("replicas").integer()
    if replicas == 0:
        made.drop(evaluator.at("replicas"), "there is none")
        return
    policy = evaluator.at("restartPolicy").text() or "OnFailure"
    if policy == "ExitCode":
        made.drop(evaluator.at("restartPolicy"), "OnFailure: a role's pod has no exit codes")
        policy = "OnFailure"
    role = {
        "name": "evaluator",
        "replicas": 1 if replicas is None else replicas,
        "restartPolicy": policy,
        "template": own_template(_with_env(evaluator.at("template"), variables)),
    }
    made.put("extraRoles", [role])


def _with_env(template: Source, variables: Sequence[Mapping[str, Any]]) -> Source:
    """Return a copy with the job's variables in each container that has no own one."""
    made = dataclasses.replace(template, value=copy.deepcopy(template.mapping()))
    for container in made.at("spec", "containers").items():
        own = {variable.at("name").value for variable in container.at("env").items()}
        added = [one for one in variables if one["name"] not in own]
        if added:
            container.mapping()["env"] = [*(container.at("env").value or ()), *added]
    return made
