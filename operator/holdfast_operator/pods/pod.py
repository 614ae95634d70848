"""Pods of a job from its templates: the operator's additions and overrides. Pure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.inputs import HOSTNAME, REQUIRED, grace_of
from holdfast_operator.plan.pods import WORKER, PodSlot, Role, template_of
from holdfast_operator.plan.slices import Placement, Verdict
from holdfast_operator.pods.environment import RESERVED, PodIdentity, contract
from holdfast_operator.pods.gang import PodAdditions
from holdfast_operator.pods.master_defaults import MasterDefaults
from holdfast_operator.pods.memory import keep_arenas, raise_memory
from holdfast_operator.pods.names import Owner
from holdfast_operator.pods.template import main_container
from holdfast_operator.spec.job import JobSpec, Topology
from holdfast_wire import keys

TLS_DIR: Final = "/var/run/holdfast/tls"
JOURNAL_DIR: Final = "/var/run/holdfast/journal"
STARTS_DIR: Final = "/var/run/holdfast/starts"
EPOCHS_PER_POD: Final = 1000
"""Epochs of one master pod: a container that is started again in its pod needs an epoch of its own,
and cannot ask for it."""
METRICS_PORT: Final = 9464
"""Port of a master's metrics, named `metrics` in its pod; the next one where the job's calls have
this one. It is the default of OpenTelemetry's exporter for Prometheus."""
_MARGIN_SECONDS: Final = 5.0
"""Part of the pod's grace that an agent leaves: for its last messages, and for a slow node."""
_TLS_VOLUME: Final = "holdfast-tls"
_JOURNAL_VOLUME: Final = "holdfast-journal"
_STARTS_VOLUME: Final = "holdfast-starts"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_HEAVIEST: Final = 100
"""Greatest weight of a preference."""
_LONGEST_LABEL: Final = 63
"""DNS limit for a label, and so for a host name."""
_LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node that is not ready, or not heard."""
_COPIED_LABELS: Final = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
"""Labels of a node that its pods have, too, since Kubernetes 1.35."""
_TOPOLOGY_VALUE: Final = "NODE_TOPOLOGY"
_UID: Final = {"fieldRef": {"fieldPath": "metadata.uid"}}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodSource:
    """Common source of a job's pods."""

    owner: Owner
    spec: JobSpec
    body: Mapping[str, Any]
    """The whole object: fields that only pods need are read from it."""
    image: str
    """Image of the master, if the job has no template for it."""
    starts_again: bool = False
    """True: the cluster can restart one container in a pod whose restartPolicy is Never."""
    master_defaults: MasterDefaults = dataclasses.field(default_factory=MasterDefaults)
    """Fields of the master's pod that its template does not set."""
    admission: Verdict | None = None
    """What the job's queue admits, with the flavors of its pods; None: it has no queue."""
    gang: PodAdditions = dataclasses.field(default_factory=PodAdditions)
    """What a worker's pod says to be in the job's group."""
    lost_node_s: int = 300
    """Time for which a worker's pod stays on a node that Kubernetes calls lost, s."""

    @property
    def master(self) -> str:
        """host:port of the job master."""
        return f"{self.owner.master_host}:{self.spec.master_port}"


def worker_pod(source: PodSource, action: CreatePod) -> dict[str, Any]:
    """Return the pod of a worker or of an extra role."""
    slot = action.slot
    template = template_of(source.spec, slot)
    pod = _begin(source, template, action)
    spec = pod["spec"]
    # The agent restarts processes, the operator replaces pods; for a killed agent see
    # `memory`.
    spec["restartPolicy"] = "Never"
    _leave_lost_nodes(spec, source.lost_node_s)
    main = spec["containers"][main_container(spec)]
    is_worker = slot.role is Role.WORKER
    raise_memory(main, action.memory_limit)
    ours = _variables(source, slot, action.name)
    if is_worker:
        ours += [*_grace(main, grace_of(template)), *_topology_labels(main, source.spec.topology)]
    _add_variables(main, ours)
    if is_worker:
        _keep_together(spec, source.owner, source.spec.topology)
        cert, key = (f"worker-{slot.index}.{name}" for name in (keys.CERT_FILE, keys.KEY_FILE))
        items = {keys.CA_FILE: keys.CA_FILE, cert: keys.CERT_FILE, key: keys.KEY_FILE}
        _mount_secret(spec, main, source.owner.worker_secret(slot.index), items)
        if source.starts_again:
            keep_arenas(spec, main)
        source.gang.apply(pod)
    return pod


def master_template(source: PodSource) -> Mapping[str, Any]:
    """Return the template of the job master's pod."""
    own = source.spec.master_template or _own_master(source.image)
    return source.master_defaults.under(own)


def master_pod(source: PodSource, action: CreatePod, epoch: int) -> dict[str, Any]:
    """Return the pod of the job master; `epoch` is the first that it owns."""
    pod = _begin(source, master_template(source), action)
    spec = pod["spec"]
    spec["restartPolicy"] = "Always"
    main = spec["containers"][main_container(spec)]
    variables = {
        keys.ENV_JOB: source.owner.name,
        keys.ENV_JOB_UID: source.owner.uid,
        keys.ENV_TLS_DIR: TLS_DIR,
        keys.ENV_MASTER: f"0.0.0.0:{source.spec.master_port}",
        keys.ENV_EPOCH: str(epoch),
        keys.ENV_NAMESPACE: source.owner.namespace,
        keys.ENV_METRICS_PORT: str(_serve_metrics(main, source.spec.master_port)),
    }
    variables |= _keep_books(spec, main, source.body["spec"]["master"]["journal"])
    _add_variables(main, [{"name": name, "value": text} for name, text in variables.items()])
    _mount_secret(spec, main, source.owner.master_secret, None)
    if not action.shun_nodes:  # with two preferences neither would win
        _keep_apart(spec, source.owner)
    return pod


def _serve_metrics(main: dict[str, Any], taken: int) -> int:
    """Name a port for the master's metrics, if the template names none; return its number."""
    for one in main.get("ports") or ():
        if one.get("name") == "metrics":
            return int(one["containerPort"])
    port = METRICS_PORT + (taken == METRICS_PORT)
    _append(main, "ports", {"name": "metrics", "containerPort": port})
    return port


def _keep_books(
    spec: dict[str, Any], main: dict[str, Any], journal: Mapping[str, Any]
) -> dict[str, str]:
    """Give a master a volume for its journal; return the variable that names it.

    Without a journal it still has to count the starts of its container: with its predecessor's
    epoch it would take itself for outdated as soon as an agent says hello.
    """
    volume: dict[str, Any] = {"name": _JOURNAL_VOLUME, "emptyDir": {}}
    name, path = keys.ENV_JOURNAL_DIR, JOURNAL_DIR
    if journal["mode"] == "PersistentVolumeClaim":
        claim = {"claimName": journal["claimName"]}
        volume = {"name": _JOURNAL_VOLUME, "persistentVolumeClaim": claim}
    elif journal["mode"] == "None":
        name, path = keys.ENV_STARTS_DIR, STARTS_DIR
        volume["name"] = _STARTS_VOLUME
    _append(spec, "volumes", volume)
    _append(main, "volumeMounts", {"name": volume["name"], "mountPath": path})
    return {name: path}


def _own_master(image: str) -> dict[str, Any]:
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {
        "name": "master",
        "image": image,
        "command": ["holdfast-master", "--in-pod"],
        "securityContext": security,
    }
    pod_security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {"spec": {"containers": [container], "securityContext": pod_security}}


def _begin(source: PodSource, template: Mapping[str, Any], action: CreatePod) -> dict[str, Any]:
    owner, slot = source.owner, action.slot
    metadata = owner.metadata(action.name)
    given = template.get("metadata") or {}
    metadata["labels"] = {
        **(given.get("labels") or {}),
        **owner.pod_labels(slot, action.incarnation),
    }
    if given.get("annotations"):
        metadata["annotations"] = dict(given["annotations"])
    spec = copy.deepcopy(dict(template["spec"]))
    hostname = f"{owner.name}-{slot.name}-{slot.index}"
    if len(hostname) <= _LONGEST_LABEL:  # an extra role's may be longer: no one looks it up
        spec["hostname"], spec["subdomain"] = hostname, owner.name
    spec.setdefault("automountServiceAccountToken", False)
    # The status names the last words of a pod that fails before its master can tell.
    spec["containers"][main_container(spec)].setdefault(
        "terminationMessagePolicy", "FallbackToLogsOnError"
    )
    priority = source.body["spec"]["scheduling"].get("priorityClassName")
    if priority:
        spec.setdefault("priorityClassName", priority)
    if source.admission is not None:
        _place(spec, source.admission.placements.get(slot.name, Placement()))
    if action.avoid_nodes:
        _avoid(spec, action.avoid_nodes)
    if action.shun_nodes:
        _shun(spec, action.shun_nodes)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _place(spec: dict[str, Any], placement: Placement) -> None:
    """Have a pod run where its queue's flavor is."""
    if placement.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **placement.node_selector}
    for one in placement.tolerations:
        if one not in (spec.get("tolerations") or ()):
            _append(spec, "tolerations", dict(one))


def _variables(source: PodSource, slot: PodSlot, name: str) -> list[dict[str, Any]]:
    who = PodIdentity(
        job=source.owner.name,
        namespace=source.owner.namespace,
        job_uid=source.owner.uid,
        slot=slot,
        pod_name=name,
        pod_uid="",
        master=source.master,
        tls_dir=TLS_DIR,
    )
    texts = contract(source.spec, who)
    del texts[keys.ENV_POD_UID]
    known = [{"name": name, "value": text} for name, text in texts.items()]
    return [{"name": keys.ENV_POD_UID, "valueFrom": _UID}, *known]


def _add_variables(container: dict[str, Any], ours: list[dict[str, Any]]) -> None:
    """Add our variables before the template's, which may refer to ours but not replace them."""
    names = RESERVED | {one["name"] for one in ours}
    theirs = [one for one in container.get("env") or () if one.get("name") not in names]
    container["env"] = [*ours, *theirs]


def _grace(container: dict[str, Any], grace_s: int) -> list[dict[str, Any]]:
    """Return the agent's grace: a little less than its pod's, unless the template sets one."""
    if any(one.get("name") == keys.ENV_GRACE for one in container.get("env") or ()):
        return []
    return [{"name": keys.ENV_GRACE, "value": f"{max(grace_s - _MARGIN_SECONDS, grace_s / 2):g}"}]


def _topology_labels(container: dict[str, Any], topology: Topology | None) -> list[dict[str, Any]]:
    """Return the label that orders the ranks, where the pod has it; the template's comes first."""
    given = any(one.get("name") == keys.ENV_TOPOLOGY for one in container.get("env") or ())
    if topology is None or topology.key not in _COPIED_LABELS or given:
        return []
    label = {"fieldRef": {"fieldPath": f"metadata.labels['{topology.key}']"}}
    text = f"{topology.key}=$({_TOPOLOGY_VALUE})"
    return [
        {"name": _TOPOLOGY_VALUE, "valueFrom": label},
        {"name": keys.ENV_TOPOLOGY, "value": text},
    ]


def _mount_secret(
    spec: dict[str, Any], container: dict[str, Any], name: str, items: dict[str, str] | None
) -> None:
    secret: dict[str, Any] = {"secretName": name, "defaultMode": 0o444}
    if items is not None:
        secret["items"] = [{"key": key, "path": path} for key, path in items.items()]
    _append(spec, "volumes", {"name": _TLS_VOLUME, "secret": secret})
    mount = {"name": _TLS_VOLUME, "mountPath": TLS_DIR, "readOnly": True}
    _append(container, "volumeMounts", mount)


def _append(place: dict[str, Any], name: str, one: dict[str, Any]) -> None:
    """Add to a list of a template, in which null counts as absent."""
    place[name] = [*(place.get(name) or ()), one]


def _leave_lost_nodes(spec: dict[str, Any], seconds: int) -> None:
    """Have a pod leave a lost node after so long; tolerations of the template come first.

    Kubernetes gives a pod without any 300 s on such a node. Its rank is missing for all that time
    if the master does not know of it: an agent that never joined, a pod of an extra role.
    """
    for key in _LOST_NODE:
        given = spec.get("tolerations") or ()
        if not any(_tolerates(one, key) for one in given):
            ours = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            _append(spec, "tolerations", {**ours, "tolerationSeconds": seconds})


def _tolerates(toleration: Mapping[str, Any], key: str) -> bool:
    """Return True if a toleration is for the eviction by a taint with this key."""
    named = toleration.get("key") in {key, None, ""}
    return named and toleration.get("effect") in {"NoExecute", None, ""}


def _avoid(spec: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Add nodes to avoid to every alternative of the template's own node affinity."""
    wish = {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}
    required = _inside(_inside(_inside(spec, "affinity"), "nodeAffinity"), REQUIRED)
    required["nodeSelectorTerms"] = required.get("nodeSelectorTerms") or [{}]
    for term in required["nodeSelectorTerms"]:
        _append(term, "matchExpressions", wish)


def _shun(spec: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Add nodes that are the last choice to the template's own preferences."""
    wish = {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}
    affinity = _inside(_inside(spec, "affinity"), "nodeAffinity")
    one = {"weight": _HEAVIEST, "preference": {"matchExpressions": [wish]}}
    _append(affinity, _PREFERRED, one)


def _keep_apart(spec: dict[str, Any], owner: Owner) -> None:
    """Prefer a node without a worker of the job: two workers are then not lost with one node.

    The scheduler applies it to later workers, too.
    """
    affinity = _inside(_inside(spec, "affinity"), "podAntiAffinity")
    term = _beside_workers(owner, HOSTNAME)
    _append(affinity, _PREFERRED, {"weight": _HEAVIEST, "podAffinityTerm": term})


def _keep_together(spec: dict[str, Any], owner: Owner, topology: Topology | None) -> None:
    """Have a worker run where the other workers of the job are."""
    if topology is None:
        return
    affinity = _inside(_inside(spec, "affinity"), "podAffinity")
    term = _beside_workers(owner, topology.key)
    if topology.required:
        _append(affinity, REQUIRED, term)
    else:
        _append(affinity, _PREFERRED, {"weight": _HEAVIEST, "podAffinityTerm": term})


def _beside_workers(owner: Owner, key: str) -> dict[str, Any]:
    workers = {"matchLabels": {keys.LABEL_JOB: owner.name, keys.LABEL_ROLE: WORKER}}
    return {"labelSelector": workers, "topologyKey": key}


def _inside(place: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a group of a template, made if it is missing or null."""
    found: dict[str, Any] = place.get(name) or {}
    place[name] = found
    return found
