"""`holdfast-run`: the order of an agent's start, and its exit code.

First flags and environment (if they are wrong, nothing is started). Then torch, the page, the
zygote from this very thread, and only then grpc: forking a process that has loaded grpc is unsafe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.page import Page
from holdfast_agent import signals, temporary_directories
from holdfast_agent.config import settings as agent_settings
from holdfast_agent.config.flags import PROGRAM
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import AgentError, InputError
from holdfast_agent.policies.exit_codes import ExitCode, after_signal, heeded
from holdfast_agent.workers import torchrun_environment
from holdfast_agent.workers.log_files import LogKeeper
from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.preload import ZygoteError, import_torch
from holdfast_agent.zygote.settings import DEFERRABLE, ZygoteSettings

if TYPE_CHECKING:
    from holdfast_agent.standalone import Standalone

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Makes torch count devices without starting CUDA: a later fork would break a started CUDA."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the agent and exit with its code (see `policies.exit_codes.ExitCode`)."""
    _open_standard_streams()
    try:
        code = start(sys.argv[1:] if argv is None else argv)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to clean up. Tearing down an interpreter with torch takes up to seconds, for
    # which a pod or a runner would wait.
    os._exit(code)


def _open_standard_streams() -> None:
    """Point each of 0, 1 and 2 that the caller closed to /dev/null.

    Otherwise a socket gets the number, and a script's output goes to the master.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def start(argv: Sequence[str]) -> int:
    """Run the agent; return its exit code.

    Raises SystemExit: from torch's parser, for --help and unknown flags; after an early signal.
    """
    inherited = dict(os.environ)
    # Until the event loop takes over. As PID 1 a process without handlers gets no signals at all.
    for number in heeded((signal.SIGTERM, signal.SIGINT), signals.ignored()):
        signal.signal(number, _end_early)
    try:
        agent_settings.of_environment(inherited)  # wrong values are told before seconds of import
        variables = import_torch()
        settings = _load(argv, inherited)
        for note in (*settings.notes, *signals.notes()):
            sys.stderr.write(f"{PROGRAM}: {note}\n")
        _set_up_logging(settings)
        return _run(settings, inherited, variables)
    except InputError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return ExitCode.BAD_INPUT
    except (AgentError, ZygoteError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return ExitCode.FAILED


def _end_early(number: int, _: object) -> None:
    raise SystemExit(after_signal(number))


def _load(argv: Sequence[str], inherited: Mapping[str, str]) -> Settings:
    os.environ.setdefault(NVML_CHECK, "1")
    try:
        return agent_settings.load(argv, inherited)
    finally:
        if NVML_CHECK not in inherited:
            del os.environ[NVML_CHECK]


def _set_up_logging(settings: Settings) -> None:
    name = PROGRAM if settings.standalone else f"{PROGRAM} node {settings.node_rank}"
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level,
        format=f"%(asctime)s %(levelname).1s {name}: %(message)s",
    )


def _run(
    settings: Settings, inherited: Mapping[str, str], variables: Mapping[str, str | None]
) -> int:
    """Start the parts that must come before grpc, then work; leave nothing behind."""
    temporary_directories.sweep()
    logs = LogKeeper(settings.launch.logs, settings.launch.role)
    page = Page.create(settings.launch.local_world_size)
    for name in torchrun_environment.WITHHELD:
        os.environ.pop(name, None)
    process = Zygote()
    process.start(_zygote_settings(settings, variables), page)
    code = int(ExitCode.FAILED)
    own_master: Standalone | None = None
    try:
        own_master = _own_master(settings)
        # grpc's own lines about refused handshakes repeat the agent's message.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from holdfast_agent.lifecycle import work

        code = asyncio.run(work(settings, inherited, page, process, logs, own_master))
    finally:
        process.shutdown()
        process.kill_orphans(own_master.pids if own_master else ())
        if own_master is not None:
            own_master.close()
        kept = logs.close(keep=code != 0)
        if kept is not None:
            sys.stderr.write(f"{PROGRAM}: logs and error files: {kept}\n")
    return code


def _zygote_settings(settings: Settings, variables: Mapping[str, str | None]) -> ZygoteSettings:
    """A run on one node waits for nothing but its own start: it defers what it can.

    Under a job's master the imports cost nothing: they end before the other nodes have come.
    """
    deferred = DEFERRABLE if settings.standalone else frozenset()
    return ZygoteSettings(
        local_world_size=settings.launch.local_world_size,
        user_variables=variables,
        preload=tuple(name for name in settings.preload if name not in deferred),
        deferred_preload=tuple(name for name in settings.preload if name in deferred),
        fork=settings.fork,
    )


def _own_master(settings: Settings) -> Standalone | None:
    """Start a job master if none is given; on this thread, so that it dies with it."""
    if not settings.standalone:
        return None
    from holdfast_agent.standalone import Standalone

    return Standalone(settings)
