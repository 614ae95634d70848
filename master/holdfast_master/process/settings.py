"""Settings of a master process, read once at its start."""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast_master.replay.typed_json import TypedJsonError, read_dataclass
from holdfast_master.server.spec_check import spec_problem
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import __version__, keys
from holdfast_wire.json_log import LogLevel
from holdfast_wire.messages import MasterSpec


class ConfigError(Exception):
    """A configuration that cannot be used; the text names the field, its value and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig:
    """Settings of one master process."""

    job_name: str
    """Name of the job; shown to people."""
    job_uid: str
    """Uid of the job object; every certificate of the job carries it."""
    epoch: int
    """Allocated by whoever starts the master, one more for each process of the job; at least 1."""
    incarnation: str = ""
    """Random id of this process, so that two masters with one epoch are told apart. Default: 128
    random bits."""
    tls_dir: Path
    """Directory with `ca.pem`, `cert.pem` and `key.pem` of this master."""
    bind_host: str = "127.0.0.1"
    """Address to listen on. Default: this machine only; a pod needs 0.0.0.0."""
    port: int = 0
    """Port to listen on. Default: any free one, which `endpoint_file` then names."""
    advertised_host: str = ""
    """Host that `endpoint_file` names. Default: `bind_host`, or 127.0.0.1 where that is a
    wildcard."""
    namespace: str = ""
    """Kubernetes namespace of the job, as its metrics name it. Default: none, outside a cluster."""
    metrics_port: int | None = None
    """Port of Prometheus metrics on `bind_host`, plain HTTP; 0: any free one, which the log names.
    Default: none are served."""
    traces: str = ""
    """Destination of a span for each recovery: `otlp` or `console`, as OTEL_TRACES_EXPORTER has it.
    Default: none."""
    endpoint_file: Path | None = None
    """File that is written, whole and 0600, once the port answers: JSON with host, port, pid and
    epoch. Default: none."""
    journal_dir: Path | None = None
    """Directory of the journal, made 0700. Default: none; a restarted master then depends on what
    the agents say."""
    journal_segment_bytes: int = 4 * 1024 * 1024
    """Facts after which the journal is compacted, bytes. Default: a successor reads this much in
    2 s; a job of 1,000 nodes writes it in 1.5 hours."""
    journal_keep_hours: float = 72.0
    """How long facts are kept that a base stands for already, so that an incident can be looked at,
    h. Default: what happened on Friday night is still there on Monday."""
    journal_keep_bytes: int = 512 * 1024 * 1024
    """Most that facts and bases may take, bytes; then the oldest go before their time. Default:
    twice what 3 days of a job of 1,000 nodes take."""
    recording_bytes: int = 256 * 1024 * 1024
    """Most that the recorded inputs of all masters of the job may take, bytes, so that decisions
    can be made again; then recording ends; 0: none are recorded. Default: the first day of a master
    of 16 nodes, the first hour of one of 500."""
    initial_spec: MasterSpec | None = None
    """Spec to begin with where no operator will send one. Default: wait for the operator."""
    exit_when_finished: float = 5.0
    """How long to serve on after the job's end, s, so that watchers and agents see it. Default:
    longer than any reconnect back-off."""
    die_with_parent: bool = False
    """Be killed when the process that started this one ends. Default: live on."""
    parent_pid: int = 0
    """Process id of that parent: where it has ended already, this process ends too. Default: not
    known, and then a parent that ends before this process reads its configuration is missed."""
    log_level: LogLevel = LogLevel.INFO
    """Least severe level that is logged. Default: one line for each thing that happened."""
    log_file: Path | None = None
    """File that the log is appended to, made 0600. Default: standard error."""
    core: CoreSettings = dataclasses.field(default_factory=CoreSettings)
    """Time limits of the core; each field's default stands there."""

    @property
    def identity(self) -> CoreIdentity:
        """The core's part of it; the heads of the journal and the recording have the same names."""
        return CoreIdentity(
            job_name=self.job_name,
            job_uid=self.job_uid,
            epoch=self.epoch,
            incarnation=self.incarnation,
            version=__version__,
        )


def load(path: Path) -> MasterConfig:
    """The configuration that the JSON file at `path` holds.

    Raises:
        ConfigError: the file cannot be read, or a field is unknown, missing or out of bounds.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"config file {path} cannot be read ({error.strerror}); name a readable JSON file"
        ) from error
    except ValueError as error:
        raise ConfigError(f"config file {path} is no JSON: {error}") from error
    return parse(document)


def parse(document: Any) -> MasterConfig:
    """The configuration that a parsed JSON `document` holds.

    Raises:
        ConfigError: a field is unknown, missing or out of bounds.
    """
    try:
        config = read_dataclass(MasterConfig, document)
    except TypedJsonError as error:
        raise ConfigError(str(error)) from error
    _check(config)
    if not config.incarnation:
        config = dataclasses.replace(config, incarnation=secrets.token_hex(16))
    return config


def _check(config: MasterConfig) -> None:
    for name in ("job_name", "job_uid"):
        if not getattr(config, name):
            raise ConfigError(f"{name} is empty; it must name the job")
    if config.epoch < 1:
        raise ConfigError(f"epoch is {config.epoch}; it must be at least 1")
    _check_ports(config)
    seconds = config.exit_when_finished
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"exit_when_finished is {seconds}; it must be 0 or more seconds")
    if config.traces not in {"", *TRACES}:
        raise ConfigError(f"traces is {config.traces!r}; it must be one of {', '.join(TRACES)}")
    _check_journal(config)
    for field in dataclasses.fields(config.core):
        value = getattr(config.core, field.name)
        least = "0 or more" if field.default == 0 else "more than 0"
        if not (math.isfinite(value) and (value > 0 or value == field.default)):
            raise ConfigError(f"core.{field.name} is {value}; it must be {least}")
    if config.initial_spec is not None:
        problem = spec_problem(config.initial_spec)
        if problem:
            raise ConfigError(f"initial_spec.{problem}")


def _check_ports(config: MasterConfig) -> None:
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"port is {config.port}; it must be 0 (any) to 65535")
    metrics = config.metrics_port
    if metrics is None or metrics == 0:
        return
    if not 0 < metrics <= 65535 or metrics == config.port:
        text = "it must be 0 (any) to 65535, and not the port of the calls"
        raise ConfigError(f"metrics_port is {metrics}; {text}")


def _check_journal(config: MasterConfig) -> None:
    if config.journal_segment_bytes < 4096:
        text = f"journal_segment_bytes is {config.journal_segment_bytes}"
        raise ConfigError(f"{text}; it must be at least 4096 bytes")
    for name in ("journal_keep_hours", "journal_keep_bytes", "recording_bytes"):
        if not (math.isfinite(getattr(config, name)) and getattr(config, name) >= 0):
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be 0 or more")


TRACES: Final = ("otlp", "console")
"""Destinations of spans."""
TRACES_VARIABLE: Final = "OTEL_TRACES_EXPORTER"
"""OpenTelemetry's own variable; `none`, as its absence, turns spans off here."""
EPOCHS_PER_POD: Final = 1000
"""Starts of its container that a pod has epochs for: the next pod's begin there."""
_LINGER_SECONDS: Final = 30 * 86_400.0
"""The operator deletes the pod; a container that ended would only be started again."""
_STARTS: Final = "starts"


def load_in_pod(environment: Mapping[str, str]) -> MasterConfig:
    """The configuration of this start.

    Raises:
        ConfigError: a variable is missing or cannot be used.
    """
    names = (keys.ENV_JOB, keys.ENV_JOB_UID, keys.ENV_TLS_DIR, keys.ENV_MASTER, keys.ENV_EPOCH)
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} must be set; the operator sets them in the master's pod, "
            f"elsewhere use --config"
        )
    host, _, port = environment[keys.ENV_MASTER].rpartition(":")
    first = environment[keys.ENV_EPOCH]
    journal = _own(environment.get(keys.ENV_JOURNAL_DIR, ""), environment[keys.ENV_JOB_UID])
    starts = _own(environment.get(keys.ENV_STARTS_DIR, ""), environment[keys.ENV_JOB_UID])
    if not port.isdecimal() or not first.isdecimal():
        raise ConfigError(
            f"{keys.ENV_MASTER}={environment[keys.ENV_MASTER]!r} must be host:port and "
            f"{keys.ENV_EPOCH}={first!r} a number"
        )
    document: dict[str, Any] = {
        "job_name": environment[keys.ENV_JOB],
        "job_uid": environment[keys.ENV_JOB_UID],
        "epoch": int(first) + _starts_before(journal or starts, first),
        "tls_dir": environment[keys.ENV_TLS_DIR],
        "bind_host": host,
        "port": int(port),
        "exit_when_finished": _LINGER_SECONDS,
    }
    document["namespace"] = environment.get(keys.ENV_NAMESPACE, "")
    if metrics := environment.get(keys.ENV_METRICS_PORT, ""):
        if not metrics.isdecimal():
            raise ConfigError(f"{keys.ENV_METRICS_PORT}={metrics!r} must be a number")
        document["metrics_port"] = int(metrics)
    traces = environment.get(TRACES_VARIABLE, "none")
    document["traces"] = "" if traces == "none" else traces
    if journal is not None:
        document["journal_dir"] = str(journal / "segments")
    return parse(document)


def _own(journal: str, job_uid: str) -> Path | None:
    """The job's own folder: a claim may serve several jobs, and one that is made again."""
    if not journal:
        return None
    if Path(job_uid).name != job_uid:
        raise ConfigError(f"{keys.ENV_JOB_UID}={job_uid!r} must be a plain name")
    return Path(journal) / job_uid


def _starts_before(folder: Path | None, first: str) -> int:
    """The number of earlier starts of a container of this pod, which a file counts.

    It lies beside the journal, or where there is none in a volume of its own. A claim outlives
    pods, so the file names whose starts it counts: the pod's first epoch. Without either (an
    operator one minor release older) a container that is started again has the epoch of its
    predecessor, and agents that knew that one refuse it.
    """
    if folder is None:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / _STARTS
    words = file.read_text(encoding="utf-8").split() if file.exists() else []
    count = int(words[1]) + 1 if len(words) == 2 and words[0] == first else 0
    if count >= EPOCHS_PER_POD:
        raise ConfigError(
            f"{file} counts {count} starts of the master in one pod, which owns "
            f"{EPOCHS_PER_POD} epochs; delete the pod, the operator makes a new one"
        )
    temporary = file.with_suffix(".new")
    temporary.write_text(f"{first} {count}\n", encoding="utf-8")
    temporary.replace(file)
    return count
