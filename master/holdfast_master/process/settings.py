"""Settings of a master process, read once at its start.

Belongs here: the one file that `holdfast-master --config` names, read and checked. Does not belong
here: the meaning of the core's time limits (see `settings`), and anything that changes later.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import secrets
from pathlib import Path
from typing import Any

from holdfast_master.replay.typed_json import TypedJsonError, read_dataclass
from holdfast_master.server.spec_check import spec_problem
from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import MasterSpec


class ConfigError(Exception):
    """A configuration that cannot be used; the text names the field, its value and the remedy."""


class LogLevel(enum.Enum):
    """The least level of what is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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


def load(path: Path) -> MasterConfig:
    """Return the configuration that the JSON file at `path` holds.

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
    """Return the configuration that a parsed JSON `document` holds.

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
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"port is {config.port}; it must be 0 (any) to 65535")
    seconds = config.exit_when_finished
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"exit_when_finished is {seconds}; it must be 0 or more seconds")
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


def _check_journal(config: MasterConfig) -> None:
    if config.journal_segment_bytes < 4096:
        text = f"journal_segment_bytes is {config.journal_segment_bytes}"
        raise ConfigError(f"{text}; it must be at least 4096 bytes")
    for name in ("journal_keep_hours", "journal_keep_bytes", "recording_bytes"):
        if not (math.isfinite(getattr(config, name)) and getattr(config, name) >= 0):
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be 0 or more")
