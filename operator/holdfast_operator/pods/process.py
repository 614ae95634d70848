"""A pod of a job as a plain process: its command, environment and working directory.

For the local runner. The image's file system, its volumes and its limits are left out; the command
has to be on this machine. `$(NAME)` in it is expanded as Kubernetes does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.plan.inputs import grace_of
from holdfast_operator.plan.pods import template_of
from holdfast_operator.pods import command
from holdfast_operator.pods.environment import PodIdentity, contract
from holdfast_operator.pods.template import check_template, main_container, notices, words_of
from holdfast_operator.spec.admission import ElasticJob
from holdfast_operator.spec.job import JobSpec
from holdfast_operator.spec.problems import Path, Problem, ProblemKind, show_path, value_at

_WORKER: Final[Path] = ("spec", "worker", "template")
_CLUSTER_ONLY: Final[tuple[tuple[Path, Any], ...]] = (
    (("spec", "managedBy"), "holdfast.dev/controller"),
    (("spec", "master", "port"), 50051),
    (("spec", "scheduling", "priorityClassName"), None),
    (("spec", "scheduling", "gang", "backend"), "None"),
    (("spec", "scheduling", "topology"), None),
    (("spec", "scheduling", "podDisruptionBudget"), "None"),
    (("spec", "cleanup", "ttlSecondsAfterFinished"), None),
    (("spec", "master", "template"), None),
    (("spec", "master", "journal", "mode"), "EmptyDir"),
    (("spec", "checkpoint", "onDelete"), False),
    (("spec", "failurePolicy", "memory"), None),
)
"""Fields that only a cluster uses, with the value that has no effect. Fields that a cluster does
not use either are refused before (`spec.availability`)."""
_REFERENCE: Final = re.compile(r"\$(\$|\(([^)]*)\))")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodProcess:
    """Process to start for one pod."""

    argv: tuple[str, ...]
    """The command with its arguments; never empty."""
    env: Mapping[str, str]
    """Variables of the template and of Holdfast, over the environment that the process inherits."""
    working_dir: str | None
    """Working directory; None: that of the runner."""
    grace_s: int
    """Between SIGTERM and SIGKILL, s."""


def check_job(job: ElasticJob) -> tuple[Problem, ...]:
    """Return every reason why the job's pods cannot be processes on this machine."""
    found = [
        problem for path, template in templates(job) for problem in check_template(template, path)
    ]
    if job.spec.suspend:
        fault = "needs a cluster: nobody could resume the job here"
        path, kind = ("spec", "suspend"), ProblemKind.UNAVAILABLE
        found.append(Problem(path, kind, fault, "remove it", value="true"))
    return tuple(found)


def job_notices(job: ElasticJob) -> tuple[str, ...]:
    """Return notices about settings of a checked job that are not used on this machine."""
    unused = [
        f"{show_path(path)}: not used on this machine"
        for path, nothing in _CLUSTER_ONLY
        if value_at(job.body, path) not in (None, nothing)
    ]
    return (
        *job.notices,
        *unused,
        *(notice for path, template in templates(job) for notice in notices(template, path)),
        *_command_notices(job),
    )


def _command_notices(job: ElasticJob) -> Iterator[str]:
    pod = job.spec.worker_template["spec"]
    at = main_container(pod)
    container = pod["containers"][at]
    yield from command.notice(words_of(container), (*_WORKER, "spec", "containers", at))


def build_process(spec: JobSpec, who: PodIdentity) -> PodProcess:
    """Return the process for one worker or extra pod of a job without problems in `check_job`."""
    template = template_of(spec, who.slot)
    pod = template["spec"]
    container = pod["containers"][main_container(pod)]
    env = contract(spec, who)
    for variable in container.get("env") or ():
        env[variable["name"]] = _value(variable, who, env)
    return PodProcess(
        argv=tuple(expand(word, env) for word in words_of(container)),
        env=env,
        working_dir=container.get("workingDir"),
        grace_s=grace_of(template),
    )


def _value(variable: Mapping[str, Any], who: PodIdentity, known: Mapping[str, str]) -> str:
    source = variable.get("valueFrom")
    if source is None:
        return expand(variable.get("value") or "", known)
    return {
        "metadata.name": who.pod_name,
        "metadata.namespace": who.namespace,
        "metadata.uid": who.pod_uid,
    }[source["fieldRef"]["fieldPath"]]


def templates(job: ElasticJob) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the worker's template and those of the extra roles, in order, each with its path."""
    yield _WORKER, job.spec.worker_template
    for at, role in enumerate(job.spec.extra_roles):
        yield ("spec", "extraRoles", at, "template"), role.template


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text with known names replaced; references in their values stay as they are."""

    def put(match: re.Match[str]) -> str:
        if match.group(1) == "$":
            return "$"
        return values.get(match.group(2), match.group(0))

    return _REFERENCE.sub(put, text)
