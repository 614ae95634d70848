"""Configuration of a master in a pod: from its environment, without a file.

Belongs here: from the operator's variables to a `MasterConfig`, and the epoch of this very start.
Does not belong here: the meaning of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast_master.process.settings import ConfigError, MasterConfig, parse
from holdfast_wire import keys

EPOCHS_PER_POD: Final = 1000
"""Starts of its container that a pod has epochs for: the next pod's begin there."""
_LINGER_SECONDS: Final = 30 * 86_400.0
"""The operator deletes the pod; a container that ended would only be started again."""
_STARTS: Final = "starts"


def config_of(environment: Mapping[str, str]) -> MasterConfig:
    """Return the configuration of this start.

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
    """Return the number of earlier starts of a container of this pod, which a file counts.

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
