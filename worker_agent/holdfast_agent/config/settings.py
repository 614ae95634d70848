"""The agent's settings, parsed once: HOLDFAST_* variables and the command line.

The environment is read here and in `flags` (torch's PET_* defaults), nowhere else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast_agent.config import flags, notice_sources
from holdfast_agent.config.launch import Launch
from holdfast_agent.config.notice_sources import ENV_NOTICES
from holdfast_agent.errors import InputError
from holdfast_agent.zygote.settings import DEFAULT_PRELOAD
from holdfast_wire import environment, keys

ENV_GRACE = keys.ENV_GRACE
"""Seconds between SIGTERM to the agent and its end; in a pod its grace period minus 5 s."""
ENV_PRELOAD = "HOLDFAST_PRELOAD"
"""Modules to import before the first worker is forked, comma-separated; -NAME: not this one."""
ENV_FORK = "HOLDFAST_FORK"
"""0: start every worker as a fresh interpreter."""
ENV_LOG_LEVEL = "HOLDFAST_LOG_LEVEL"
"""debug, info, warning or error."""

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
MAX_SECONDS = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings that an agent needs before it starts anything."""

    launch: Launch
    """The command line."""
    standalone: bool
    """True: no HOLDFAST_MASTER, the agent starts a job master of its own."""
    master: str = ""
    """HOLDFAST_MASTER, host:port; empty when standalone."""
    job: str = "standalone"
    """HOLDFAST_JOB, the job's name and run id."""
    job_uid: str = ""
    """HOLDFAST_JOB_UID; part of every certificate of the job. Empty when standalone."""
    node_rank: int = 0
    """HOLDFAST_NODE_RANK: stable index of this node; 0 when standalone."""
    pod_uid: str = ""
    """HOLDFAST_POD_UID: distinguishes this agent process from the one that it replaces; empty: the
    agent uses a random id of its own."""
    tls_dir: Path = Path()
    """HOLDFAST_TLS_DIR: directory of ca.pem, cert.pem and key.pem."""
    grace_seconds: float = 30.0
    """HOLDFAST_GRACE_SECONDS: from SIGTERM to the agent's end, s. 30 is Kubernetes' default
    grace period; workers get the last part of it."""
    topology: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """HOLDFAST_TOPOLOGY: labels that order the first world; default none."""
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    """HOLDFAST_PRELOAD: modules imported once before the first fork. The user's own come after the
    default ones; `-NAME` leaves out NAME and all modules below it. torch reads its compiler's
    variables when it is imported; a script could otherwise set them too late."""
    fork: bool = True
    """HOLDFAST_FORK: False starts every worker cold, for scripts that do not survive a fork."""
    arena_dir: str = ""
    """HOLDFAST_ARENA_DIR: directory of a memory volume for arenas of the flash checkpoint. They
    then outlive a kill of this agent: the next agent of the same job takes them over. In pods the
    operator sets it. Default none: arenas end with the agent."""
    arena_socket: int = -1
    """HOLDFAST_ARENA_SOCKET: number of an inherited socket to the local runner, which holds this
    node's arenas too: they then outlive a kill of this agent. Default -1: no runner does."""
    notices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """HOLDFAST_NOTICES: sources that are asked for notices about this node's end. Default none: no
    address of a cloud is asked where there may be no cloud."""
    log_level: str = "INFO"
    """HOLDFAST_LOG_LEVEL: least severe level that is logged to stderr. Default info; standalone
    warning: a run that succeeds is as silent as under torchrun."""
    notes: tuple[str, ...] = ()
    """Flags without effect, for stderr."""


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings of this process.

    Raises:
        InputError: a flag or variable is wrong.
        SystemExit: from torch's parser, code 2 or (--help) 0.
    """
    settings = of_environment(environ)
    standalone = settings.standalone
    launch = flags.parse(argv, environ, environ.get(keys.ENV_NPROC_PER_NODE) or None)
    known = {
        "rdzv_backend": keys.RDZV_BACKEND,
        "rdzv_endpoint": environ.get(keys.ENV_MASTER, ""),
        "rdzv_id": environ.get(keys.ENV_JOB_UID, ""),
        "node_rank": environ.get(keys.ENV_NODE_RANK, ""),
    }
    return dataclasses.replace(
        settings,
        launch=launch,
        preload=_preload(environ.get(ENV_PRELOAD, "")),
        notes=(
            *flags.notes(launch, known, standalone=standalone),
            *flags.variable_notes(environ),
            *environment.unknown(environ),
            *_nnodes_notes(launch, environ, standalone=standalone),
            *_pointless(environ, standalone=standalone),
        ),
    )


def for_torchrun(environ: Mapping[str, str], endpoint: str, nproc: str | None) -> Settings:
    """Return the settings of a rendezvous handler inside an unmodified torchrun.

    environ: The environment; `endpoint` overrides HOLDFAST_MASTER.
    endpoint: --rdzv-endpoint, may be empty.
    nproc: Number of processes of this node as text; None: from the environment, else 1.

    Raises InputError: a variable is missing or wrong.
    """
    named = {**environ}
    if endpoint:
        given = environ.get(keys.PET_RDZV_ENDPOINT) == endpoint
        _check_endpoint(keys.PET_RDZV_ENDPOINT if given else "--rdzv-endpoint", endpoint)
        named[keys.ENV_MASTER] = endpoint
    if not named.get(keys.ENV_MASTER):
        raise InputError("--rdzv-endpoint", endpoint, "the job master's host:port")
    settings = of_environment(named)
    launch = Launch(script="torchrun", local_world_size=_local_size(environ, nproc))
    return dataclasses.replace(settings, launch=launch)


def _local_size(environ: Mapping[str, str], nproc: str | None) -> int:
    named = (
        (name, environ.get(name)) for name in (keys.PET_NPROC_PER_NODE, keys.ENV_NPROC_PER_NODE)
    )
    given = ((flags.NPROC_FLAG, nproc), *named)
    name, text = next((one for one in given if one[1]), (flags.NPROC_FLAG, "1"))
    try:
        return flags.local_world_size(text or "1")
    except InputError as error:
        raise error.under(name) from error.__cause__


def of_environment(environ: Mapping[str, str]) -> Settings:
    """Return the settings without a command line, which only torch can read, seconds later.

    Raises InputError: a variable is missing or wrong.
    """
    standalone = not environ.get(keys.ENV_MASTER)
    settings = Settings(
        launch=Launch(script=""),
        standalone=standalone,
        grace_seconds=_seconds(environ, ENV_GRACE, 30.0),
        topology=_topology(environ.get(keys.ENV_TOPOLOGY, "")),
        fork=_switch(environ, ENV_FORK),
        log_level=_log_level(environ, "warning" if standalone else "info"),
    )
    notice_sources.parse(environ.get(ENV_NOTICES, ""))
    return settings if standalone else _with_identity(settings, environ)


def _with_identity(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Return the settings with what only an agent under a master has."""
    master = environ[keys.ENV_MASTER]
    _check_endpoint(keys.ENV_MASTER, master)
    for name in (keys.ENV_JOB, keys.ENV_JOB_UID, keys.ENV_NODE_RANK, keys.ENV_TLS_DIR):
        if not environ.get(name):
            raise InputError(name, environ.get(name, ""), "a value, because a job master is named")
    node_rank, arena_dir = _number(environ, keys.ENV_NODE_RANK), _arena_dir(environ)
    tls_dir = Path(environ[keys.ENV_TLS_DIR])
    for file in (keys.CA_FILE, keys.CERT_FILE, keys.KEY_FILE):
        if not (tls_dir / file).is_file():
            raise InputError(
                keys.ENV_TLS_DIR, str(tls_dir), f"a directory with {file}, which is missing"
            )
    runner = environ.get(keys.ENV_ARENA_SOCKET)
    return dataclasses.replace(
        settings,
        master=master,
        job=environ[keys.ENV_JOB],
        job_uid=environ[keys.ENV_JOB_UID],
        node_rank=node_rank,
        pod_uid=environ.get(keys.ENV_POD_UID, ""),
        tls_dir=tls_dir.absolute(),
        arena_dir=arena_dir,
        arena_socket=_number(environ, keys.ENV_ARENA_SOCKET) if runner else -1,
        notices=notice_sources.parse(environ.get(ENV_NOTICES, ""), node_rank),
    )


def _pointless(environ: Mapping[str, str], *, standalone: bool) -> Iterator[str]:
    """Yield a note for each variable that only a job with a master can use.

    A standalone run is a job of its own, and has no other node that its work could move to.
    """
    for name in (keys.ENV_ARENA_DIR, ENV_NOTICES):
        if standalone and environ.get(name):
            yield f"{name} has no effect without {keys.ENV_MASTER}"


def _arena_dir(environ: Mapping[str, str]) -> str:
    text = environ.get(keys.ENV_ARENA_DIR, "")
    if text and not Path(text).is_dir():
        wanted = "a directory, where a memory volume is mounted; or leave it out"
        raise InputError(keys.ENV_ARENA_DIR, text, wanted)
    return str(Path(text).absolute()) if text else ""


def _nnodes_notes(
    launch: Launch, environ: Mapping[str, str], *, standalone: bool
) -> tuple[str, ...]:
    """Note where --nnodes disagrees with the job; refuse what a standalone run cannot do."""
    if standalone:
        _check_one_node(launch)
        return ()
    text = environ.get(keys.ENV_NNODES, "")
    if not text:
        return ()
    low, high = flags.node_range(keys.ENV_NNODES, text)
    if "nnodes" in launch.given and (low, high) != (launch.min_nodes, launch.max_nodes):
        asked = f"{launch.min_nodes}:{launch.max_nodes}"
        return (f"--nnodes={asked} has no effect: the job says {low}:{high}",)
    return ()


def _check_one_node(launch: Launch) -> None:
    """Refuse a run of several nodes without a master: each would train for itself as rank 0."""
    remedy = (
        f"without {keys.ENV_MASTER}: a standalone run is one node, and launchers do not meet at "
        "--rdzv-endpoint; start more nodes with `holdfast run` or the operator (replicas: "
        f"{launch.max_nodes}), or with torchrun"
    )
    alone = "standalone" in launch.given
    if launch.min_nodes > 1 or (launch.max_nodes > 1 and not alone):
        asked = f"{launch.min_nodes}:{launch.max_nodes}"
        raise InputError(launch.source("nnodes"), asked, f"1 (or --standalone) {remedy}")
    # Other rendezvous backends than torchrun's default one assign the ranks themselves.
    if launch.node_rank > 0 and not alone and "rdzv_backend" not in launch.given:
        raise InputError(launch.source("node_rank"), launch.node_rank, f"0 {remedy}")


def _check_endpoint(name: str, text: str) -> None:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InputError(name, text, "host:port, for example 10.0.0.7:7777")


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not text.isdecimal() or int(text) >= 2**32:
        raise InputError(name, text, "a whole number, 0 or more")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(name, text, "seconds, for example 25") from error
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
        raise InputError(name, text, f"seconds from 0 to {MAX_SECONDS:.0f}")
    return value


def _topology(text: str) -> Mapping[str, str]:
    pairs = {}
    for item in filter(None, text.split(",")):
        key, separator, value = item.partition("=")
        if not (key and separator):
            raise InputError(keys.ENV_TOPOLOGY, text, "key=value,key=value")
        pairs[key] = value
    return pairs


def _preload(text: str) -> tuple[str, ...]:
    names = [name for name in text.split(",") if name]
    kept: tuple[str, ...] = DEFAULT_PRELOAD
    for name in names:
        if name.startswith("-"):
            before = kept
            kept = tuple(one for one in kept if not f"{one}.".startswith(f"{name[1:]}."))
            if kept == before:
                expected = f"-NAME for a NAME of {', '.join(DEFAULT_PRELOAD)}, once"
                raise InputError(ENV_PRELOAD, text, expected)
    return (*kept, *(name for name in names if not name.startswith("-")))


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "1")
    if text not in ("0", "1"):
        raise InputError(name, text, "0 or 1")
    return text == "1"


def _log_level(environ: Mapping[str, str], default: str) -> str:
    text = environ.get(ENV_LOG_LEVEL) or default
    if text.upper() not in LOG_LEVELS:
        raise InputError(ENV_LOG_LEVEL, text, "debug, info, warning or error")
    return text.upper()
