"""Checks a pod template for the process backend: every fault, every field left out.

The CRD passes templates through to the API server, which knows core/v1. Without an API server only
this module checks them, and a misspelt field would go unnoticed. Faults come before anything
starts; an unused field is a notice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from holdfast_operator.pods.command import check_command
from holdfast_operator.pods.environment import RESERVED
from holdfast_operator.spec.problems import (
    Path,
    Problem,
    ProblemKind,
    nearest,
    show_path,
    show_value,
)
from holdfast_wire import keys

NAMED: Final = "worker"
"""Name of the container that trains; without it, the first one does."""
POD_USED: Final = frozenset({"containers", "terminationGracePeriodSeconds"})
POD_IGNORED: Final = frozenset(
    """
    activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy
    enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers
    hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead
    preemptionPolicy priority priorityClassName readinessGates resourceClaims resources
    restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup securityContext
    serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
    tolerations topologySpreadConstraints volumes workloadRef
    """.split()  # noqa: SIM905, so many words read better as text
)
CONTAINER_USED: Final = frozenset({"name", "command", "args", "env", "workingDir"})
CONTAINER_REFUSED: Final = frozenset({"envFrom"})
CONTAINER_IGNORED: Final = frozenset(
    """
    image imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy resources
    restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce
    terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts
    """.split()  # noqa: SIM905, so many words read better as text
)
POD: Final = POD_USED | POD_IGNORED
CONTAINER: Final = CONTAINER_USED | CONTAINER_REFUSED | CONTAINER_IGNORED
ENV: Final = frozenset({"name", "value", "valueFrom"})
FIELD_REFS: Final = ("metadata.name", "metadata.namespace", "metadata.uid")
"""Values of `valueFrom.fieldRef` that work without a cluster."""


def main_container(pod: Mapping[str, Any]) -> int:
    """Return the index of the container to start: the one named `worker`, else the first."""
    names = [container.get("name") for container in pod["containers"]]
    return names.index(NAMED) if NAMED in names else 0


def our_container(pod: Mapping[str, Any]) -> int:
    """Return the index of the container of an existing pod that was started as the main one.

    A webhook may have put another one before it: where none is named `worker`, the container with
    Holdfast's variables is ours.
    """
    found = main_container(pod)
    if pod["containers"][found].get("name") == NAMED:
        return found
    for at, container in enumerate(pod["containers"]):
        if any(one.get("name") == keys.ENV_JOB_UID for one in container.get("env") or ()):
            return at
    return found


def words_of(container: Mapping[str, Any]) -> list[Any]:
    """Return a container's command with its arguments."""
    return [*(container.get("command") or ()), *(container.get("args") or ())]


def check_template(template: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    """Yield every fault of a template whose main container is to become a process."""
    pod, path = template["spec"], (*path, "spec")
    yield from _unknown(pod, POD, path)
    grace = pod.get("terminationGracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool) or grace < 0):
        where = (*path, "terminationGracePeriodSeconds")
        yield _wrong(where, grace, "is not a number of seconds", "use a whole number from 0")
    main = main_container(pod)
    for at, container in enumerate(pod["containers"]):
        where = (*path, "containers", at)
        yield from _unknown(container, CONTAINER, where)
        if at == main:
            yield from _check_main(container, where)


def notices(template: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield notices about settings of a template that a process does not use."""
    pod, path = template["spec"], (*path, "spec")
    main = main_container(pod)
    container = pod["containers"][main]
    yield from _unused(pod, POD_IGNORED, path)
    yield from _unused(container, CONTAINER_IGNORED, (*path, "containers", main))
    for at, other in enumerate(pod["containers"]):
        if at != main:
            where = show_path((*path, "containers", at))
            yield f"{where}: container {other['name']} is not started on this machine"


def _unused(value: Mapping[str, Any], ignored: Collection[str], path: Path) -> Iterator[str]:
    found = sorted(value.keys() & ignored)
    if found:
        yield f"{show_path(path)}: not used on this machine: {', '.join(found)}"


def _unknown(value: Mapping[str, Any], known: Collection[str], path: Path) -> Iterator[Problem]:
    for name in value:
        if name not in known:
            near = nearest(name, known)
            remedy = f"did you mean {near}?" if near else "remove it"
            yield Problem((*path, name), ProblemKind.UNKNOWN, "is not a known field", remedy)


def _check_main(container: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    if not container.get("command"):
        remedy = "without an image, nobody else knows what to start"
        yield Problem((*path, "command"), ProblemKind.REQUIRED, "must be set", remedy)
    faults = [
        fault
        for name in ("command", "args")
        for fault in _check_words(container.get(name), (*path, name))
    ]
    yield from faults
    if not faults:
        yield from check_command(words_of(container), path)
    where = container.get("workingDir")
    if where is not None and not isinstance(where, str):
        yield _wrong((*path, "workingDir"), where, "is not a text", "write it in quotes")
    if container.get("envFrom"):
        remedy = "list the variables under env, each with its value"
        yield Problem((*path, "envFrom"), ProblemKind.UNAVAILABLE, "needs a cluster", remedy)
    yield from _check_env(container.get("env"), (*path, "env"))


def _check_words(words: Any, path: Path) -> Iterator[Problem]:
    if words is None:
        return
    if not isinstance(words, list):
        yield _wrong(path, words, "is not a list", "write one word per item, in [ ]")
        return
    for at, word in enumerate(words):
        if not isinstance(word, str):
            yield _wrong((*path, at), word, "is not a text", "write it in quotes")
        elif "\0" in word:
            yield _wrong((*path, at), word, "has a NUL character", "remove it")


def _check_env(env: Any, path: Path) -> Iterator[Problem]:
    if env is None:
        return
    if not isinstance(env, list):
        yield _wrong(path, env, "is not a list", "write items with name and value")
        return
    for at, variable in enumerate(env):
        where = (*path, at)
        if isinstance(variable, dict):
            yield from _check_variable(variable, where)
        else:
            yield _wrong(where, variable, "is not a mapping", "write a name and a value")


def _check_variable(variable: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    yield from _unknown(variable, ENV, path)
    name, value, source = (variable.get(key) for key in ("name", "value", "valueFrom"))
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        where = (*path, "name")
        yield _wrong(where, name, "is not a variable's name", "use letters, digits and _")
    elif name in RESERVED:
        yield _wrong((*path, "name"), name, "is set by Holdfast itself", "remove it")
    if value is not None and (not isinstance(value, str) or "\0" in value):
        yield _wrong((*path, "value"), value, "is not a text", "write it in quotes")
    if source is not None and value is not None:
        yield _wrong(path, variable, "has both value and valueFrom", "remove one")
    elif source is not None:
        yield from _check_source(source, (*path, "valueFrom"))


def _check_source(source: Any, path: Path) -> Iterator[Problem]:
    fieldref = source.get("fieldRef") if isinstance(source, dict) and len(source) == 1 else None
    wanted = fieldref.get("fieldPath") if isinstance(fieldref, dict) else None
    if wanted in FIELD_REFS:
        return
    if wanted is not None:
        path, shown = (*path, "fieldRef", "fieldPath"), show_value(wanted)
    else:
        shown = ", ".join(sorted(source)) if isinstance(source, dict) else show_value(source)
    remedy = f"write a value, or take it from fieldRef {', '.join(FIELD_REFS)}"
    yield Problem(path, ProblemKind.UNAVAILABLE, "needs a cluster", remedy, value=shown)


def _wrong(path: Path, value: Any, fault: str, remedy: str) -> Problem:
    return Problem(path, ProblemKind.TYPE, fault, remedy, value=show_value(value))
