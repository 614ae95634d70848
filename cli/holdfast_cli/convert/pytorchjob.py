"""Kubeflow's PyTorchJob (`kubeflow.org/v1`) as an ElasticJob. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_cli.convert.conversion import Conversion, own_template
from holdfast_cli.convert.rules import Rule, dropped, judge, mapped, refused
from holdfast_cli.convert.source import Source

_RENDEZVOUS: Final = "the job master is the rendezvous"
_REPLICAS: Final = "spec.pytorchReplicaSpecs"
_POLICY: Final = "spec.runPolicy"
_GROUP: Final = f"{_POLICY}.schedulingPolicy"
_ROLES: Final = ("Master", "Worker")
_MAIN: Final = "pytorch"
"""Name that Kubeflow wants of the container that trains."""
_RETRIED: Final = frozenset({"", "Always", "OnFailure"})
_DIFFERS: Final = "differs from Worker's, but workers of an ElasticJob have one; make them equal"

FIELDS: Final[tuple[Rule, ...]] = (
    *mapped("apiVersion", "kind", "metadata", "spec.nprocPerNode"),
    dropped("status", "the operator writes its own"),
    *mapped(
        f"{_REPLICAS}.*.replicas",
        f"{_REPLICAS}.*.restartPolicy",
        f"{_REPLICAS}.*.template",
        "spec.elasticPolicy.minReplicas",
        "spec.elasticPolicy.maxReplicas",
        "spec.elasticPolicy.maxRestarts",
        "spec.elasticPolicy.nProcPerNode",
        "spec.elasticPolicy.metrics",
        f"{_POLICY}.activeDeadlineSeconds",
        f"{_POLICY}.backoffLimit",
        f"{_POLICY}.cleanPodPolicy",
        f"{_POLICY}.managedBy",
        f"{_POLICY}.suspend",
        f"{_POLICY}.ttlSecondsAfterFinished",
        f"{_GROUP}.minAvailable",
        f"{_GROUP}.priorityClass",
        f"{_GROUP}.scheduleTimeoutSeconds",
    ),
    dropped("spec.elasticPolicy.rdzvBackend", _RENDEZVOUS),
    dropped("spec.elasticPolicy.rdzvConf", _RENDEZVOUS),
    dropped("spec.elasticPolicy.rdzvHost", _RENDEZVOUS),
    dropped("spec.elasticPolicy.rdzvId", _RENDEZVOUS),
    dropped("spec.elasticPolicy.rdzvPort", _RENDEZVOUS),
    dropped("spec.elasticPolicy.standalone", _RENDEZVOUS, False),
    dropped(f"{_GROUP}.minResources", "the scheduler adds up what the workers request"),
    refused(
        f"{_GROUP}.queue",
        "Volcano's queue; remove it, or label the job with kueue.x-k8s.io/queue-name",
        "",
    ),
)

_OWN: Final = "kubeflow.org/training-operator"
_PATHS: Final[Mapping[str, str]] = {
    "activeDeadlineSeconds": "activeDeadlineSeconds",
    "cleanPodPolicy": "cleanup.pods",
    "suspend": "suspend",
    "ttlSecondsAfterFinished": "cleanup.ttlSecondsAfterFinished",
}
"""Fields of runPolicy that an ElasticJob has under another name."""


def convert(source: Source) -> Conversion:
    """Return the ElasticJob of a PyTorchJob, and its HorizontalPodAutoscaler if it has metrics."""
    made = Conversion(source)
    made.findings += judge(source.mapping(), FIELDS)
    policy, elastic = source.at("spec", "runPolicy"), source.at("spec", "elasticPolicy")
    for name, path in _PATHS.items():
        value = policy.at(name).value
        made.put(path, None if value == "" else value)
    made.managed_by(policy.at("managedBy"), _OWN)
    priority = policy.at("schedulingPolicy", "priorityClass").text()
    made.put("scheduling.priorityClassName", priority or None)
    roles = _roles(made, source.at("spec", "pytorchReplicaSpecs"))
    added = _workers(made, roles) if roles else 0
    _bounds(made, elastic, added)
    _gang(made, policy.at("schedulingPolicy"))
    if elastic.at("metrics"):
        made.others.append(_autoscaler(made, elastic.at("metrics")))
    _restarts(made, roles, policy.at("backoffLimit"), elastic.at("maxRestarts"))
    # Both are one variable of torchrun, and the older field is written last.
    made.processes(elastic.at("nProcPerNode"))
    made.processes(source.at("spec", "nprocPerNode"))
    return made


def _roles(made: Conversion, replicas: Source) -> dict[str, Source]:
    """Return Master and Worker, whose names Kubeflow reads in any case."""
    entries = {name.capitalize(): place for name, place in replicas.entries().items()}
    for name in sorted(entries.keys() - _ROLES):
        made.refuse(entries[name], "is none of Master and Worker; remove it")
    roles = {name: entries[name] for name in _ROLES if entries.get(name)}
    if not roles:
        made.refuse(replicas, "has neither Master nor Worker; there is nothing to start")
    return roles


def _workers(made: Conversion, roles: Mapping[str, Source]) -> int:
    """Take the replicas over; return how many pods the bounds of elasticPolicy do not count."""
    counts = {name: entry.at("replicas").integer() for name, entry in roles.items()}
    pods = {name: 1 if count is None else count for name, count in counts.items()}
    if len(roles) == 2:
        made_of = [own_template(entry.at("template")) for entry in roles.values()]
        if made_of[0] != made_of[1]:
            made.refuse(roles["Master"].at("template"), _DIFFERS)
    made.worker(list(roles.values())[-1].at("template"), sum(pods.values()), _MAIN)
    return pods["Master"] if len(roles) == 2 else 0


def _bounds(made: Conversion, elastic: Source, added: int) -> None:
    """Take the sizes of elasticPolicy over, but for those that a flag of the launcher overrules."""
    size = made.spec.get("replicas")
    for name in ("minReplicas", "maxReplicas"):
        bound = elastic.at(name)
        number = bound.integer()
        if number is not None and not made.sized:
            made.put(name, number + added)
        elif number is not None and number + added != made.spec.get(name, size):
            made.drop(bound, "the command's --nnodes wins")


def _restarts(
    made: Conversion, roles: Mapping[str, Source], backoff: Source, restarts: Source
) -> None:
    """Set the failure budget: retries of pods and restarts by torchrun are one here."""
    policies = [entry.at("restartPolicy") for entry in roles.values()]
    texts = ["OnFailure" if one.text() in _RETRIED else one.text() for one in policies]
    if len(set(texts)) == 2:
        made.refuse(policies[0], _DIFFERS)
    if not policies:
        return
    retries = backoff.integer()
    if texts[-1] == "Never" and retries is not None:
        if retries > 0:
            made.drop(backoff, "restartPolicy: Never wins")
        retries = None
    made.restarts(policies[-1], retries, restarts.integer())


def _gang(made: Conversion, group: Source) -> None:
    """Ask for a gang where the PyTorchJob does; its size is that of the smallest world."""
    least, timeout = group.at("minAvailable"), group.at("scheduleTimeoutSeconds")
    if not least and not timeout:
        return
    made.put("scheduling.gang.backend", "Auto")
    made.put("scheduling.gang.timeoutSeconds", timeout.integer())
    size = made.spec.get("minReplicas", made.spec.get("replicas"))
    if least.integer() not in {None, size}:
        made.drop(least, f"a gang has minReplicas workers, {size}")


def _autoscaler(made: Conversion, metrics: Source) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler that Kubeflow's controller would make."""
    name = made.source.at("metadata", "name").text()
    namespace = made.source.at("metadata", "namespace").text()
    size = made.spec.get("replicas", 1)
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "holdfast.dev/v1alpha1",
                "kind": "ElasticJob",
                "name": name,
            },
            "minReplicas": made.spec.get("minReplicas", size),
            "maxReplicas": made.spec.get("maxReplicas", size),
            "metrics": metrics.value,
        },
    }
