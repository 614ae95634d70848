"""Steps of a worker between its fork and the user's first line.

Everything that differs between a child of a zygote and a freshly started process is put right here.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from holdfast import job
from holdfast.page import Page, PageError
from holdfast.page_slot import SlotWriter
from holdfast.robust_mark import RobustMark
from holdfast_agent.zygote import (
    files,
    import_time_variables,
    preload,
    protocol,
    script,
    worker_server,
)
from holdfast_agent.zygote.import_time_variables import VariableWatch
from holdfast_agent.zygote.process_tree import allow_reading, die_with_parent, name_process
from holdfast_agent.zygote.protocol import ScriptMode, Spawn, SpawnRank
from holdfast_agent.zygote.settings import bootstrap_command
from holdfast_wire.datagrams import encode
from holdfast_wire.keys import ENV_PAGE, ENV_ROUND

_STATUS = {errno.ENOENT: 127, errno.EACCES: 126}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Everything that a worker needs at its fork."""

    round: int
    rank: SpawnRank
    page: Page
    environment: Mapping[str, str]
    """The complete environment of the worker."""
    zygote_pid: int
    forked: bool
    """False: continue as a fresh interpreter."""
    agent_pid: int
    """Its stacks may be read by this process and its children."""
    cpus: frozenset[int] | None = None
    """CPUs to bind to; None: as inherited."""
    modules: frozenset[str] = frozenset()
    """Names of the modules that are imported at the fork."""
    openblas: Callable[[int], object] | None = None
    """Sets OpenBLAS's thread count, see `import_time_variables.openblas_setter`."""


def worker_environment(
    base: Mapping[str, str], rank: SpawnRank, round_number: int, page_fd: int, local_world: int
) -> dict[str, str]:
    """Return a worker's complete environment over the user's own, `base`."""
    environment = dict(base) | dict(rank.env)
    if local_world > 1:  # torchrun's default, so that ranks do not fight for the cores
        environment.setdefault(import_time_variables.OMP_THREADS, "1")
    environment[ENV_PAGE] = f"{page_fd}:{rank.slot}"
    environment[ENV_ROUND] = str(round_number)
    return environment


def become(worker: Worker) -> NoReturn:
    """Turn this freshly forked process into the worker; never returns.

    An error before the script starts is the worker's failure: a line on stderr and, as in a shell,
    status 127 if the program is missing, 126 if it may not be run, else 1.
    """
    try:
        _leave_the_zygote(worker)
        if worker.rank.mode is ScriptMode.BINARY:
            _exec(worker, list(worker.rank.argv))
        elif worker.forked:
            _run_here(worker)
        else:
            _exec(worker, _bootstrap_command(worker))
    except (OSError, PageError) as error:
        os.write(2, f"holdfast: worker {worker.rank.local_rank}: {error}\n".encode())
        os._exit(_STATUS.get(getattr(error, "errno", 0), 1))
    os._exit(1)


def _leave_the_zygote(worker: Worker) -> None:
    """Take on the session, streams, descriptors, signals and folder of an ordinary process."""
    die_with_parent(worker.zygote_pid)
    os.setsid()
    name_process(f"hf-rank{worker.rank.local_rank}")
    if worker.cpus:
        os.sched_setaffinity(0, worker.cpus)
    _reset_signals()
    files.redirect(worker.rank.stdout, 1)
    files.redirect(worker.rank.stderr, 2)
    preload.close_unknown(known=())
    os.set_inheritable(worker.page.fd, True)  # a script may exec itself again
    if worker.rank.cwd is not None:
        os.chdir(worker.rank.cwd)


def _reset_signals() -> None:
    """Undo the settings of zygote and agent; signals ignored from outside stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _exec(worker: Worker, command: list[str]) -> NoReturn:
    """Replace this process by another program, the shared page's descriptor included."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # python ignores them, other programs do not
        signal.signal(number, signal.SIG_DFL)
    os.execve(_found(command[0], worker.environment), command, worker.environment)


def _found(program: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program on PATH; raises an OSError with the reason if there is none."""
    path = shutil.which(program, path=environment.get("PATH", os.defpath))
    if path is None:
        number = errno.EACCES if Path(program).exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), program)
    return path


def _bootstrap_command(worker: Worker) -> list[str]:
    """Return the command of a fresh interpreter that continues with `run_fresh`."""
    body = encode(Spawn(round=worker.round, ranks=(worker.rank,)))
    fd = os.memfd_create("holdfast-worker", 0)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(body)
    return bootstrap_command("worker", str(fd), str(worker.agent_pid), flags=("-u",))


def _run_here(worker: Worker) -> NoReturn:
    """Continue in this process, which has everything imported."""
    files.unbuffer()
    os.environ.clear()
    os.environ.update(worker.environment)
    _forget_the_agent()
    import_time_variables.apply_thread_counts(os.environ, worker.openblas)
    _reseed()
    watch = VariableWatch(worker.environment, worker.page, worker.rank.slot)
    sys.addaudithook(watch.on_audit)
    atexit.register(watch.warn_of_unset)
    _run(worker.rank, worker.round, worker.page, worker.agent_pid, worker.modules)


def run_fresh(body: bytes, agent_pid: int) -> NoReturn:
    """Continue in a fresh interpreter, where nothing needs putting right."""
    message = protocol.decode(body)
    place = Page.attach_from_env()
    if not isinstance(message, Spawn) or place is None:
        raise SystemExit("holdfast: started without a worker's description")
    rank = message.ranks[0]
    name_process(f"hf-rank{rank.local_rank}")
    _run(rank, message.round, place[0], agent_pid, frozenset(sys.modules))


def _run(
    rank: SpawnRank, round_number: int, page: Page, agent_pid: int, modules: frozenset[str]
) -> NoReturn:
    # Programs that the script starts see by the pid that the page is not theirs.
    os.environ[ENV_PAGE] = f"{page.fd}:{rank.slot}:{os.getpid()}"
    writer = SlotWriter(page, rank.slot, round_number)
    job.adopt(writer)
    RobustMark(
        page.fd, rank.slot
    ).hold()  # if that fails the agent only learns of this process's end later
    allow_reading(agent_pid)
    if rank.server is not None:
        worker_server.start(rank.server)
    script.run(rank.mode, rank.argv, writer, modules)


def _forget_the_agent() -> None:
    """Undo hooks, loggers and folders that the agent may have set up before the fork."""
    sys.excepthook, sys.displayhook = sys.__excepthook__, sys.__displayhook__
    logging.captureWarnings(capture=False)
    logging.root.handlers.clear()
    if logging.root.level != logging.WARNING:  # setting it touches every logger's memory
        logging.root.setLevel(logging.WARNING)
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # noqa: PTH109 - a string, as it is there


def _reseed() -> None:
    """Reseed random generators, which would otherwise give the same numbers in every fork."""
    random: Any = sys.modules.get("random")
    numpy_random: Any = sys.modules.get("numpy.random")
    torch: Any = sys.modules.get("torch")
    if random is not None:
        random.seed()
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.default_generator.seed()
