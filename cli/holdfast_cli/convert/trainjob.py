"""Kubeflow's TrainJob with its TrainingRuntime (`trainer.kubeflow.org/v1alpha1`). Pure.

The runtime's job template and the TrainJob's overrides become one pod template.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast_cli.convert.conversion import Conversion
from holdfast_cli.convert.rules import (
    Rule,
    dropped,
    judge,
    mapped,
    refused,
    refused_even_empty,
)
from holdfast_cli.convert.source import Source
from holdfast_operator.spec.quantities import to_number

RUNTIMES: Final = frozenset({"TrainingRuntime", "ClusterTrainingRuntime"})
_INITIALIZER: Final = (
    "each worker would download it; run the runtime's initializer as a Job before, and mount its "
    "volume in the workers"
)
_TOPOLOGY: Final = "remove it, and write a label of nodes into scheduling.topology"
_MPI: Final = "an ElasticJob's ranks are started by agents; use a runtime with mlPolicy.torch"
_OPERATOR: Final = "the operator does this for an ElasticJob"
_RUNTIME: Final = "of the runtime: "
_JOB: Final = "spec.template.spec.replicatedJobs.[]"
_POD: Final = f"{_JOB}.template.spec"
_PATCH: Final = "spec.runtimePatches.[].trainingRuntimeSpec.template"

TRAIN_JOB: Final[tuple[Rule, ...]] = (
    *mapped("apiVersion", "kind", "metadata", "spec.activeDeadlineSeconds", "spec.managedBy"),
    *mapped("spec.suspend", "spec.runtimeRef", "spec.trainer"),
    dropped("status", "the operator writes its own"),
    refused("spec.initializer", _INITIALIZER),
    dropped("spec.runtimePatches.[].manager", "the patch is part of the template now"),
    dropped("spec.runtimePatches.[].time", "the patch is part of the template now"),
    dropped(f"{_PATCH}.metadata", "the JobSet's own; an ElasticJob makes none"),
    *mapped(f"{_PATCH}.spec.replicatedJobs.[].name"),
    dropped(f"{_PATCH}.spec.replicatedJobs.[].template.metadata", "the Job's own; there is none"),
    *mapped(f"{_PATCH}.spec.replicatedJobs.[].template.spec.template"),
)
RUNTIME: Final[tuple[Rule, ...]] = (
    *mapped("apiVersion", "kind", "spec.mlPolicy.numNodes"),
    dropped("metadata", "the runtime's own"),
    refused_even_empty("spec.mlPolicy.flux", _MPI),
    refused_even_empty("spec.mlPolicy.jax", _MPI),
    refused_even_empty("spec.mlPolicy.mpi", _MPI),
    refused_even_empty("spec.mlPolicy.xgboost", _MPI),
    dropped("spec.mlPolicy.torch.elasticPolicy", "Trainer never acted on it; write minReplicas"),
    dropped("spec.mlPolicy.torch.envInjection", "the agent sets torch's variables in each rank"),
    *mapped("spec.mlPolicy.torch.numProcPerNode"),
    *mapped("spec.podGroupPolicy.coscheduling"),
    refused("spec.podGroupPolicy.volcano.networkTopology", _TOPOLOGY),
    dropped("spec.template.metadata", "the JobSet's own; an ElasticJob makes none"),
    dropped("spec.template.spec.coordinator", "the job master coordinates"),
    *mapped("spec.template.spec.failurePolicy.maxRestarts"),
    dropped("spec.template.spec.failurePolicy.restartStrategy", _OPERATOR),
    refused(
        "spec.template.spec.failurePolicy.rules",
        "rules of a JobSet look at Jobs; write spec.failurePolicy.rules with exit codes",
    ),
    dropped("spec.template.spec.managedBy", _OPERATOR),
    dropped("spec.template.spec.network", "workers find each other through the job master"),
    dropped("spec.template.spec.startupPolicy", "there is one role"),
    dropped("spec.template.spec.successPolicy", "the job succeeds with all workers"),
    dropped("spec.template.spec.suspend", "the TrainJob's field decides", False),
    *mapped("spec.template.spec.ttlSecondsAfterFinished"),
    refused(
        "spec.template.spec.volumeClaimPolicies",
        "make the PersistentVolumeClaims yourself, and mount them in the workers",
    ),
    dropped(f"{_JOB}.dependsOn", "there is one role"),
    dropped(f"{_JOB}.groupName", "there is one role"),
    *mapped(f"{_JOB}.name", f"{_JOB}.replicas", f"{_POD}.template"),
    dropped(f"{_JOB}.template.metadata", "the Job's own; there is none"),
    *mapped(f"{_POD}.activeDeadlineSeconds", f"{_POD}.backoffLimit", f"{_POD}.podFailurePolicy"),
    refused(f"{_POD}.backoffLimitPerIndex", "write failurePolicy.budgets, which counts the job's"),
    dropped(f"{_POD}.completionMode", _OPERATOR),
    dropped(f"{_POD}.completions", "numNodes is the size"),
    dropped(f"{_POD}.managedBy", _OPERATOR),
    dropped(f"{_POD}.manualSelector", _OPERATOR),
    refused(f"{_POD}.maxFailedIndexes", "write failurePolicy.budgets, which counts the job's"),
    *mapped(f"{_POD}.parallelism"),
    dropped(f"{_POD}.podReplacementPolicy", _OPERATOR),
    dropped(f"{_POD}.selector", _OPERATOR),
    refused(f"{_POD}.successPolicy", "write spec.successPolicy: AllWorkers, AnyWorker or Rank0"),
    dropped(f"{_POD}.suspend", "the TrainJob's field decides", False),
    dropped(f"{_POD}.ttlSecondsAfterFinished", "the TrainJob's runtime decides"),
)

_MAIN: Final = "node"
"""Name that Trainer wants of the container that trains."""
_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of a pod that Kubernetes merges, with the key of their items (patchMergeKey)."""
_OWN: Final = "trainer.kubeflow.org/trainjob-controller"
_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_INITIALIZERS: Final = frozenset({"dataset-initializer", "model-initializer"})
_ACTIONS: Final = frozenset({"FailJob", "Ignore"})
"""Actions of a Job's podFailurePolicy that an ElasticJob's rules have too."""


def convert(source: Source, runtime: Source) -> Conversion:
    """Return the ElasticJob of a TrainJob and the runtime that it names."""
    made = Conversion(source)
    made.findings += judge(source.mapping(), TRAIN_JOB)
    made.findings += (
        dataclasses.replace(found, field=f"{_RUNTIME}{found.field}")
        for found in judge(runtime.mapping(), RUNTIME)
    )
    runtime = dataclasses.replace(runtime, prefix=_RUNTIME)
    spec, job_set = source.at("spec"), runtime.at("spec", "template", "spec")
    made.managed_by(spec.at("managedBy"), _OWN)
    made.put("suspend", spec.at("suspend").value)
    made.put("cleanup.ttlSecondsAfterFinished", job_set.at("ttlSecondsAfterFinished").integer())
    entry = _trainer_job(made, job_set.at("replicatedJobs"))
    if entry is None:
        return made
    _gang(made, runtime.at("spec", "podGroupPolicy"))
    job = entry.at("template", "spec")
    both = (place.at("activeDeadlineSeconds").integer() for place in (spec, job))
    made.put("activeDeadlineSeconds", min((one for one in both if one is not None), default=None))
    template = _patched(made, job.at("template"), spec.at("runtimePatches"), entry.at("name"))
    policy = runtime.at("spec", "mlPolicy")
    size = _size(made, spec.at("trainer", "numNodes"), policy, job.at("parallelism"))
    made.worker(_overridden(template, spec.at("trainer")), size, _MAIN)
    _processes(made, spec.at("trainer", "numProcPerNode"), policy)
    # Retries of the Job and restarts of the JobSet are one budget here.
    restarts = job_set.at("failurePolicy", "maxRestarts").integer()
    made.failures(job.at("backoffLimit").integer(), restarts)
    _rules(made, job.at("podFailurePolicy", "rules"))
    return made


def _size(made: Conversion, nodes: Source, policy: Source, parallelism: Source) -> int:
    """Return the number of pods; a Job's parallelism is it only without a policy."""
    given = (nodes, policy.at("numNodes")) if policy else (nodes, parallelism)
    size = next((number for one in given if (number := one.integer())), 1)
    if parallelism and parallelism.integer() != size:
        made.drop(parallelism, "numNodes is the size")
    return size


def _processes(made: Conversion, given: Source, policy: Source) -> None:
    """Set the processes of a pod; without a number Trainer counts the CPUs of one without GPUs."""
    chosen = given or policy.at("torch", "numProcPerNode")
    if chosen.value != "auto":
        made.processes(chosen)
    if "torch" not in policy.mapping() or "worker" not in made.spec:
        return
    main = Source(made.spec["worker"]["template"]["spec"]["containers"][0])
    asked = [main.at("resources", name).mapping() for name in ("requests", "limits")]
    amounts = [(name.lower(), str(value)) for one in asked for name, value in one.items()]
    if not any("gpu" in name and value != "0" for name, value in amounts):
        cpus = next((to_number(value) for name, value in amounts if name == "cpu"), None)
        made.spec.setdefault("nprocPerNode", max(1, math.ceil(cpus or 0)))


def _gang(made: Conversion, policy: Source) -> None:
    """Ask the scheduler of the runtime's pod groups for a gang."""
    for name, backend in (("coscheduling", "Coscheduling"), ("volcano", "Volcano")):
        if name in policy.mapping():
            made.put("scheduling.gang.backend", backend)
    timeout = policy.at("coscheduling", "scheduleTimeoutSeconds").integer()
    made.put("scheduling.gang.timeoutSeconds", timeout)


def find_runtime(source: Source, documents: Sequence[Mapping[str, Any]]) -> Source | None:
    """Return the runtime that a TrainJob names, out of the documents; None: it is not there."""
    name, kind = source.at("spec", "runtimeRef", "name").text(), runtime_kind(source)
    for body in map(Source, documents):
        if body.at("kind").value == kind and body.at("metadata", "name").value == name:
            return body
    return None


def runtime_kind(source: Source) -> str:
    """Return the kind of the runtime that a TrainJob names."""
    return source.at("spec", "runtimeRef", "kind").text() or "ClusterTrainingRuntime"


def _trainer_job(made: Conversion, jobs: Source) -> Source | None:
    """Return the runtime's job that trains; the others are refused, but for initializers."""
    chosen = None
    places = jobs.items()
    for place in places:
        step = place.at("template", "metadata", "labels", _STEP).value
        if chosen is None and (step == "trainer" or len(places) == 1):
            chosen = place
        elif place.at("name").value in _INITIALIZERS:
            made.drop(place.at("name"), "it runs only for spec.initializer")
        else:
            made.refuse(place.at("name"), "an ElasticJob has one kind of worker; remove this one")
    if chosen is None:
        made.refuse(jobs, f"none has the label {_STEP}: trainer")
    elif chosen.at("replicas").integer() not in {None, 1}:
        made.refuse(chosen.at("replicas"), "write the pods into numNodes")
    return chosen


def _overridden(template: Source, trainer: Source) -> Source:
    """Return the template with the TrainJob's image, command, variables and resources."""
    made = dataclasses.replace(template, value=copy.deepcopy(template.mapping()))
    containers = [place.mapping() for place in made.at("spec", "containers").items()]
    named = [one for one in containers if one.get("name") == _MAIN]
    for main in (named or containers)[:1]:
        for name in ("image", "command", "args"):
            if trainer.at(name):
                main[name] = copy.deepcopy(trainer.at(name).value)
        if trainer.at("resourcesPerNode"):
            asked = trainer.at("resourcesPerNode").mapping()
            main["resources"] = _merge(main.get("resources") or {}, asked)
        if trainer.at("env"):
            own = [place.mapping() for place in trainer.at("env").items()]
            main["env"] = _replaced(main.get("env") or [], own)
    return made


def _replaced(base: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Return a container's variables with others in the place of those of the same names."""
    return list({one.get("name"): copy.deepcopy(one) for one in (*base, *own)}.values())


def _patched(made: Conversion, template: Source, patches: Source, job: Source) -> Source:
    """Return the template with the patches of the job's pods, in their order."""
    pod: Any = copy.deepcopy(template.mapping())
    for patch in patches.items():
        job_set = patch.at("trainingRuntimeSpec", "template", "spec")
        for entry in job_set.at("replicatedJobs").items():
            if entry.at("name").value == job.value:
                pod = _merge(pod, entry.at("template", "spec", "template").mapping())
            elif entry.at("name").value in _INITIALIZERS:
                made.drop(entry.at("name"), "it runs only for spec.initializer")
            else:
                made.refuse(entry.at("name"), f"is not the job that trains, {job.text()}")
    return dataclasses.replace(template, value=pod)


def _merge(base: Any, patch: Any, field: str = "") -> Any:
    """Merge as Kubernetes does: mappings by key, some lists by a key of their items.

    field: Name of the field that is merged; the patch takes the place of any other list.
    """
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {
            key: _merge(base[key], value, key) if key in base else copy.deepcopy(value)
            for key, value in patch.items()
        }
    key = _KEYS.get(field)
    if key is None or not isinstance(base, list) or not isinstance(patch, list):
        return copy.deepcopy(patch)
    if not all(isinstance(item, dict) and key in item for item in (*base, *patch)):
        return copy.deepcopy(patch)
    merged = {item[key]: item for item in base}
    for item in patch:
        merged[item[key]] = _merge(merged.get(item[key], {}), item)
    return list(merged.values())


def _rules(made: Conversion, rules: Source) -> None:
    """Take the rules of a Job's podFailurePolicy over."""
    kept = []
    for rule in rules.items():
        if rule.at("action").text() in _ACTIONS:
            kept.append(rule.mapping())
        else:
            made.refuse(rule.at("action"), "write a rule with FailJob or Ignore")
    made.put("failurePolicy.rules", kept or None)
