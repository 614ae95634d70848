"""Kubeflow's TrainJob with its TrainingRuntime (`trainer.kubeflow.org/v1alpha1`). Pure.

The runtime's job template and the TrainJob's overrides become one pod template.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast_cli.convert.conversion import Conversion
from holdfast_cli.convert.rules import Rule, dropped, judge, mapped, refused
from holdfast_cli.convert.source import Source

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
    refused("spec.mlPolicy.flux", _MPI),
    refused("spec.mlPolicy.jax", _MPI),
    refused("spec.mlPolicy.mpi", _MPI),
    refused("spec.mlPolicy.xgboost", _MPI),
    dropped("spec.mlPolicy.torch", "the agent sets torch's variables in each rank"),
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
    dropped(f"{_POD}.parallelism", "numNodes is the size"),
    dropped(f"{_POD}.podReplacementPolicy", _OPERATOR),
    dropped(f"{_POD}.selector", _OPERATOR),
    refused(f"{_POD}.successPolicy", "write spec.successPolicy: AllWorkers, AnyWorker or Rank0"),
    dropped(f"{_POD}.suspend", "the TrainJob's field decides", False),
    dropped(f"{_POD}.ttlSecondsAfterFinished", "the TrainJob's runtime decides"),
)

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
    deadline = spec.at("activeDeadlineSeconds").integer()
    own = job.at("activeDeadlineSeconds").integer()
    made.put("activeDeadlineSeconds", own if deadline is None else deadline)
    template = _patched(job.at("template"), spec.at("runtimePatches"), entry.at("name").text())
    nodes = spec.at("trainer", "numNodes").integer()
    default = runtime.at("spec", "mlPolicy", "numNodes").integer()
    made.worker(_overridden(template, spec.at("trainer")), nodes or default or 1)
    made.processes(spec.at("trainer", "numProcPerNode"))
    # Retries of the Job and restarts of the JobSet are one budget here.
    restarts = job_set.at("failurePolicy", "maxRestarts").integer()
    made.failures(job.at("backoffLimit").integer(), restarts)
    _rules(made, job.at("podFailurePolicy", "rules"))
    return made


def _gang(made: Conversion, policy: Source) -> None:
    """Ask the scheduler of the runtime's pod groups for a gang."""
    for name, backend in (("coscheduling", "Coscheduling"), ("volcano", "Volcano")):
        if name in policy.mapping():
            made.put("scheduling.gang.backend", backend)
    timeout = policy.at("coscheduling", "scheduleTimeoutSeconds").integer()
    made.put("scheduling.gang.timeoutSeconds", timeout or None)


def find_runtime(source: Source, documents: Sequence[Mapping[str, Any]]) -> Source | None:
    """Return the runtime that a TrainJob names, out of the documents; None: it is not there."""
    name = source.at("spec", "runtimeRef", "name").text()
    for body in map(Source, documents):
        if body.at("kind").value in RUNTIMES and body.at("metadata", "name").value == name:
            return body
    return None


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
    named = [one for one in containers if one.get("name") == "node"]
    for main in (named or containers)[:1]:
        for name in ("image", "command", "args"):
            if trainer.at(name):
                main[name] = copy.deepcopy(trainer.at(name).value)
        if trainer.at("resourcesPerNode"):
            main["resources"] = copy.deepcopy(trainer.at("resourcesPerNode").value)
        if trainer.at("env"):
            main["env"] = _merge(main.get("env") or [], trainer.at("env").value)
    return made


def _patched(template: Source, patches: Source, job: str) -> Source:
    """Return the template with the patches of the job's pods, in their order."""
    made: Any = copy.deepcopy(template.mapping())
    for patch in patches.items():
        job_set = patch.at("trainingRuntimeSpec", "template", "spec")
        for entry in job_set.at("replicatedJobs").items():
            if entry.at("name").value == job:
                made = _merge(made, entry.at("template", "spec", "template").mapping())
    return dataclasses.replace(template, value=made)


def _merge(base: Any, patch: Any) -> Any:
    """Merge as Kubernetes does: mappings by key, lists of named items by name, others in turn."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {
            key: _merge(base[key], value) if key in base else copy.deepcopy(value)
            for key, value in patch.items()
        }
    if isinstance(base, list) and isinstance(patch, list):
        if not all(isinstance(item, dict) and "name" in item for item in (*base, *patch)):
            return [*base, *(item for item in patch if item not in base)]
        named = {item["name"]: item for item in base}
        for item in patch:
            named[item["name"]] = _merge(named.get(item["name"], {}), item)
        return list(named.values())
    return copy.deepcopy(patch)


def _rules(made: Conversion, rules: Source) -> None:
    """Take the rules of a Job's podFailurePolicy over."""
    kept = []
    for rule in rules.items():
        if rule.at("action").text() in _ACTIONS:
            kept.append(rule.mapping())
        else:
            made.refuse(rule.at("action"), "write a rule with FailJob or Ignore")
    made.put("failurePolicy.rules", kept or None)
