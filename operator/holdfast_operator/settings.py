"""Settings of the operator process: read from its environment, once, here and nowhere else."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

_PREFIX: Final = "HOLDFAST_OPERATOR_"


class LogLevel(enum.StrEnum):
    """What is logged: this and what is worse."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class SettingsError(ValueError):
    """A variable cannot be used: names it, its value and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Each field is the variable HOLDFAST_OPERATOR_<NAME>."""

    namespace: str
    """Where the operator itself runs: its Lease and its root key are there. No default."""
    identity: str
    """Name of this process among its replicas: the pod's. No default."""
    image: str
    """Image of the job masters: the operator's own. No default."""
    node_name: str = ""
    """The Kubernetes node that it runs on: what answers there says nothing of the way to others.
    Default: not known."""
    lease: str = "holdfast-operator"
    """Name of the Lease that the replicas compete for: each installation in a namespace needs one
    of its own. Default: what the chart gives a release named holdfast."""
    watch_namespace: str = ""
    """The one namespace whose jobs are looked after. Default: all."""
    log_level: LogLevel = LogLevel.INFO
    """What is logged. Default: a line for each pod that is made or deleted."""
    workers: int = 8
    """Jobs that are looked at side by side. Default: enough to hide the API server's latency."""
    api_rate: float = 100.0
    """Requests to the API server, 1/s. Default: two of its clients' usual limit of 50."""
    api_burst: int = 200
    """Requests that may be made at once. Default: the pods of a middling job."""
    status_period_s: float = 1.0
    """Least time between two writes of one job's status, s. Default: what people can read."""
    resync_s: float = 600.0
    """Each job is looked at again after this long even if nothing happened, s. Default: a change
    that was missed heals within ten minutes, at three looks a second for 2,000 jobs."""
    probe_port: int = 8080
    """Port of health, readiness and metrics. Default: Kubernetes' habit."""
    certificate_days: float = 365.0
    """How long a job's certificates hold, days; they are renewed after two thirds of it. Default:
    so long that an operator may be away for four months."""


def read_settings(environment: Mapping[str, str]) -> OperatorSettings:
    """Return the settings.

    Raises:
        SettingsError: a variable is missing, unknown or no number.
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
            raise SettingsError(f"{variable}={text!r} is {_remedy(kinds[name])}") from error
    missing = [
        _PREFIX + name.upper()
        for name, field in fields.items()
        if name not in found and field.default is dataclasses.MISSING
    ]
    if missing:
        raise SettingsError(f"{', '.join(missing)} must be set; the chart does that")
    return OperatorSettings(**found)


def _remedy(kind: type[Any]) -> str:
    if issubclass(kind, enum.Enum):
        return f"not known; give one of {', '.join(str(one.value) for one in kind)}"
    return f"no {kind.__name__}; give one"
