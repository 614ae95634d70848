"""`holdfast run`: check the file, make the job's directory, run the job here or detached."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast_cli import live_view
from holdfast_cli.errors import (
    BackgroundEndedError,
    BadInputError,
    JobNotFoundError,
    MasterUnreachableError,
)
from holdfast_cli.job_directory import (
    ENV_HOME,
    JobHome,
    JobRecord,
    is_running,
    job_home,
    process_started,
    state_root,
)
from holdfast_cli.output import say
from holdfast_cli.runner.hosts import Hosts
from holdfast_cli.runner.local_job import LocalJob
from holdfast_cli.runner.pods import Surroundings
from holdfast_cli.runner.preflight import check_machine
from holdfast_cli.runner.supervisor import Director, Supervisor
from holdfast_operator.crd import load_crd
from holdfast_operator.pods.process import check_job, job_notices
from holdfast_operator.spec import ElasticJob, InvalidJobError, read_job
from holdfast_wire import loopback

_DETACH_SECONDS = 60.0
"""From `--detach` until the master serves, s: Python's start and grpc's import on a busy
machine."""

_RUNNER_LOG = "runner.log"
"""Log of the background part of `--detach`, among the job's logs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `holdfast run`."""

    detach: bool = False
    """Start the job and return."""
    logs: bool = False
    """Also show the output of the training processes."""
    metrics_port: int | None = None
    """Port of this machine for the job's metrics; None: none are served."""
    supervised: bool = False
    """True: this process is the background part of --detach."""
    hosts: Hosts | None = None
    """Hosts on which the workers run; None: this machine."""
    director: Director | None = None
    """Acts on the running job."""
    name: str = ""
    """Name to run under; empty: the file's."""
    surroundings: Surroundings = dataclasses.field(default_factory=Surroundings)


def run_job(file: Path, options: RunOptions, environ: Mapping[str, str]) -> int:
    """Run the job in `file`; return the exit code.

    Raises:
        BadInputError: the file is wrong, or the job runs already; nothing was started.
    """
    job = read_file(file, here=options.hosts is None)
    if options.name:
        job = dataclasses.replace(job, name=options.name)
    home = job_home(environ, job.name)
    _refuse_running(home)
    if options.metrics_port is not None and not options.supervised:
        _check_free(options.metrics_port)
    with contextlib.ExitStack() as claimed:
        try:
            if not options.supervised:
                _show_notices(job)
            if options.detach:
                return _detach(file, home, environ, options.metrics_port)
            claimed.enter_context(_claim(home))
            record = _prepare(home, job, file)
            if options.supervised:
                _adopt_log(home)
            around = dataclasses.replace(
                options.surroundings, metrics_port=options.metrics_port, hosts=options.hosts
            )
            local, show = LocalJob(job, record.uid), options.logs
            supervisor = Supervisor(local, home, show_logs=show, surroundings=around)
        except OSError as error:
            raise _no_directory(environ, error) from error
        return asyncio.run(supervisor.main(_view(options), options.director))


def _show_notices(job: ElasticJob) -> None:
    """Print the notices on the terminal of the person who starts the job, detached or not."""
    for notice in job_notices(job):
        with contextlib.suppress(BrokenPipeError):
            print(f"notice: {notice}", file=sys.stderr)


def _no_directory(environ: Mapping[str, str], error: OSError) -> BadInputError:
    return BadInputError(
        f"{ENV_HOME}={environ.get(ENV_HOME, '')!r}: the job's directory below "
        f"{state_root(environ)} cannot be made ({error}); name a directory that you may write"
    )


def read_file(file: Path, *, here: bool = True) -> ElasticJob:
    """Return the job in the file; `here`: this machine has to have room for it.

    Raises:
        BadInputError: the file is wrong, or this machine cannot run it.
    """
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"job file {str(file)!r} cannot be read: {why}") from error
    try:
        job = read_job(text, load_crd(), str(file))
    except InvalidJobError as error:
        raise BadInputError(str(error)) from error
    problems = check_job(job) or (check_machine(job) if here else ())
    if problems:
        raise BadInputError(str(InvalidJobError(str(file), list(problems))))
    return job


def _check_free(port: int) -> None:
    """Refuse a port that is taken, while that costs nothing."""
    host = loopback.address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInputError(
                f"--metrics-port {port}: {host} cannot listen there ({error.strerror}); "
                "name a free port"
            ) from error


def _refuse_running(home: JobHome) -> None:
    try:
        record = home.record()
    except JobNotFoundError:
        return  # No record, or a damaged one: the next run replaces it, unless the name is held.
    if is_running(record):
        raise BadInputError(_taken(home, f" (pid {record.runner_pid})"))


def _taken(home: JobHome, who: str) -> str:
    name = home.path.name
    return (
        f"metadata.name {name!r}: a job of that name runs already{who}; stop it with "
        f"`holdfast stop {name}` or choose another name"
    )


@contextlib.contextmanager
def _claim(home: JobHome) -> Iterator[None]:
    """Hold the job's name: of two runners that start at once, one is refused."""
    home.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(
        home.path.with_name(f".{home.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600
    )
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInputError(_taken(home, "")) from error
        yield
    finally:
        os.close(descriptor)


def _prepare(home: JobHome, job: ElasticJob, file: Path) -> JobRecord:
    if home.path.exists():
        # The last run of that name has ended; its directory was kept for its logs.
        home.path.rename(home.path.with_name(f".{home.path.name}.{uuid.uuid4().hex[:8]}.old"))
        for old in home.path.parent.glob(f".{home.path.name}.*.old"):
            shutil.rmtree(old, ignore_errors=True)
    home.create()
    record = JobRecord(
        name=job.name,
        uid=str(uuid.uuid4()),
        runner_pid=os.getpid(),
        runner_started=process_started(os.getpid()) or 0,
        job_file=str(file.resolve()),
    )
    home.write_record(record)
    return record


def _view(options: RunOptions) -> live_view.View:
    if options.supervised:
        return live_view.PlainView(say)
    return live_view.choose_view(write=say)


def _detach(file: Path, home: JobHome, environ: Mapping[str, str], metrics_port: int | None) -> int:
    log = _early_log(home)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    served = [] if metrics_port is None else [f"--metrics-port={metrics_port}"]
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast_cli.main", "run", str(file), "--supervise", *served],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _DETACH_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        if home.record_file.exists() and home.endpoint() and is_running(home.record()):
            name = home.record().name
            say(f"{name} runs in the background (pid {child.pid}); log: {_log_of(home)}")
            say(f"`holdfast watch {name}` follows it, `holdfast stop {name}` ends it")
            return 0
        time.sleep(0.05)
    code = child.poll()
    if code is None:
        raise MasterUnreachableError(
            f"the job's master does not answer {_DETACH_SECONDS:g} s after the start "
            f"(pid {child.pid}, which goes on); log: {_log_of(home)}"
        )
    return _ended_early(code, _log_of(home))


def _early_log(home: JobHome) -> Path:
    """Return the log of the background part until the job's directory is its own."""
    return home.path.parent / f".{home.path.name}.runner.log"


def _adopt_log(home: JobHome) -> None:
    """Move this process's log to the job's other logs; it is still written to."""
    with contextlib.suppress(OSError):
        _early_log(home).rename(home.logs / _RUNNER_LOG)


def _log_of(home: JobHome) -> Path:
    early = _early_log(home)
    return early if early.exists() else home.logs / _RUNNER_LOG


def _ended_early(code: int, log: Path) -> int:
    """Pass on the exit code and the output of a background part that ended early."""
    words = log.read_text(errors="replace").strip()[-2000:].removeprefix("holdfast: ")
    if code == 0:
        say(f"{words}\nthe job has ended already; log: {log}")
        return 0
    raise BackgroundEndedError(f"{words or 'the job did not start'} (log: {log})", code)
