"""Run without a job master: makes certificates and a master process of its own, for one node.

It starts on the agent's main thread: the master's parent-death signal follows that thread.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import os
import secrets
import subprocess
import sys
import uuid
from contextlib import suppress
from functools import partial
from typing import Any, Final

from holdfast_agent import temporary_directories
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import StandaloneError
from holdfast_agent.zygote.process_tree import die_with_parent
from holdfast_wire import keys, loopback
from holdfast_wire.authority import JobAuthority, new_root_key
from holdfast_wire.identity import Identity

log = logging.getLogger(__name__)

CERTIFICATE_LIFETIME = dt.timedelta(days=365)
"""Longer than a run; the files are deleted with it."""
DEFAULT_MAX_RESTARTS = 10
"""Failure budget without --max-restarts (torchrun's default is 0: no restart)."""
NO_PROGRESS_LIMIT = 3
"""Restarts in a row without a new step, without --max-restarts. The first one counts as a failure,
because no earlier step is known: such a script is tried 5 times."""
UNBOUNDED = 1_000_000
"""Budgets that a single node cannot use up."""
BELOW_MIN_SECONDS = 30.0
"""Seconds for which the only node may be gone before the run fails."""
LINGER_SECONDS = 2.0
"""Seconds for which the master serves after the job's end, for an agent that reconnects."""
MAX_SUCCESSORS = 3
"""Masters after the first one."""

HEALTH: Final = {
    "hang": {
        "mode": "REPORT",
        "step_time_factor": 10.0,
        "min_seconds": 60.0,
        "first_step_seconds": 1800.0,
    },
    "straggler": {
        "mode": "REPORT",
        "slowdown_percent": 20.0,
        "window_steps": 50,
        "votes": 3,
        "votes_out_of": 5,
    },
}
"""Defaults of an ElasticJob's spec.health."""


class Standalone:
    """The master of a standalone run and the directory of its files."""

    def __init__(self, settings: Settings) -> None:
        """Make the files and start the master; its address is known a little later."""
        self._home = temporary_directories.make("run_")
        self._host = loopback.address()
        self._endpoint_file = self._home / "endpoint.json"
        self.log_file = self._home / "master.log"
        uid = uuid.uuid4().hex
        self._write_credentials(uid)
        run_id = settings.launch.rdzv_id or str(uuid.uuid4())
        self.settings = dataclasses.replace(
            settings, job=run_id, job_uid=uid, tls_dir=self._home / "agent"
        )
        """The agent's settings, with this run's identity."""
        self._epoch, self._port = 1, 0
        self._process = self._start()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of the master, which must not be taken for an orphan."""
        return (self._process.pid,)

    def endpoint(self) -> str | None:
        """Return host:port as soon as the master answers."""
        try:
            found = json.loads(self._endpoint_file.read_text())
        except (OSError, ValueError):
            return None
        return f"{found['host']}:{found['port']}"

    def revive(self) -> str:
        """Start a successor if the master has ended; return the news, empty: none.

        Call from the main thread. A successor reads the journal and serves on the same port.

        Raises StandaloneError: it has ended too often.
        """
        code = self._process.poll()
        if code is None:
            return ""
        if self._epoch > MAX_SUCCESSORS:
            raise StandaloneError(
                f"the job master ended with {code}, its {self._epoch} lives are spent: "
                f"{self._last_words()}"
            )
        found = self.endpoint()
        self._port = int(found.rpartition(":")[2]) if found else 0
        self._endpoint_file.unlink(missing_ok=True)
        self._epoch += 1
        self._process = self._start()
        return f"the job master ended with {code}: epoch {self._epoch} begins"

    def _last_words(self) -> str:
        with suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-5:])
        return "it left no log"

    def close(self) -> None:
        """End the master and remove its files; they are of no use after the run."""
        self._process.kill()
        self._process.wait()
        temporary_directories.remove(self._home)

    def _write_credentials(self, uid: str) -> None:
        now = dt.datetime.now(dt.UTC)
        authority = JobAuthority(new_root_key(), uid, now)
        for folder, identity in (
            ("master", Identity(uid, keys.ROLE_MASTER)),
            ("agent", Identity(uid, keys.ROLE_AGENT, 0)),
        ):
            credentials = authority.issue(identity, now, CERTIFICATE_LIFETIME, (self._host,))
            credentials.write(self._home / folder)

    def _start(self) -> subprocess.Popen[bytes]:
        config = self._home / "master.json"
        config.write_text(json.dumps(self._config()))
        config.chmod(0o600)
        return subprocess.Popen(
            # -P: a file in the user's directory must not shadow a module of the master.
            [sys.executable, "-P", "-m", "holdfast_master.main", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            # The agent handles a terminal's Ctrl-C.
            start_new_session=True,
            # The master ties itself to its parent too, but only once Python runs. The first one is
            # started before there is a second thread, when code after the fork is safe.
            preexec_fn=partial(die_with_parent, os.getpid()) if self._epoch == 1 else None,  # noqa: PLW1509
        )

    def _config(self) -> dict[str, Any]:
        return {
            "job_name": self.settings.job,
            "job_uid": self.settings.job_uid,
            "epoch": self._epoch,
            "incarnation": secrets.token_hex(16),
            "tls_dir": str(self._home / "master"),
            "bind_host": loopback.bracketed(self._host),
            "port": self._port,
            "die_with_parent": True,
            "parent_pid": os.getpid(),
            "endpoint_file": str(self._endpoint_file),
            "journal_dir": str(self._home / "journal"),
            "initial_spec": initial_spec(self.settings.launch.max_restarts),
            "exit_when_finished": LINGER_SECONDS,
            "log_file": str(self.log_file),
        }


def initial_spec(max_restarts: int | None) -> dict[str, Any]:
    """Return the spec of a job of one node, for the master's configuration file."""
    limits = {
        "FAILURES": DEFAULT_MAX_RESTARTS if max_restarts is None else max_restarts,
        "PREEMPTIONS": UNBOUNDED,
        "RESCALES": UNBOUNDED,
    }
    if max_restarts is None:
        limits["NO_PROGRESS"] = NO_PROGRESS_LIMIT
    # With the flag one number bounds all restarts, as under torchrun: restarts without progress
    # have no budget of their own then, and count as failures.
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
        "health": HEALTH,
    }
