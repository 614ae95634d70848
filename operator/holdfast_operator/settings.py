"""Settings of the operator process, read from its environment, once."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

from holdfast_operator.pods.master_defaults import MasterDefaults
from holdfast_wire.json_log import LogLevel

MASTER_POD: Final = MasterDefaults(
    '{"resources": {"requests": {"cpu": "100m", "memory": "128Mi"},'
    ' "limits": {"cpu": "2", "memory": "2Gi"}}}'
)
"""10,000 agents take 0.93 GB and less than one core, see docs/benchmarks/load.md."""
_PREFIX: Final = "HOLDFAST_OPERATOR_"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Switch(enum.StrEnum):
    """Whether a part works."""

    ON = "on"
    OFF = "off"


@dataclasses.dataclass(frozen=True, slots=True)
class Namespaces:
    """Namespaces that are watched."""

    text: dataclasses.InitVar[str] = ""
    """Their names, separated by commas; empty: all namespaces."""
    scopes: tuple[str, ...] = dataclasses.field(init=False)
    """Each name once; the one empty name stands for all."""

    def __post_init__(self, text: str) -> None:
        """Read the text.

        Raises:
            ValueError: A name cannot be a namespace's.
        """
        names = tuple(dict.fromkeys(text.split(","))) if text else ("",)
        for name in names:
            if text and not _NAMESPACE.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a namespace")
        object.__setattr__(self, "scopes", names)


@dataclasses.dataclass(frozen=True, slots=True)
class JobIngress:
    """Who may speak to a job's pods beside the job itself, as rules of its NetworkPolicy."""

    text: dataclasses.InitVar[str] = ""
    """A JSON array; empty: jobs have no NetworkPolicy."""
    rules: tuple[Mapping[str, Any], ...] | None = dataclasses.field(init=False)

    def __post_init__(self, text: str) -> None:
        """Read the text.

        Raises:
            ValueError: It is no JSON array of objects.
        """
        found = json.loads(text) if text else None
        if found is not None and not (
            isinstance(found, list) and all(isinstance(one, dict) for one in found)
        ):
            raise ValueError("it is no JSON array of objects")
        object.__setattr__(self, "rules", None if found is None else tuple(found))


class SettingsError(ValueError):
    """A variable cannot be used; the text names it, its value and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Settings of the operator; each field is the variable HOLDFAST_OPERATOR_<NAME>."""

    namespace: str
    """Namespace of the operator itself: its Lease and its root key are there. No default."""
    identity: str
    """Name of this process among its replicas: the pod's name. No default."""
    image: str
    """Image of the job masters: the operator's own. No default."""
    node_name: str = ""
    """Kubernetes node that it runs on: answers from there say nothing about the network. Default:
    not known."""
    lease: str = "holdfast-operator"
    """Name of the Lease that the replicas compete for: each installation in a namespace needs one
    of its own. Default: the chart's name for a release named holdfast."""
    watch_namespace: Namespaces = Namespaces()
    """The only namespaces whose jobs are reconciled, separated by commas. Default: all."""
    node_notices: Switch = Switch.OFF
    """Watch the cluster's nodes for taints and conditions that announce their end, and for what
    says that their hardware is bad. Needs the right
    to list and watch nodes, which a Role in a namespace cannot give. Default: off; the chart turns
    it on where it gives that right."""
    avoided_nodes_percent: float = 10.0
    """Most nodes of the cluster that new pods avoid for what several jobs met there, percent; at
    least one node of several. 0: none. Default: a fault that is no node's own takes little away."""
    lost_node_toleration_s: int = 30
    """Time for which a worker's pod stays on a node that Kubernetes calls not ready or unreachable,
    s; a template's own tolerations come first. Default: a kubelet that is started anew is back
    sooner; Kubernetes' own 300 s would keep a rank away for as long."""
    master_pod: MasterDefaults = MASTER_POD
    """Fields of job masters' pods that `spec.master.template` does not set, as JSON: labels,
    annotations, imagePullSecrets, nodeSelector, tolerations, priorityClassName, and resources of
    the main container. Default: resources of a master of some thousand workers, with limits, so
    that a ResourceQuota on limits takes it."""
    job_ingress: JobIngress = JobIngress()
    """Each job gets a NetworkPolicy: its pods hear each other and whom these rules name, as JSON:
    `ingress` of a NetworkPolicy. Default: no NetworkPolicy; others' policies hold as they are."""
    log_level: LogLevel = LogLevel.INFO
    """Lowest level that is logged. Default: info, a line for each pod that is made or deleted."""
    workers: int = 8
    """Jobs that are reconciled side by side. Default: enough to hide the API server's latency."""
    api_rate: float = 100.0
    """Requests to the API server, 1/s. Default: twice a client's usual limit of 50."""
    api_burst: int = 200
    """Requests at once. Default: the pods of a medium job."""
    status_period_s: float = 1.0
    """Least time between two writes of one job's status, s. Default: as often as people can
    read."""
    resync_s: float = 600.0
    """Time after which each job is looked at again without an event, s. Default: a missed change
    heals within ten minutes, at three looks a second for 2,000 jobs."""
    probe_port: int = 8080
    """Port of health, readiness and metrics. Default: Kubernetes' custom."""
    certificate_days: float = 365.0
    """Lifetime of a job's certificates, days; they are renewed after two thirds of it. Default:
    long enough that an operator may be away for four months."""


def read_settings(environment: Mapping[str, str]) -> OperatorSettings:
    """Return the settings.

    Raises:
        SettingsError: A variable is missing, unknown or no number.
    """
    fields = {field.name: field for field in dataclasses.fields(OperatorSettings)}
    kinds = get_type_hints(OperatorSettings)
    found: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name not in fields:
            known = ", ".join(sorted(_PREFIX + one.upper() for one in fields))
            raise SettingsError(f"{variable}={text!r} is no setting; known are {known}")
        try:
            found[name] = kinds[name](text)
        except ValueError as error:
            raise SettingsError(f"{variable}={text!r} is {_remedy(kinds[name], error)}") from error
    missing = [
        _PREFIX + name.upper()
        for name, field in fields.items()
        if name not in found and field.default is dataclasses.MISSING
    ]
    if missing:
        raise SettingsError(f"{', '.join(missing)} must be set; the chart does that")
    return OperatorSettings(**found)


def _remedy(kind: type[Any], error: ValueError) -> str:
    if kind is Namespaces:
        return f"no list of namespaces: {error}"
    if kind is JobIngress:
        return f"no JSON array of ingress rules: {error}"
    if kind is MasterDefaults:
        return f"no JSON object with fields of a pod: {error}"
    if issubclass(kind, enum.Enum):
        return f"not known; give one of {', '.join(str(one.value) for one in kind)}"
    return f"no {kind.__name__}; give one"
