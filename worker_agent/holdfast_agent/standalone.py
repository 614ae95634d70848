"""A run without a job master: makes certificates and a master process of its own, for one node.

Started from the agent's main thread before grpc is imported, because the parent-death signal that
ends the master for certain follows the thread that started it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast_agent.config import Settings
from holdfast_agent.zygote.tree import die_with_parent
from holdfast_wire import keys
from holdfast_wire.authority import JobAuthority, new_root_key
from holdfast_wire.identity import Identity

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
CERTIFICATE_LIFETIME = dt.timedelta(days=365)
"""Longer than a run; the files go with it."""
DEFAULT_MAX_RESTARTS = 10
"""Failure budget where --max-restarts is not given (torchrun's default is 0: no restart)."""
NO_PROGRESS_LIMIT = 3
"""Failures in a row without a new step."""
UNBOUNDED = 1_000_000
"""Budgets that a single node cannot spend in earnest."""
BELOW_MIN_SECONDS = 30.0
"""How long the only node may be gone before the run fails."""
LINGER_SECONDS = 2.0
"""The master serves on this long after the job's end, for an agent that has just reconnected."""
END_SECONDS = 5.0
"""SIGTERM to SIGKILL for the master."""


class Standalone:
    """The master of a standalone run and the directory of its files."""

    def __init__(self, settings: Settings) -> None:
        """Make the files and start the master; its address is known a little later."""
        self._home = Path(tempfile.mkdtemp(prefix="holdfast_run_"))
        self._endpoint_file = self._home / "endpoint.json"
        self.log_file = self._home / "master.log"
        uid = uuid.uuid4().hex
        self._write_credentials(uid)
        run_id = settings.launch.rdzv_id or str(uuid.uuid4())
        self.settings = dataclasses.replace(
            settings, job=run_id, job_uid=uid, tls_dir=self._home / "agent"
        )
        """The agent's settings, with this run's identity."""
        self._process = self._start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The master's process, which is not to be taken for an orphan."""
        return (self._process.pid,)

    def endpoint(self) -> str | None:
        """Return host:port as soon as the master answers."""
        try:
            found = json.loads(self._endpoint_file.read_text())
        except (OSError, ValueError):
            return None
        return f"{found['host']}:{found['port']}"

    def exit_code(self) -> int | None:
        """Return how the master ended; None while it runs."""
        return self._process.poll()

    def last_words(self) -> str:
        """Return the end of the master's log, for the person who wants to know why it ended."""
        with suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-5:])
        return ""

    def close(self) -> None:
        """End the master and remove its files."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _write_credentials(self, uid: str) -> None:
        now = dt.datetime.now(dt.UTC)
        authority = JobAuthority(new_root_key(), uid, now)
        for folder, identity in (
            ("master", Identity(uid, keys.ROLE_MASTER)),
            ("agent", Identity(uid, keys.ROLE_AGENT, 0)),
        ):
            credentials = authority.issue(identity, now, CERTIFICATE_LIFETIME, (LOOPBACK,))
            credentials.write(self._home / folder)

    def _start(self) -> subprocess.Popen[bytes]:
        config = self._home / "master.json"
        config.write_text(json.dumps(self._config()))
        config.chmod(0o600)
        agent = os.getpid()
        return subprocess.Popen(
            # -P: a file in the user's directory must not shadow a module of the master.
            [sys.executable, "-P", "-m", "holdfast_master.main", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            # One thread so far, so running Python between fork and exec is safe here.
            preexec_fn=lambda: _follow(agent),  # noqa: PLW1509
        )

    def _config(self) -> dict[str, Any]:
        return {
            "job_name": self.settings.job,
            "job_uid": self.settings.job_uid,
            "epoch": 1,
            "incarnation": secrets.token_hex(16),
            "tls_dir": str(self._home / "master"),
            "bind_host": LOOPBACK,
            "endpoint_file": str(self._endpoint_file),
            "journal_dir": str(self._home / "journal"),
            "initial_spec": initial_spec(self.settings.launch.max_restarts),
            "exit_when_finished": LINGER_SECONDS,
            "log_file": str(self.log_file),
        }


def initial_spec(max_restarts: int | None) -> dict[str, Any]:
    """Return the spec of a job of one node, as the master's configuration file has it."""
    failures = DEFAULT_MAX_RESTARTS if max_restarts is None else max_restarts
    limits = {
        "FAILURES": failures,
        "PREEMPTIONS": UNBOUNDED,
        "RESCALES": UNBOUNDED,
        "NO_PROGRESS": max(NO_PROGRESS_LIMIT, failures),
    }
    return {
        "generation": 1,
        "replicas": 1,
        "min_replicas": 1,
        "max_replicas": 1,
        "node_unit": 1,
        "success_policy": "ALL_WORKERS",
        "join_window_seconds": 0.0,
        "scale_down_grace_seconds": 30.0,
        "below_min_timeout_seconds": BELOW_MIN_SECONDS,
        "budgets": [{"kind": kind, "limit": limit} for kind, limit in limits.items()],
    }


def _follow(agent: int) -> None:
    """Between fork and exec: die with the agent, and leave its terminal's Ctrl-C to it."""
    die_with_parent(agent)
    os.setsid()
